"""Which decoder layer and which heads align words best, by links that people made."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from transduce.data.text import Pair
from transduce.decoding.translator import Translator
from transduce.errors import TransduceError
from transduce.evaluating import SAMPLES
from transduce.inspection.alignment import (
    Choice,
    Units,
    attended,
    choose,
    linked,
    model_of,
    prepared,
    word_attention,
)
from transduce.inspection.alignment_error import (
    Gold,
    Numbers,
    agreement,
    error_rates,
    interval,
    read_gold,
)
from transduce.inspection.study import Section, Study, Table

Place = tuple[int, int, int]
"""Of a choice: layer from 0, 0 for the mean of the heads or a head from 1, whether one later."""


def choice_at(place: Place) -> Choice:
    """Return the choice that stands in a place."""
    layer, head, later = place
    return Choice(layer + 1, (head,) if head else (), bool(later))


def lowest(error: Numbers) -> Place:
    """Return the place of the lowest error; of equal ones the first."""
    layer, head, later = np.unravel_index(int(error.argmin()), error.shape)
    return int(layer), int(head), int(later)


@dataclass(frozen=True)
class Search:
    """How well each choice agrees with gold links."""

    gold: Gold
    counts: npt.NDArray[np.int64]
    """[pairs, layers, 1 + heads, 2, 4]: of the mean of the heads and of each head, at the step that
    produces a word and one step later, what `agreement` gives."""
    usual: Choice
    """What is taken where there are no gold links."""
    units: Units
    threshold: float | None

    @cached_property
    def rates(self) -> tuple[Numbers, Numbers, Numbers]:
        """See `error_rates`; [layers, 1 + heads, 2]."""
        return error_rates(self.counts.sum(axis=0))

    @cached_property
    def intervals(self) -> Numbers:
        """See `interval`; [2, layers, 1 + heads, 2]."""
        return interval(self.counts)

    @property
    def best(self) -> Choice:
        """The choice of the lowest error rate."""
        return choice_at(lowest(self.rates[0]))

    def record(self, place: Place) -> dict[str, Any]:
        """Return a choice and its rates as a JSON object."""
        choice = choice_at(place)
        numbers = [float(rate[place]) for rate in self.rates]
        error, precision, recall = (None if math.isnan(x) else round(x, 4) for x in numbers)
        return {
            "layer": choice.layer, "heads": list(choice.heads), "later": choice.later,
            "error": error, "interval": self.intervals[(slice(None), *place)].round(4).tolist(),
            "precision": precision, "recall": recall,
        }  # fmt: skip

    def halves(self) -> tuple[float, float, float] | None:
        """Return the error rate, with its interval, of choices made on the other half of the pairs.

        None if there is one pair alone.
        """
        n = len(self.counts)
        if n < 2:
            return None
        first, second = self.counts[: n // 2], self.counts[n // 2 :]
        found = np.concatenate([
            half[(slice(None), *lowest(error_rates(other.sum(axis=0))[0]))]
            for half, other in ((first, second), (second, first))
        ])  # fmt: skip
        low, high = interval(found)
        return float(error_rates(found.sum(axis=0))[0]), float(low), float(high)


def search(
    translator: Translator,
    pairs: Sequence[Pair],
    path: str,
    units: Units = "words",
    threshold: float | None = None,
    tell: Callable[[int], None] = lambda pairs: None,
) -> Search:
    """Compare the links of each layer and head, and of their means, with gold ones.

    Args:
        translator: the model; its engine is torch.
        pairs: sources with their translations.
        path: of the gold links, see `read_gold`.
        units: what the gold links mean.
        threshold: see `alignment.linked`.
        tell: told how many more pairs are done, now and then.

    Raises:
        UsageError: if the engine shows no attention.
        TransduceError: if there are no pairs, or `read_gold` does.
    """
    model = model_of(translator)
    some = prepared(translator, pairs, units)
    if not some:
        raise TransduceError(f"{path}: there are no pairs whose links it could hold")
    gold = read_gold(path, some)
    N, h = model.config.N_decoder, model.config.h
    counts = np.zeros((len(some), N, 1 + h, 2, 4), dtype=np.int64)
    counts[..., 1] = np.array([len(links) for links in gold.sure]).reshape(-1, 1, 1, 1)
    for i, weights in attended(translator, some, range(1, N + 1)):
        for later in (False, True):
            each = word_attention(weights, some[i].source, some[i].target, later)
            there = linked(torch.cat([each.mean(dim=1, keepdim=True), each], dim=1), threshold)
            counts[i, :, :, int(later)] = agreement(there, gold.sure[i], gold.possible[i])
        tell(1)
    return Search(gold, counts, choose(model, None), units, threshold)


def study(found: Search, name: str) -> Study:
    """Say which choice agrees best with gold links, in tables and numbers.

    Args:
        found: by `search`.
        name: of the model.
    """
    _, layers, heads, _, _ = found.counts.shape
    error, halves = found.rates[0], found.halves()
    best = lowest(error)

    def cell(place: Place) -> str:
        low, high = found.intervals[(slice(None), *place)]
        head = f" (head {place[1]})" if place[1] else ""
        return f"{error[place]:.1f} [{low:.1f}, {high:.1f}]{head}{' best' * (place == best)}"

    def best_head(layer: int, later: int) -> Place:
        return (layer, 1 + int(error[layer, 1:, later].argmin()), later)

    shifts = ("", ", one step later")
    columns = [f"{of}{shift}" for of in ("mean of heads", "best head") for shift in shifts]
    rows = [
        [f"{layer + 1}", *(cell((layer, 0, later)) for later in (0, 1)),
         *(cell(best_head(layer, later)) for later in (0, 1))]
        for layer in range(layers)
    ]  # fmt: skip
    tables = [Table(["layer", *columns], rows, "Alignment error rate by decoder layer")]
    for later, shift in enumerate(shifts):
        rows = [
            [f"{layer + 1}", *(f"{error[layer, head, later]:.1f}" for head in range(1, heads))]
            for layer in range(layers)
        ]
        names = [f"head {head}" for head in range(1, heads)]
        tables.append(Table(["layer", *names], rows, f"Alignment error rate of each head{shift}"))
    return Study(
        f"Word alignments of {name} by attention",
        "How well the attention of a translation's words to those of its source agrees with links "
        "that people made.",
        [Section("Agreement with gold links", list(_sentences(found)), tables)],
        str(found.gold),
        {
            "pairs": len(found.counts),
            "counted_from": found.gold.first,
            "units": found.units,
            "threshold": found.threshold,
            "best": found.record(best),
            "usual": found.record((found.usual.layer - 1, 0, 0)),
            "halves": halves and {"error": halves[0], "interval": halves[1:]},
            "choices": [
                found.record((layer, head, later))
                for layer, head, later in np.ndindex(layers, heads, 2)
            ],
        },
    )


def _sentences(found: Search) -> Iterator[str]:
    """Say what is best, what it is worth, and what all of this is not."""
    best, usual = lowest(found.rates[0]), (found.usual.layer - 1, 0, 0)
    for what, place in (("Best", best), ("Without gold links", usual)):
        error, precision, recall = (rate[place] for rate in found.rates)
        low, high = found.intervals[(slice(None), *place)]
        yield (
            f"{what}: {choice_at(place)}: error rate {error:.1f} [{low:.1f}, {high:.1f}], "
            f"precision {precision:.1f}, recall {recall:.1f}."
        )
    if halves := found.halves():
        yield (
            "The best of many looks better than it is. Chosen on one half of the pairs and "
            "measured on the other, both ways: error rate {:.1f} [{:.1f}, {:.1f}].".format(*halves)
        )
    yield (
        "Error rate: 1 − (|A ∩ S| + |A ∩ P|) / (|A| + |S|) in per cent, of links A, sure gold "
        f"links S and possible ones P; in brackets where 95 % of the rates of {SAMPLES:,} samples "
        "lie that are drawn from the pairs."
    )
    yield (
        "Attention is a rough alignment, spread over heads and sometimes one step off, and it is "
        "no explanation of what the model did."
    )
