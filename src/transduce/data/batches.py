"""Batches of at most so many tokens, of sentences of like length, in an order that can be repeated.

The order is a function of (seed, epoch) alone, so a run can be taken up anywhere.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Int
from torch import Tensor

from transduce.config import BOS, EOS, PAD

Indices = npt.NDArray[np.int64]
Lengths = npt.NDArray[np.int32]
Ids = Sequence[int] | npt.NDArray[np.int32]


@dataclass(frozen=True)
class Batch:
    """Padded ids: source + END; BEGIN + target; target + END."""

    src: Int[Tensor, "B S"]
    tgt_in: Int[Tensor, "B T"]
    tgt_out: Int[Tensor, "B T"]

    def to(self, device: torch.device) -> "Batch":
        """Return the batch on another device."""
        return Batch(*(ids.to(device) for ids in (self.src, self.tgt_in, self.tgt_out)))


def collate(pairs: Sequence[tuple[Ids, Ids]]) -> Batch:
    """Make a batch of pairs of ids (without BEGIN and END)."""
    return Batch(
        src=padded([src for src, _ in pairs], end=True),
        tgt_in=padded([tgt for _, tgt in pairs], begin=True),
        tgt_out=padded([tgt for _, tgt in pairs], end=True),
    )


def padded(rows: Sequence[Ids], begin: bool = False, end: bool = False) -> Int[Tensor, "B k"]:
    """Stack rows of ids, with BEGIN before or END after each, filled up with PAD."""
    width = max(map(len, rows), default=0) + begin + end
    ids = np.full((len(rows), width), PAD, dtype=np.int64)
    ids[:, :begin] = BOS
    for row, values in zip(ids, rows, strict=True):
        row[begin : begin + len(values)] = values
        if end:
            row[begin + len(values)] = EOS
    return torch.from_numpy(ids)


def batches(
    src_lengths: Lengths, tgt_lengths: Lengths, tokens: int, seed: int, epoch: int
) -> list[Indices]:
    """Divide a corpus into the batches of one epoch.

    Pairs of like length stand together, so that hardly anything is padding; which of them, and
    the order of the batches, is drawn anew in each epoch. Every pair is in exactly one batch.

    Args:
        src_lengths: pieces of each source, END not counted; likewise `tgt_lengths`.
        tgt_lengths: see above.
        tokens: at most so many target tokens in a batch, padding and END included, and at most
            twice as many source tokens. A pair longer than that makes a batch of its own.
        seed: of the run.
        epoch: from 0.

    Returns:
        The indices of each batch's pairs.
    """
    draw = np.random.default_rng([seed, epoch])
    shuffled = draw.permutation(len(tgt_lengths))
    order = shuffled[np.lexsort((src_lengths[shuffled], tgt_lengths[shuffled]))]
    sizes = np.maximum(tgt_lengths + 1, (src_lengths + 2) // 2)[order]
    divided: list[Indices] = []
    first, width = 0, 0
    for i, size in enumerate(sizes.tolist()):
        wider = max(width, size)
        if i > first and wider * (i - first + 1) > tokens:
            divided.append(order[first:i])
            first, wider = i, size
        width = wider
    if first < len(order):
        divided.append(order[first:])
    return [divided[i] for i in draw.permutation(len(divided))]
