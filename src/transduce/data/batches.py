"""Batches of at most so many tokens, of sentences of like length, in an order that can be repeated.

The order is a function of (seed, epoch) alone, so a run can be taken up anywhere; and it is found
without loading the corpus. An epoch is a shuffled list of short stretches of neighbouring pairs.
Some hundred of these at a time make a window, whose pairs are shuffled, sorted by length, and
divided into batches.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Int
from torch import Tensor

from transduce.config import BOS, EOS, PAD
from transduce.data.corpus import Encoded, Origin

Indices = npt.NDArray[np.int64]
Lengths = npt.NDArray[np.int32]
Ids = Sequence[int] | npt.NDArray[np.int32]
PairIds = tuple[Ids, Ids]
Sample = Callable[[Indices, int], Sequence[PairIds]]
"""Cuts the pairs of some indices into pieces anew; the number says which way of many."""

STRETCH = 500  # neighbouring pairs that stay together until they are in a window
WINDOW = 200_000  # pairs that are sorted together
SAMPLED_WINDOW = 20_000  # the same, where each pair must first be cut into pieces


@dataclass(frozen=True)
class Batch:
    """Padded ids: source + END; BEGIN + target; target + END."""

    src: Int[Tensor, "B S"]
    tgt_in: Int[Tensor, "B T"]
    tgt_out: Int[Tensor, "B T"]

    def to(self, device: torch.device) -> "Batch":
        """Return the batch on another device; to a GPU it travels while that computes."""
        rows = (self.src, self.tgt_in, self.tgt_out)
        if device.type != "cuda":
            return Batch(*(ids.to(device) for ids in rows))
        return Batch(*(ids.pin_memory().to(device, non_blocking=True) for ids in rows))


def collate(pairs: Sequence[PairIds]) -> Batch:
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


class Place(NamedTuple):
    """How far an epoch has come: whole windows, and batches of the window after them."""

    window: int = 0
    batch: int = 0


START = Place()


class Group(NamedTuple):
    """The batches of one update: those of this process, and where all of them end."""

    batches: list[list[PairIds]]
    indices: list[Indices]
    after: Place


@dataclass(frozen=True)
class Epochs:
    """The order in which training goes through a corpus.

    Every pair is in exactly one batch of an epoch (weights apart), and every batch is given to
    exactly one process.

    Args:
        pairs: the corpus.
        tokens: at most so many target tokens in a batch, padding and END included, and at most
            twice as many source tokens. A pair longer than that makes a batch of its own.
        seed: of the run.
        temperature: evens out origins of unequal size (`data.temperature`).
        sample: cuts pairs into other pieces in each epoch, if that is wanted.
    """

    pairs: Encoded
    tokens: int
    seed: int
    temperature: float = 1.0
    sample: Sample | None = None

    def groups(
        self, epoch: int, start: Place = START, size: int = 1, rank: int = 0, ranks: int = 1
    ) -> Iterator[Group]:
        """Yield what is left of an epoch, in groups of `size` batches for each process.

        All processes get equally many groups; in the last one some may get fewer batches or none.

        Args:
            epoch: from 0.
            start: where to go on.
            size: batches of each process in a group (micro-batches of an update).
            rank: number of this process, of `ranks`.
            ranks: see above.
        """
        stream = self._batches(epoch, start)
        while group := list(islice(stream, size * ranks)):
            own = [ids() for _, _, ids in group[rank::ranks]]
            indices = [chosen for _, chosen, _ in group[rank::ranks]]
            yield Group(own, indices, group[-1][0])

    def _batches(
        self, epoch: int, start: Place
    ) -> Iterator[tuple[Place, Indices, Callable[[], list[PairIds]]]]:
        """Yield the place after each batch, its indices, and a function that reads its ids."""
        rows = SAMPLED_WINDOW if self.sample else WINDOW
        stretches = epoch_stretches(self.pairs.origins, self.temperature, self.seed, epoch)
        for number, window in enumerate(windows(stretches, rows)):
            if number < start.window:
                continue
            self.pairs.close()
            draw = np.random.default_rng([self.seed, epoch, number])
            indices = np.concatenate([np.arange(first, end) for first, end in window])
            if self.sample:
                sampled = self.sample(indices, int(draw.integers(1 << 31)))
                src, tgt = (
                    np.array([len(pair[side]) for pair in sampled], np.int32) for side in (0, 1)
                )
            else:
                lengths = [self.pairs.lengths(first, end) for first, end in window]
                src, tgt = (np.concatenate(side) for side in zip(*lengths, strict=True))
            divided = divide(src, tgt, self.tokens, draw)
            skipped = start.batch if number == start.window else 0
            for batch, chosen in enumerate(divided[skipped:], start=skipped + 1):
                if self.sample:
                    read = partial_list(sampled, chosen)
                else:
                    read = partial_list(self.pairs, indices[chosen])
                yield Place(number, batch), indices[chosen], read


def partial_list(
    pairs: Encoded | Sequence[PairIds], chosen: Indices
) -> Callable[[], list[PairIds]]:
    """Return a function that reads the chosen pairs."""
    return lambda: [pairs[int(i)] for i in chosen]


def epoch_stretches(
    origins: Sequence[Origin], temperature: float, seed: int, epoch: int
) -> list[tuple[int, int]]:
    """Return the stretches of pairs (first, end) of an epoch, in its order.

    An origin of weight 1 is gone through once. Of one of another weight w, an epoch takes the next
    w times its pairs of an endless row of such passes, so that nothing is left out in the long
    run: with w = 0.5 two epochs together take each pair once.
    """
    stretches: list[tuple[int, int]] = []
    shares = _repeats(origins, temperature)
    for number, (origin, share) in enumerate(zip(origins, shares, strict=True)):
        size = origin.end - origin.first
        begin, stop = (int(round(count * share * size, 6)) for count in (epoch, epoch + 1))
        for turn in range(begin // max(1, size), -(-stop // max(1, size))):
            draw = np.random.default_rng([seed, number, turn])
            firsts = draw.permutation(np.arange(origin.first, origin.end, STRETCH))
            place = turn * size
            for first in firsts.tolist():
                end = min(first + STRETCH, origin.end)
                low, high = max(begin - place, 0), min(stop - place, end - first)
                if low < high:
                    stretches.append((first + low, first + high))
                place += end - first
    order = np.random.default_rng([seed, epoch]).permutation(len(stretches))
    return [stretches[i] for i in order]


def _repeats(origins: Sequence[Origin], temperature: float) -> list[float]:
    """Return how often an epoch takes each origin's pairs."""
    sizes = [origin.end - origin.first for origin in origins]
    evened = [size ** (1 / temperature) for size in sizes]
    scale = sum(sizes) / max(1e-9, sum(evened))
    return [
        origin.weight * (scale * even / size if temperature != 1 else 1.0) if size else 0.0
        for origin, size, even in zip(origins, sizes, evened, strict=True)
    ]


def windows(stretches: Sequence[tuple[int, int]], rows: int) -> Iterator[list[tuple[int, int]]]:
    """Divide the stretches of an epoch into windows of about so many pairs."""
    window: list[tuple[int, int]] = []
    count = 0
    for first, end in stretches:
        window.append((first, end))
        count += end - first
        if count >= rows:
            yield window
            window, count = [], 0
    if window:
        yield window


def divide(
    src_lengths: Lengths, tgt_lengths: Lengths, tokens: int, draw: np.random.Generator
) -> list[Indices]:
    """Divide pairs into batches of like length, in random order.

    Which pairs of like length stand together, and the order of the batches, is drawn at random.

    Returns:
        The places of each batch's pairs.
    """
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
