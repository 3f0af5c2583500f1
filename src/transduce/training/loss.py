"""Cross-entropy with label smoothing (§5.4)."""

from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from transduce.config import PAD

CHUNK = 1024
"""Positions whose logits exist at the same time."""
ROWS = 64
"""Positions looked at in one go on a CPU: their probabilities stay in its cache."""


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

    With q(c) = (1 − ε)[c = y] + ε / vocab, the loss of one position is −Σ_c q(c) log p(c).
    Positions whose label is PAD are out of the sums, of the count and of the gradient, whatever
    their logits are. Computed in float32 or wider.
    """
    real = tgt_out != PAD
    log_p = logits[real].log_softmax(-1, torch.promote_types(logits.dtype, torch.float32))
    right = -log_p.gather(1, tgt_out[real][:, None]).sum()
    smoothed = (1.0 - eps_ls) * right - eps_ls * log_p.mean(dim=-1).sum()
    return Loss(smoothed, real.sum(), right.detach())


def projected_loss(
    states: Float[Tensor, "B T d_model"],
    W: Float[Tensor, "vocab d_model"],
    tgt_out: Int[Tensor, "B T"],
    eps_ls: float = 0.1,
    b: Float[Tensor, " vocab"] | None = None,
) -> Loss:
    """`label_smoothed(states Wᵀ + b, tgt_out, eps_ls)`, without ever holding all of the logits.

    The gradient by the logits is p − q. It is computed together with the loss, chunk by chunk, in
    the place of the logits, and at once multiplied out into the gradients of states, W and b.
    """
    smoothed, unsmoothed = _Projected.apply(states.flatten(0, 1), W, b, tgt_out.flatten(), eps_ls)  # type: ignore[no-untyped-call]
    return Loss(smoothed, (tgt_out != PAD).sum(), unsmoothed)


class _Projected(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        states: Float[Tensor, "tokens d_model"],
        W: Float[Tensor, "vocab d_model"],
        b: Float[Tensor, " vocab"] | None,
        labels: Int[Tensor, " tokens"],
        eps_ls: float,
    ) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
        kind = states.device.type
        narrow = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else W.dtype
        x, narrow_W, narrow_b = states.to(narrow), W.to(narrow), b if b is None else b.to(narrow)
        d_states = torch.empty_like(states) if ctx.needs_input_grad[0] else None
        d_W = torch.zeros_like(W) if ctx.needs_input_grad[1] else None
        d_b = torch.zeros_like(b) if b is not None and ctx.needs_input_grad[2] else None
        wide = torch.promote_types(narrow, torch.float32)
        sums = torch.zeros(2, dtype=wide, device=states.device)
        for first in range(0, len(labels), CHUNK):
            chunk = slice(first, first + CHUNK)
            logits = functional.linear(x[chunk], narrow_W, narrow_b)
            sums += _p_minus_q(logits, labels[chunk], eps_ls)
            if d_states is not None:
                d_states[chunk] = logits @ narrow_W
            if d_W is not None:
                d_W += logits.t() @ x[chunk]
            if d_b is not None:
                d_b += logits.sum(dim=0, dtype=d_b.dtype)
        ctx.save_for_backward(d_states, d_W, d_b)
        ctx.mark_non_differentiable(sums[1])
        return sums[0], sums[1]

    @staticmethod
    def backward(
        ctx: Any, d_smoothed: Tensor, _: Tensor
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None, None, None]:
        d_states, d_W, d_b = (d if d is None else d.mul_(d_smoothed) for d in ctx.saved_tensors)
        return d_states, d_W, d_b, None, None


def _p_minus_q(
    logits: Float[Tensor, "tokens vocab"], labels: Int[Tensor, " tokens"], eps_ls: float
) -> Float[Tensor, "2"]:
    """Overwrite logits by p − q, zero where the label is PAD; return smoothed and plain loss."""
    wide = torch.promote_types(logits.dtype, torch.float32)
    sums = torch.zeros(2, dtype=wide, device=logits.device)
    rows = ROWS if logits.device.type == "cpu" else len(labels)
    for first in range(0, len(labels), rows):
        some = slice(first, first + rows)
        y, real = labels[some, None], (labels[some, None] != PAD)
        z = logits[some].to(wide)
        p = z.softmax(dim=-1)
        # log Σ exp z = max z - log max p: no second pass of exponentials.
        normaliser = z.amax(dim=-1, keepdim=True) - p.amax(dim=-1, keepdim=True).log()
        plain = normaliser - z.gather(1, y)
        smoothed = (1.0 - eps_ls) * plain + eps_ls * (normaliser - z.mean(dim=-1, keepdim=True))
        sums += torch.stack([smoothed[real].sum(), plain[real].sum()])
        p.sub_(eps_ls / p.size(1)).scatter_add_(1, y, torch.full_like(plain, eps_ls - 1.0))
        if not real.all():
            p.masked_fill_(~real, 0.0)
        logits[some] = p
    return sums
