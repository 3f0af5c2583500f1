"""Search, matrix, alignment and comparison of the inspection page, on traces made by hand."""

import json
import math
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.test_search import AVERAGE, NONE, S1_ALL, A, B, s1, stub
from transduce.config import EOS, DecodingConfig, ModelConfig
from transduce.data.tokenizer import train_tokenizer
from transduce.decoding.constraints import Constraints
from transduce.decoding.recording import Record, Recorder
from transduce.decoding.search import Penalty, beam_search
from transduce.decoding.translator import Translator, translator_of
from transduce.inspection.pages import page
from transduce.inspection.tracing import trace
from transduce.model import Transformer

pytestmark = pytest.mark.browser

SIZES = {"desk": (1440, 900), "phone": (360, 780)}
NAMES = {A: "A", B: "B", EOS: "END"}
Numbers = Sequence[Sequence[float]]


# Traces made by hand ----------------------------------------------------------------------------


def named(text: str) -> dict[str, Any]:
    return {"id": 0, "text": text, "special": text in ("BEGIN", "END")}


def side(words: Sequence[Sequence[str]], end: bool = True) -> dict[str, Any]:
    """A side of words, each made of pieces."""
    pieces, found = [piece for word in words for piece in word], []
    for word in words:
        at = sum(len(one["pieces"]) for one in found)
        found.append({"text": "".join(word), "pieces": list(range(at, at + len(word)))})
    return {
        "text": " ".join(map("".join, words)),
        "tokens": [named(piece) for piece in [*pieces, *["END"] * end]],
        "words": found,
        "pieces": [{"text": piece, "pieces": [i]} for i, piece in enumerate(pieces)],
    }


def by_hand(
    source: Sequence[Sequence[str]] = (("ab",), ("c",)),
    target: Sequence[Sequence[str]] = (("x",), ("y", "z")),
    weights: dict[str, Tensor] | None = None,
    decodings: Sequence[dict[str, Any]] = (),
    **more: Any,
) -> dict[str, Any]:
    """A trace with what these views read. Weights: layers, heads, queries, keys."""
    src, tgt = side(source), side(target)
    S, T = len(src["tokens"]), len(tgt["tokens"])
    sizes = {"encoder_self": (S, S), "decoder_self": (T, T), "cross": (T, S)}
    own = {kind: torch.full((2, 2, q, k), 1 / k) for kind, (q, k) in sizes.items()}
    own["decoder_self"] = own["decoder_self"].tril() / own["decoder_self"].tril().sum(-1, True)
    own |= weights or {}
    tgt["inputs"] = [named("BEGIN"), *tgt["tokens"][:-1]]
    tgt |= {"given": not decodings, "log_probabilities": [-0.5] * T}
    return {
        "source": src,
        "target": tgt,
        "model": {"h": own["cross"].size(1), "N_encoder": 2, "N_decoder": len(own["cross"]),
                  "attention_normaliser": "softmax"},
        "attention": {k: {"layers": list(range(len(w))), "weights": w} for k, w in own.items()},
        "stations": dict.fromkeys(own),
        "badges": {},
        "cannot_show": [],
        "decodings": list(decodings),
    } | more  # fmt: skip


def searched(
    scorer: Callable[[tuple[int, ...]], dict[int, float]],
    limit: int,
    beam: int,
    n_best: int = 1,
    penalty: Penalty = NONE,
    keys: int = 3,
    **more: Any,
) -> dict[str, Any]:
    """The record of a search, as a trace has it; every step looks at the source's first token."""
    recorder = Recorder(penalty, limit, beam)
    beam_search(stub([scorer]), [limit], beam, n_best, penalty, watch=recorder, **more)
    return as_decoding(recorder.record, keys)


def as_decoding(record: Record, keys: int) -> dict[str, Any]:
    def token(id: int) -> dict[str, Any]:
        return named(NAMES.get(id, f"<{id}>")) | {"id": id}

    look = torch.tensor([0.75, *[0.25 / (keys - 1)] * (keys - 1)])
    steps = []
    for step in record.steps:
        live = []
        for one in step.live:
            there = [(i, x) for i, x in zip(one.tokens, one.log_probabilities, strict=True)
                     if x > -math.inf]  # fmt: skip
            live.append({"id": one.id, "tokens": [token(i) for i, _ in there],
                         "log_probabilities": [x for _, x in there], "attention": look})  # fmt: skip
        steps.append(
            {
                "live": live,
                "candidates": [vars(c) | {"token": token(c.token)} for c in step.candidates],
            }
        )
    outputs = [
        {
            "id": id,
            "text": "".join(NAMES[i] for i in output.tokens if i != EOS),
            "n": len(output.tokens),
            "log_probability": output.log_probability,
            "divisor": record.penalty(len(output.tokens)),
            "score": output.score,
            "finished": output.finished,
        }
        for id, output in zip(record.output_ids, record.outputs, strict=True)
    ]
    return {
        "method": record.method, "beam_size": record.beam_size, "penalty": vars(record.penalty),
        "limit": record.limit, "attention_layer": 0, "steps": steps,
        "end": record.end and vars(record.end), "outputs": outputs,
    }  # fmt: skip
