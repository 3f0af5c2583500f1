"""What may stand in the place of the paper's softmax and LayerNorm, to compare with."""

import math
from collections.abc import Callable

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from transduce.errors import UsageError

# In the place of eq. 1's softmax ----------------------------------------------------------------


def masked_relu(
    scores: Float[Tensor, "B h q k"], mask: Bool[Tensor, "#B #h #q k"] | None
) -> Float[Tensor, "B h q k"]:
    """max(0, s) / n over the n keys that may be seen, 0 for the others.

    Without the division by n outputs would grow with the length (Wortsman et al., 2023).
    """
    wide = torch.relu(scores.to(torch.promote_types(scores.dtype, torch.float32)))
    if mask is None:
        return wide / wide.size(-1)
    return wide.masked_fill(~mask, 0.0) / mask.sum(dim=-1, keepdim=True).clamp_min(1)


def masked_sparsemax(
    scores: Float[Tensor, "B h q k"], mask: Bool[Tensor, "#B #h #q k"] | None
) -> Float[Tensor, "B h q k"]:
    """The point of the simplex that is nearest to the scores (Martins and Astudillo, 2016, eq. 1).

    That is max(0, s − τ) with the τ that makes the sum 1; low scores become exactly 0.
    """
    z = below_maximum(scores, mask, 1.0)
    ordered = z.sort(dim=-1, descending=True).values
    sums, k = ordered.cumsum(dim=-1), torch.arange(1, z.size(-1) + 1).to(z)
    support = (1 + k * ordered > sums).sum(dim=-1, keepdim=True).clamp_min(1)  # 0 of NaN alone
    tau = (sums.gather(-1, support - 1) - 1) / support
    P = torch.relu(z - tau)  # its gradient on the support S is dP − mean over S of dP, as it must
    return P if mask is None else P.masked_fill(~mask, 0.0)


def masked_entmax(
    scores: Float[Tensor, "B h q k"], mask: Bool[Tensor, "#B #h #q k"] | None
) -> Float[Tensor, "B h q k"]:
    """Entmax with α = 1.5, between softmax and sparsemax (Peters et al., 2019); a library's.

    Raises:
        UsageError: if the library is not installed.
    """
    try:
        from entmax import entmax15
    except ImportError:
        raise UsageError(
            "model.attention_normaliser = 'entmax' needs the extra: pip install 'transduce[entmax]'"
        ) from None
    z = below_maximum(scores, mask, 2.0)
    P: Tensor = entmax15(z.nan_to_num(), dim=-1)  # which cannot do NaN
    P = P.masked_fill(z.isnan(), math.nan)
    return P if mask is None else P.masked_fill(~mask, 0.0)


def below_maximum(
    scores: Float[Tensor, "B h q k"], mask: Bool[Tensor, "#B #h #q k"] | None, reach: float
) -> Float[Tensor, "B h q k"]:
    """Return the scores less the highest one; what is hidden lies too low to get any weight.

    Args:
        scores: of each key for each query.
        mask: which keys may be seen.
        reach: what lies further than this below the maximum has weight 0.
    """
    wide = scores.to(torch.promote_types(scores.dtype, torch.float32))
    if mask is not None:
        wide = wide.masked_fill(~mask, torch.finfo(wide.dtype).min)
    z = wide - wide.amax(dim=-1, keepdim=True).detach()
    return z.clamp_min(-reach - 1.0)


Normaliser = Callable[[Tensor, Tensor | None], Tensor]
NORMALISERS: dict[str, Normaliser] = {
    "relu": masked_relu,
    "sparsemax": masked_sparsemax,
    "entmax": masked_entmax,
}
"""Each makes weights of scores; keys that may not be seen get none."""


# In the place of LayerNorm (§3.1) ---------------------------------------------------------------


class RMSNorm(nn.RMSNorm):
    """Divide the features of one position by their root mean square, then a gain."""

    def forward(
        self, x: Float[Tensor, "B q d_model"], real: Bool[Tensor, "B q"] | None = None
    ) -> Float[Tensor, "B q d_model"]:
        """Normalise each position (Zhang and Sennrich, 2019, eq. 4)."""
        return super().forward(x)


class BatchNorm(nn.Module):
    """Normalise each feature over all real positions of a batch (Ioffe and Szegedy, 2015).

    In training, what becomes of a position depends on the others. Afterwards it does not: then
    running means of the batches' means and variances stand in their place.
    """

    MOMENTUM = 0.1

    def __init__(self, d_model: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight, self.bias = (
            nn.Parameter(torch.ones(d_model)),
            nn.Parameter(torch.zeros(d_model)),
        )
        # Parameters without gradient: they are saved, averaged and resumed as all others are.
        self.running_mean = nn.Parameter(torch.zeros(d_model), requires_grad=False)
        self.running_variance = nn.Parameter(torch.ones(d_model), requires_grad=False)

    def forward(
        self, x: Float[Tensor, "B q d_model"], real: Bool[Tensor, "B q"] | None = None
    ) -> Float[Tensor, "B q d_model"]:
        """Normalise each feature; `real` is not padding, and None means that all are."""
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        mean: Tensor = self.running_mean
        variance: Tensor = self.running_variance
        if self.training:
            mean, variance = masked_mean_and_variance(wide, real)
            with torch.no_grad():
                self.running_mean.lerp_(mean, self.MOMENTUM)
                self.running_variance.lerp_(variance, self.MOMENTUM)
        normal = (wide - mean) / (variance + self.eps).sqrt()
        return (normal * self.weight + self.bias).to(x.dtype)


def masked_mean_and_variance(
    x: Float[Tensor, "B q d_model"], real: Bool[Tensor, "B q"] | None
) -> tuple[Float[Tensor, " d_model"], Float[Tensor, " d_model"]]:
    """Return mean and variance of each feature over the positions that are not padding."""
    if real is None:
        real = x.new_ones(x.shape[:2], dtype=torch.bool)
    there = real[:, :, None].to(x.dtype)
    n = there.sum().clamp_min(1.0)
    mean = (x * there).sum(dim=(0, 1)) / n
    return mean, ((x - mean).square() * there).sum(dim=(0, 1)) / n
