"""Cross-entropy with label smoothing (§5.4)."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from transduce.config import PAD


class Loss(NamedTuple):
    """Sums over the real tokens of a batch; divide by `tokens` yourself, once per update."""

    sum: Float[Tensor, ""]
    """The smoothed loss, in nats: what is minimised."""
    tokens: Int[Tensor, ""]
    """Number of real target tokens, END included."""
    unsmoothed: Float[Tensor, ""]
    """The plain negative log-likelihood (no gradient), which perplexity is reported from."""


def label_smoothed(
    logits: Float[Tensor, "B T vocab"], tgt_out: Int[Tensor, "B T"], eps_ls: float = 0.1
) -> Loss:
    """Compare logits with a target that has 1 − ε on the right class and ε spread over all.

    With q(c) = (1 − ε)[c = y] + ε / vocab, the loss of one position is −Σ_c q(c) log p(c), and
    because log p(c) = logit(c) − logsumexp(logits) this is

        logsumexp(logits) − (1 − ε) logit(y) − ε mean(logits).

    Positions whose label is PAD are out of the sums and of the count (their logits are not even
    looked at). Computed in float32 or wider.
    """
    real = tgt_out != PAD
    if real.all():  # most batches have no padding
        logits, labels = logits.flatten(0, 1), tgt_out.flatten()  # tokens vocab
    else:
        logits, labels = logits[real], tgt_out[real]
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    normalizer = logits.logsumexp(dim=-1)
    right = logits.gather(1, labels[:, None])[:, 0]
    smoothed = normalizer - (1.0 - eps_ls) * right
    if eps_ls > 0.0:
        smoothed = smoothed - eps_ls * logits.mean(dim=-1)
    return Loss(smoothed.sum(), real.sum(), (normalizer - right).detach().sum())
