"""Each row of an ablation against base: means, intervals, and whether it points the paper's way."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from transduce.config import HIGHER_IS_BETTER, Config
from transduce.evaluating import SAMPLES, Items
from transduce.evaluation.metrics import Statistics
from transduce.evaluation.metrics import statistics as statistics_of
from transduce.inspection.ablation_rows import BASE, PAPER, Paper, Row
from transduce.inspection.ablation_runs import Failure, Result

PERPLEXITY = "perplexity"
T_95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
"""Student's t that 95 % stay within, for 1 to 10 degrees of freedom; beyond, that of 10 is safe."""
UNCLEAR = "not distinguishable"

Results = Mapping[str, Mapping[int, Result | Failure]]
"""Of each row, what came of each seed."""
Samples = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Mean:
    """Of the seeds."""

    value: float
    half_width: float | None
    """Of the 95 % interval around it by Student's t; None of a single seed."""

    @classmethod
    def of(cls, values: Sequence[float]) -> "Mean":
        """Return the mean of some values, at least one."""
        if len(values) < 2:
            return cls(values[0], None)
        t = T_95[min(len(values) - 1, len(T_95)) - 1]
        error = statistics.stdev(values) / math.sqrt(len(values))
        return cls(statistics.fmean(values), t * error)

    def text(self, digits: int) -> str:
        """Return it as people write it."""
        around = "" if self.half_width is None else f" ± {self.half_width:.{digits}f}"
        return f"{self.value:,.{digits}f}{around}"


class Difference(NamedTuple):
    """How far a row is from base, on the mean of the seeds that both have."""

    value: float
    low: float
    high: float
    """95 % of the paired samples lie between these."""
    seeds: dict[int, float]
    """Of each seed alone."""

    @property
    def sign(self) -> int:
        """1 or -1 if all of the interval lies above or below zero, else 0."""
        return int(self.low > 0) - int(self.high < 0)

    def text(self, digits: int) -> str:
        """Return it as people write it."""
        return f"{self.value:+.{digits}f} [{self.low:+.{digits}f}, {self.high:+.{digits}f}]"


def difference(row: Mapping[int, Statistics], base: Mapping[int, Statistics]) -> Difference | None:
    """Compare a row with base by a paired bootstrap; None if they share no seed.

    Each sample draws sentences, the same ones for both systems and for all seeds, and, where there
    are several seeds, also as many pairs (row and base of one seed) as there are: what differs by
    the luck of the sentences or of the seed does not count as a difference.
    """
    shared = sorted(row.keys() & base.keys())
    if not shared:
        return None
    each = {seed: row[seed].total() - base[seed].total() for seed in shared}
    samples = np.stack([row[s].samples(SAMPLES) - base[s].samples(SAMPLES) for s in shared])
    draws = np.random.default_rng(1).integers(len(shared), size=(len(shared), SAMPLES))
    means: Samples = np.take_along_axis(samples, draws, axis=0).mean(axis=0)
    low, high = np.quantile(means, [0.025, 0.975])
    return Difference(statistics.fmean(each.values()), float(low), float(high), each)


Judgement = Literal["better", "worse", "equal"]


def judgement(sign: int, rising: bool) -> Judgement:
    """Say what a difference in a direction means for a score that is better if high (`rising`)."""
    return "equal" if sign == 0 else "better" if (sign > 0) == rising else "worse"


def verdict(ours: Judgement, paper: Judgement | None) -> str:
    """Say whether a row points the paper's way; `paper` is None where the paper has no number."""
    if ours == "equal":
        return UNCLEAR
    if paper is None:
        return ours
    if paper == "equal":
        return f"{ours}; equal in the paper"
    return f"{ours}, as in the paper" if ours == paper else f"{ours}, against the paper"


