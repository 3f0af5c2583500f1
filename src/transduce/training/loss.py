"""Cross-entropy with label smoothing (§5.4)."""

from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from transduce.config import PAD

ROWS = 128
"""Positions looked at in one go: their probabilities stay in the processor's cache."""


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

    With q(c) = (1 − ε)[c = y] + ε / vocab, the loss of one position is −Σ_c q(c) log p(c), and its
    gradient by the logits is p − q. Positions whose label is PAD are out of the sums, of the count
    and of the gradient, whatever their logits are. Computed in float32 or wider.
    """
    smoothed, unsmoothed = _Smoothed.apply(logits.flatten(0, 1), tgt_out.flatten(), eps_ls)  # type: ignore[no-untyped-call]
    return Loss(smoothed, (tgt_out != PAD).sum(), unsmoothed)


class _Smoothed(torch.autograd.Function):
    """The loss, and its gradient p − q at the same time, so that p is computed once."""

    @staticmethod
    def forward(
        ctx: Any,
        logits: Float[Tensor, "tokens vocab"],
        labels: Int[Tensor, " tokens"],
        eps_ls: float,
    ) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
        wide = torch.promote_types(logits.dtype, torch.float32)
        smoothed = unsmoothed = logits.new_zeros((), dtype=wide)
        gradient = torch.empty_like(logits) if ctx.needs_input_grad[0] else None
        for first in range(0, len(labels), ROWS):
            some = slice(first, first + ROWS)
            y, real = labels[some, None], labels[some] != PAD
            log_p = logits[some].log_softmax(dim=-1, dtype=wide)
            right = -log_p.gather(1, y)[:, 0]
            loss = (1.0 - eps_ls) * right - eps_ls * log_p.mean(dim=-1)
            smoothed = smoothed + loss[real].sum()
            unsmoothed = unsmoothed + right[real].sum()
            if gradient is not None:
                p_minus_q = log_p.exp_().sub_(eps_ls / log_p.size(1))
                p_minus_q.scatter_add_(1, y, p_minus_q.new_full(y.shape, eps_ls - 1.0))
                if not real.all():
                    p_minus_q[~real] = 0.0
                gradient[some] = p_minus_q
        if gradient is not None:
            ctx.save_for_backward(gradient)
        ctx.mark_non_differentiable(unsmoothed)
        return smoothed, unsmoothed

    @staticmethod
    def backward(ctx: Any, d_smoothed: Tensor, _: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * d_smoothed.to(gradient.dtype), None, None
