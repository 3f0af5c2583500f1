"""How well links agree with those that people made: the alignment error rate."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Bool
from torch import Tensor

from transduce.data.files import read_lines
from transduce.data.text import one_line
from transduce.errors import TransduceError
from transduce.evaluating import SAMPLES
from transduce.inspection.alignment import Link, Prepared

Numbers = npt.NDArray[np.float64]
_LINK = re.compile("([0-9]{1,9})([-p])([0-9]{1,9})")
_ROW = re.compile(r"\s*([0-9]{1,9})\s+([0-9]{1,9})\s+([0-9]{1,9})(?:\s+([SP])(?:\s+[0-9.]+)?)?\s*")


# Gold -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Gold:
    """The links that people made: of each pair those that are sure, and all that are possible."""

    sure: list[frozenset[Link]]
    possible: list[frozenset[Link]]
    """Sure ones are possible."""
    first: int
    """From where the file counts words: 0 or 1."""
    certain: bool = True
    """Whether something in the file says so."""

    def __str__(self) -> str:
        sure = sum(map(len, self.sure))
        rest = sum(map(len, self.possible)) - sure
        return (
            f"{len(self.sure):,} pairs with {sure:,} sure and {rest:,} more possible links, "
            f"counted from {self.first}"
        )


@dataclass(frozen=True)
class _Read:
    """A link as it stands in a file."""

    pair: int
    link: Link
    sure: bool
    line: int


def read_gold(path: str, pairs: Sequence[Prepared]) -> Gold:
    """Read the links of pairs; the source's word comes first.

    Either a line for each pair, `3-4` for a sure link and `3p4` for one that is only possible, or a
    line for each link: `7 3 4`, the number of the pair first (from 1), `S` or `P` last if need be.
    A word 0 anywhere says that words count from 0; a word that is one too many, from 1.

    Raises:
        TransduceError: naming file and line, if a line is no such thing, or a pair or word is none.
    """
    lines = [one_line(line).strip() for line in read_lines(path)]
    rows = any(_ROW.fullmatch(line) for line in lines)
    found = list(_rows(path, lines, len(pairs)) if rows else _links(path, lines, len(pairs)))
    sizes = [(len(pair.source), len(pair.target)) for pair in pairs]

    def beyond(one: _Read, first: int) -> bool:
        return any(place - first >= n for place, n in zip(one.link, sizes[one.pair], strict=True))

    zero = next((one for one in found if 0 in one.link), None)
    many = next((one for one in found if beyond(one, 0)), None)
    first = int(zero is None and many is not None)
    for one in found:
        if beyond(one, first):
            why = f" as line {zero.line} has a word 0" if zero else ""
            raise TransduceError(
                f"{path}, line {one.line}: link {one.link[0]}-{one.link[1]}, but the pair has "
                f"{' and '.join(map(str, sizes[one.pair]))} words (counted from {first}{why})"
            )
    sure, possible = ([set[Link]() for _ in pairs] for _ in range(2))
    for one in found:
        link = (one.link[0] - first, one.link[1] - first)
        possible[one.pair].add(link)
        if one.sure:
            sure[one.pair].add(link)
    certain = zero is not None or many is not None or not found
    return Gold([*map(frozenset, sure)], [*map(frozenset, possible)], first, certain)


def _links(path: str, lines: Sequence[str], pairs: int) -> Iterator[_Read]:
    """Read a line for each pair."""
    if len(lines) != pairs:
        raise TransduceError(
            f"{path} has {len(lines)} lines, but there are {pairs} pairs: "
            "line n of it must hold the links of pair n"
        )
    for number, line in enumerate(lines, start=1):
        for word in line.split():
            if not (match := _LINK.fullmatch(word)):
                raise TransduceError(
                    f"{path}, line {number}: {word[:50]!r} is no link such as 3-4, or 3p4 for one "
                    "that is only possible"
                )
            link = (int(match[1]), int(match[3]))
            yield _Read(number - 1, link, match[2] == "-", number)


def _rows(path: str, lines: Sequence[str], pairs: int) -> Iterator[_Read]:
    """Read a line for each link."""
    for number, line in enumerate(lines, start=1):
        if not line:
            continue
        if not (match := _ROW.fullmatch(line)):
            raise TransduceError(
                f"{path}, line {number}: {line[:50]!r} is not the number of a pair and of two "
                "words, such as 7 3 4, or 7 3 4 P for a link that is only possible"
            )
        if not 1 <= int(match[1]) <= pairs:
            raise TransduceError(
                f"{path}, line {number}: there is no pair {int(match[1])}, there are {pairs}, "
                "counted from 1"
            )
        link = (int(match[2]), int(match[3]))
        yield _Read(int(match[1]) - 1, link, match[4] != "P", number)


# Agreement --------------------------------------------------------------------------------------


def agreement(
    there: Bool[Tensor, "*choices t s"], sure: frozenset[Link], possible: frozenset[Link]
) -> npt.NDArray[np.int64]:
    """Return |A|, |S|, |A ∩ S| and |A ∩ P| of links A (last axis), for each of some choices."""
    S, P = (torch.zeros(there.shape[-2:], dtype=torch.bool) for _ in range(2))
    for matrix, links in ((S, sure), (P, possible)):
        for s, t in links:
            matrix[t, s] = True
    sets = (there, S.expand_as(there), there & S, there & P)
    return torch.stack([one.sum(dim=(-2, -1)) for one in sets], dim=-1).numpy()


def error_rates(counts: npt.NDArray[Any]) -> tuple[Numbers, Numbers, Numbers]:
    """Return alignment error rate, precision and recall of counts (last axis), in per cent.

    AER = 1 − (|A ∩ S| + |A ∩ P|) / (|A| + |S|) (Och and Ney, 2003): 0 if all sure links are found
    and none that is not even possible; also where there is nothing to find and nothing is found.
    Precision |A ∩ P| / |A| and recall |A ∩ S| / |S| are NaN where there is nothing to divide by.
    """
    A, S, right, allowed = np.moveaxis(counts.astype(float), -1, 0)
    with np.errstate(invalid="ignore"):
        error = np.where(A + S > 0, 1 - (right + allowed) / (A + S), 0.0)
        rates = [np.asarray(100 * rate) for rate in (error, allowed / A, right / S)]
    return rates[0], rates[1], rates[2]


def interval(counts: npt.NDArray[Any]) -> Numbers:
    """Return where 95 % of the error rates of samples lie that are drawn from the pairs.

    Args:
        counts: of `agreement`, pairs first.

    Returns:
        The lower and the upper end, first; the same pairs are drawn for all choices.
    """
    n = len(counts)
    drawn = np.random.default_rng(1).multinomial(n, np.full(n, 1 / n), size=SAMPLES)
    error, _, _ = error_rates(np.tensordot(drawn, counts, axes=1))
    return np.quantile(error, [0.025, 0.975], axis=0)
