"""Table 1, rows 2 to 4: what may mix the positions in the place of self-attention.

Each of them stands inside the same residual block and, where it can, has the same number of
parameters: d_model · h · 2 (d_k + d_v), those of self-attention. Restricted self-attention has them
by itself; the others have an inner width c that comes nearest to it (`width_of_recurrence`,
`width_of_convolution`; biases are not counted).

None ever reads padding: recurrences run over the real positions only, convolutions read zeros in
their place, windows hide them.
"""

import math
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional

from transduce.config import ModelConfig


@dataclass(frozen=True)
class Past:
    """What a layer remembers of the target tokens so far: tensors, a row for each hypothesis."""

    tensors: tuple[Float[Tensor, "rows ..."], ...]

    def select(self, rows: Tensor) -> "Past":
        """Return the past whose hypothesis i is the present one in rows[i]."""
        return Past(tuple(one.index_select(0, rows) for one in self.tensors))

    def reorder(self, rows: Tensor, shared: int, length: int) -> "Past":
        """`select` for as many hypotheses as there are, each from a row of its own sentence.

        Args:
            rows: where each comes from.
            shared: how many first tokens the hypotheses of any one sentence have in common.
            length: how many tokens there are.
        """
        return self if shared == length else self.select(rows)


@runtime_checkable
class Mixer(Protocol):
    """What stands in the place of self-attention."""

    def mix(
        self, x: Float[Tensor, "B n d_model"], real: Bool[Tensor, "B n"]
    ) -> Float[Tensor, "B n d_model"]:
        """Return for each position what it takes from the others; `real` is not padding."""
        ...

    def start(self, x: Float[Tensor, "rows n d_model"]) -> Past:
        """Return what is remembered before the first position, for as many rows as x has."""
        ...

    def step(
        self, x: Float[Tensor, "rows 1 d_model"], past: Past, pos: int
    ) -> tuple[Float[Tensor, "rows 1 d_model"], Past]:
        """`mix` for the one new position `pos`; only where no position looks ahead."""
        ...


def budget(config: ModelConfig) -> int:
    """Return the number of parameters of self-attention, without biases."""
    return config.d_model * config.h * 2 * (config.d_k + config.d_v)


# Recurrence (row 2) -----------------------------------------------------------------------------

GATES = {"lstm": 4, "gru": 3}


def width_of_recurrence(config: ModelConfig, directions: int) -> int:
    """Return the c for which D (G (d_model c + c²) + c d_model) comes nearest to the budget.

    With D directions and G matrices of each kind in a cell: of the input, of the state before.
    """
    D, G, d = directions, GATES[config.cell], config.d_model
    b = D * (G + 1) * d
    return max(1, round((math.sqrt(b * b + 4 * D * G * budget(config)) - b) / (2 * D * G)))