def in_paper(paper: Paper | None, column: str) -> Judgement | None:
    """Say how a row does against base in the paper: PPL for perplexity, else BLEU."""
    if paper is None:
        return None
    field = "perplexity" if column == PERPLEXITY else "bleu"
    change = getattr(paper, field) - getattr(PAPER[BASE], field)
    return judgement(int(change > 0) - int(change < 0), rising=field == "bleu")


@dataclass(frozen=True)
class Measured:
    """A row with all that is known of it."""

    row: Row
    results: dict[int, Result]
    failures: dict[int, str]
    differences: dict[str, Difference | None]
    """By column: perplexity and the metric; of base itself nothing."""

    def mean(self, column: str) -> Mean | None:
        """Return the mean of the seeds in a column; None if no run was finished."""
        values = [
            result.perplexity if column == PERPLEXITY else result.scores[column]
            for result in self.results.values()
        ]
        return Mean.of(values) if values else None

    def ours(self, column: str) -> Judgement | None:
        """Say how it does against base."""
        found = self.differences.get(column)
        return None if found is None else judgement(found.sign, rising(column))

    def verdict(self, column: str) -> str:
        """Say what came of it in a column."""
        ours = self.ours(column)
        return "–" if ours is None else verdict(ours, in_paper(self.row.paper, column))

    def record(self) -> dict[str, Any]:
        """Return everything but texts and single losses as a JSON object."""
        paper = self.row.paper
        return {
            "row": self.row.name,
            "changes": self.row.changes,
            "notes": list(self.row.notes),
            "paper": paper._asdict() if paper else None,
            "seeds": {
                str(seed): {
                    key: value
                    for key, value in asdict(result).items()
                    if key not in ("losses", "outputs")
                }
                for seed, result in self.results.items()
            },
            "failures": {str(seed): reason for seed, reason in self.failures.items()},
            "mean": {
                column: asdict(mean) for column in self.differences if (mean := self.mean(column))
            },
            "difference": {
                column: {**found._asdict(), "verdict": self.verdict(column)}
                for column, found in self.differences.items()
                if found
            },
        }


def rising(column: str) -> bool:
    """Say whether a column is better if it is high."""
    return column != PERPLEXITY and HIGHER_IS_BETTER[column]


def digits(column: str) -> int:
    """Return how many digits after the point a column is shown with."""
    return 3 if column == PERPLEXITY else 2


def gathered(row: Row, there: Mapping[int, Result | Failure]) -> Measured:
    """Return what came of each seed of a row, compared with nothing yet."""
    good = {seed: one for seed, one in there.items() if isinstance(one, Result)}
    bad = {seed: one.reason for seed, one in there.items() if isinstance(one, Failure)}
    return Measured(row, good, bad, {})


def measured(rows: Sequence[Row], results: Results, asked: Items, base: Config) -> list[Measured]:
    """Compare rows with base, which must be the first of them."""
    how = base.evaluation
    metric, tokenize = how.metrics[0], how.bleu_tokenize

    def made_of(one: Measured, column: str) -> dict[int, Statistics]:
        if column == PERPLEXITY:
            losses = {
                seed: np.array(result.losses, np.float64) for seed, result in one.results.items()
            }
            return {seed: Statistics(of_pairs, of_losses) for seed, of_pairs in losses.items()}
        return {
            seed: statistics_of(result.outputs, asked.references, metric, tokenize)
            for seed, result in one.results.items()
        }

    first, *others = [gathered(row, results.get(row.name, {})) for row in rows]
    columns = (PERPLEXITY, metric)
    level = {column: made_of(first, column) for column in columns}
    return [
        replace(first, differences=dict.fromkeys(columns)),
        *(
            replace(one, differences={c: difference(made_of(one, c), level[c]) for c in columns})
            for one in others
        ),
    ]


def of_losses(sums: npt.NDArray[np.float64]) -> float:
    """Return the perplexity that belongs to a sum of losses and a number of tokens."""
    return math.exp(min(float(sums[0] / sums[1]), 700.0))
