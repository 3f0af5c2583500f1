"""What a head does, in a few figures: computed from its weights, not guessed."""

import unicodedata
from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from transduce.inspection.attention import Kind

Side = Mapping[str, Any]


def badges(
    kind: Kind, weights: Float[Tensor, "layers h q k"], source: Side, target: Side
) -> list[list[dict[str, Any]]]:
    """Return, for each layer and head, means over the queries.

    `entropy` in bits. `diagonal` and `previous` (in self-attention): the share of the weight on the
    query's own position and on the one before. `ends`: on END, BEGIN and punctuation. `key` is the
    key with the greatest mean weight, `share` that weight.
    """
    keys = target["inputs"] if kind == "decoder_self" else source["tokens"]
    ends = torch.tensor([is_end(token) for token in keys])
    found = []
    for layer in weights:
        row = []
        for alpha in layer:
            share, key = alpha.mean(dim=0).max(dim=0)
            entropy = -(alpha * alpha.clamp_min(1e-30).log2()).sum(dim=-1).mean()
            badge = {"entropy": float(entropy), "key": int(key), "share": float(share)}
            badge["ends"] = float(alpha[:, ends].sum(dim=-1).mean())
            if kind != "cross":
                badge["diagonal"] = float(alpha.diagonal().mean())
                before = alpha.diagonal(-1)
                badge["previous"] = float(before.mean()) if len(before) else 0.0
            row.append(badge)
        found.append(row)
    return found


def is_end(token: Mapping[str, Any]) -> bool:
    """Say whether a token is END, BEGIN or nothing but punctuation."""
    if token["special"]:
        return token["text"] in ("END", "BEGIN")
    text = token["text"].replace("▁", "")
    return bool(text) and all(unicodedata.category(c).startswith("P") for c in text)