class Recurrence(nn.Module):
    """h_t = cell(x_t, h_{t-1}), from left to right and, where the future may be seen, also back.

    The cells are the library's (Hochreiter and Schmidhuber, 1997, with a forget gate; Cho et al.,
    2014, as the library varies it). What both directions say of a position is joined by `W_O`.
    """

    def __init__(self, config: ModelConfig, causal: bool) -> None:
        super().__init__()
        c = width_of_recurrence(config, 1 if causal else 2)
        cell: type[nn.LSTM | nn.GRU] = nn.LSTM if config.cell == "lstm" else nn.GRU
        self.forwards = cell(config.d_model, c, batch_first=True)
        self.backwards = None if causal else cell(config.d_model, c, batch_first=True)
        self.W_O = nn.Linear(c if causal else 2 * c, config.d_model, bias=False)

    def mix(
        self, x: Float[Tensor, "B n d_model"], real: Bool[Tensor, "B n"]
    ) -> Float[Tensor, "B n d_model"]:
        """See `Mixer.mix`."""
        return self.W_O(self.states(x, real))

    def states(
        self, x: Float[Tensor, "B n d_model"], real: Bool[Tensor, "B n"]
    ) -> Float[Tensor, "B n states"]:
        """Return the state at each position, of both directions where there are two.

        Padding stands at the end, so going forwards it comes too late.
        """
        states, _ = self.forwards(x)
        if self.backwards is None:
            return states
        back = reversal(real)
        states_back, _ = self.backwards(taken(x, back))
        return torch.cat([states, taken(states_back, back)], dim=-1)

    def start(self, x: Float[Tensor, "rows n d_model"]) -> Past:
        """See `Mixer.start`: the state, and an LSTM's cell, are zero."""
        zero = x.new_zeros(len(x), self.forwards.hidden_size)
        return Past((zero, zero) if isinstance(self.forwards, nn.LSTM) else (zero,))

    def step(
        self, x: Float[Tensor, "rows 1 d_model"], past: Past, pos: int
    ) -> tuple[Float[Tensor, "rows 1 d_model"], Past]:
        """See `Mixer.step`."""
        before = tuple(one[None] for one in past.tensors)
        states, after = self.forwards(x, before if len(before) > 1 else before[0])
        return self.W_O(states), Past(
            tuple(one[0] for one in (after if isinstance(after, tuple) else (after,)))
        )


def reversal(real: Bool[Tensor, "B n"]) -> Tensor:
    """Return where each position lies when the real ones are read backwards; padding stays."""
    n, there = real.size(1), torch.arange(real.size(1), device=real.device)
    lengths = real.sum(dim=1, keepdim=True)
    return torch.where(there < lengths, lengths - 1 - there, there.expand(len(real), n))


def taken(x: Float[Tensor, "B n features"], places: Tensor) -> Float[Tensor, "B n features"]:
    """Return x[b, places[b, i]] at [b, i]."""
    return x.gather(1, places[:, :, None].expand(-1, -1, x.size(2)))


# Convolution (row 3) ----------------------------------------------------------------------------


def width_of_convolution(config: ModelConfig) -> int:
    """Return the c for which 2 k d_model c + c d_model comes nearest to the budget."""
    return max(1, round(budget(config) / (config.d_model * (2 * config.kernel + 1))))


def reach(config: ModelConfig, causal: bool) -> int:
    """Return how many inputs an output sees to its left, itself included.

    So far apart are the inputs of each dilated layer from those of the layer before: then every
    distance is a sum of steps in one direction, never beyond an end, and there are no gaps.
    """
    return config.kernel if causal else (config.kernel + 1) // 2


class Convolution(nn.Module):
    """(A ⊙ σ(B)) W_O, with A and B sums over the k inputs around a position, or up to it.

    The gate is that of Dauphin et al. (2017), as in the convolutional models that Table 2 compares
    with. `W` has rows for A, then for B; its columns are the inputs from left to right.
    """

    def __init__(self, config: ModelConfig, causal: bool, layer: int) -> None:
        super().__init__()
        c = width_of_convolution(config)
        self.causal = causal
        self.apart = reach(config, causal) ** layer if config.dilated else 1
        self.span = (config.kernel - 1) * self.apart
        self.W = nn.Linear(config.kernel * config.d_model, 2 * c)
        self.W_O = nn.Linear(c, config.d_model, bias=False)

    def mix(
        self, x: Float[Tensor, "B n d_model"], real: Bool[Tensor, "B n"]
    ) -> Float[Tensor, "B n d_model"]:
        """See `Mixer.mix`."""
        return self.W_O(self.gated(x, real))

    def gated(
        self, x: Float[Tensor, "B n d_model"], real: Bool[Tensor, "B n"]
    ) -> Float[Tensor, "B n c"]:
        """Return A ⊙ σ(B) at each position."""
        before = self.span if self.causal else self.span // 2
        x = x.masked_fill(~real[:, :, None], 0.0)
        return self.of_spans(functional.pad(x, (0, 0, before, self.span - before)))

    def of_spans(self, x: Float[Tensor, "B wide d_model"]) -> Float[Tensor, "B n c"]:
        """Return A ⊙ σ(B) for each span of inputs that lies in x."""
        n = x.size(1) - self.span
        inputs = [x[:, i : i + n] for i in range(0, self.span + 1, self.apart)]
        return functional.glu(self.W(torch.cat(inputs, dim=-1)))

    def start(self, x: Float[Tensor, "rows n d_model"]) -> Past:
        """See `Mixer.start`: what came before is zero."""
        return Past((x.new_zeros(len(x), self.span, x.size(2)),))

    def step(
        self, x: Float[Tensor, "rows 1 d_model"], past: Past, pos: int
    ) -> tuple[Float[Tensor, "rows 1 d_model"], Past]:
        """See `Mixer.step`: the last (k − 1) · distance inputs are remembered."""
        inputs = torch.cat([past.tensors[0], x], dim=1)
        return self.W_O(self.of_spans(inputs)), Past((inputs[:, 1:],))


# Windows (row 4) --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Windows:
    """Divides n positions into blocks, each with the keys that its queries may look at.

    A block of b queries needs b + r keys, or b + 2r where the future may be seen; so with b ≥ r the
    cost of all blocks grows as n · r.

    Args:
        n: positions.
        r: how far a position may look.
        causal: not ahead.
    """

    n: int
    r: int
    causal: bool

    @property
    def block(self) -> int:
        """Queries of a block; products of few rows are slow."""
        return min(self.n, max(self.r, 32))

    @property
    def count(self) -> int:
        """Number of blocks; the last one is filled up."""
        return -(-self.n // self.block)

    def of_queries(self, x: Float[Tensor, "B h n d"]) -> Float[Tensor, "blocks h block d"]:
        """Return the blocks of all sentences, one after the other."""
        whole = functional.pad(x, (0, 0, 0, self.count * self.block - self.n))
        return whole.unflatten(2, (self.count, self.block)).transpose(1, 2).flatten(0, 1)

    def of_keys(self, x: Float[Tensor, "B h n d"]) -> Float[Tensor, "blocks h keys d"]:
        """Return for each block what its queries may look at."""
        return self._spread(x, 2).permute(0, 2, 1, 4, 3).flatten(0, 1)

    def mask(self, real: Bool[Tensor, "B n"]) -> Bool[Tensor, "blocks 1 block keys"]:
        """Say which of a block's keys each of its queries may look at."""
        query = torch.arange(self.block, device=real.device)[:, None]
        key = torch.arange(self.block + self.r + self._ahead, device=real.device) - self.r
        band = (key >= query - self.r) & (key <= query + self._ahead)
        there = self._spread(real[:, None, :, None], 2)[:, 0, :, 0]  # B count keys
        return (band & there[:, :, None]).flatten(0, 1)[:, None]

    def joined(self, blocks: Float[Tensor, "blocks block d"]) -> Float[Tensor, "B n d"]:
        """Return the positions in a row again."""
        return blocks.unflatten(0, (-1, self.count)).flatten(1, 2)[:, : self.n]

    def dense(self, real: Bool[Tensor, "B n"]) -> Bool[Tensor, "B 1 n n"]:
        """Return the same as a mask over all pairs of positions."""
        there = torch.arange(self.n, device=real.device)
        distance = there - there[:, None]  # of the key from the query
        band = (distance >= -self.r) & (distance <= self._ahead)
        return (band & real[:, None])[:, None]

    @property
    def _ahead(self) -> int:
        return 0 if self.causal else self.r

    def _spread(self, x: Tensor, dim: int) -> Tensor:
        """Return windows of `dim`, one for each block, as a new last axis."""
        end = self.count * self.block - self.n + self._ahead
        whole = functional.pad(x, (0, 0, self.r, end))
        return whole.unfold(dim, self.block + self.r + self._ahead, self.block)
