"""Scores of outputs against references: BLEU, chrF and TER by sacrebleu, error rates by us.

Every item has one or several references. Text is scored as it is shown, without any tokenization
but the one that the signature names.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from transduce.config import HIGHER_IS_BETTER
from transduce.errors import TransduceError, UsageError, did_you_mean

if TYPE_CHECKING:
    from sacrebleu.metrics.base import Metric
    from sacrebleu.metrics.bleu import BLEU

SIGNIFICANT = 0.05
"""A difference that chance would make less often than this is called one."""

References = Sequence[Sequence[str]]
"""For each item its references, at least one."""


@dataclass(frozen=True)
class Score:
    """A score in per cent (0 to 100; error rates may be more), and what exactly was computed."""

    name: str
    score: float
    signature: str
    mean: float | None = None
    """Of the scores of many samples drawn from the sentences (bootstrap; Koehn, 2004)."""
    half_width: float | None = None
    """Of the interval around `mean` that holds 95 % of them."""

    @property
    def interval(self) -> tuple[float, float] | None:
        """From where to where 95 % of the samples' scores lie."""
        if self.mean is None or self.half_width is None:
            return None
        return self.mean - self.half_width, self.mean + self.half_width

    def __str__(self) -> str:
        around = ""
        if self.mean is not None:
            around = f" (μ = {self.mean:.2f} ± {self.half_width:.2f})"
        return f"{self.name} {self.score:.2f}{around}  ({self.signature})"

    def record(self) -> dict[str, Any]:
        """Return the score as a JSON object."""
        found: dict[str, Any] = {"score": self.score, "signature": self.signature}
        if self.interval:
            found |= {"interval": list(self.interval), "mean": self.mean}
        return found


@dataclass(frozen=True)
class Comparison:
    """How much a score differs from another system's on the same items."""

    name: str
    score: float
    baseline: float
    p_value: float
    """How often chance alone would make such a difference (paired bootstrap; Koehn, 2004)."""

    @property
    def difference(self) -> float:
        """By how much the score is above the baseline's."""
        return self.score - self.baseline

    def __str__(self) -> str:
        verdict = "better" if is_better(self.name, self.score, self.baseline) else "worse"
        if self.p_value > SIGNIFICANT:
            verdict = "which may be chance"
        return (
            f"{self.name} {self.difference:+.2f} against {self.baseline:.2f}, "
            f"p = {self.p_value:.4f}: {verdict}"
        )

    def record(self) -> dict[str, float]:
        """Return the comparison as a JSON object."""
        return {"score": self.baseline, "difference": self.difference, "p_value": self.p_value}


def is_better(metric: str, score: float, than: float | None) -> bool:
    """Say whether a score is better than another (the direction belongs to the metric)."""
    if than is None:
        return True
    return score > than if HIGHER_IS_BETTER[metric] else score < than


def by_source(sources: Sequence[str], targets: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    """Join pairs with equal sources into one item with several references, in order."""
    items: dict[str, list[str]] = {}
    for src, tgt in zip(sources, targets, strict=True):
        items.setdefault(src, []).append(tgt)
    return list(items), list(items.values())


def evaluate(
    outputs: Sequence[str],
    references: References,
    metrics: Sequence[str],
    bleu_tokenize: str = "13a",
    samples: int = 0,
) -> dict[str, Score]:
    """Compute scores.

    Args:
        outputs: one text per item.
        references: for each item its references.
        metrics: names, of HIGHER_IS_BETTER.
        bleu_tokenize: sacrebleu's tokenization for BLEU.
        samples: how many to draw for the interval around each score; 0: there is none.

    Raises:
        TransduceError: if there are not as many outputs as items, or nothing at all.
        UsageError: for an unknown tokenization or metric.
    """
    _check_counts(outputs, references)
    scores = {}
    for name in metrics:
        scorer = _scorer(name, bleu_tokenize)
        found = scorer.corpus_score(list(outputs), _streams(references), n_bootstrap=samples or 1)
        around = (float(found._mean), float(found._ci)) if samples else ()
        signature = str(scorer.get_signature())
        scores[name] = Score(name, float(found.score), signature, *around)
    return scores


def compare(
    outputs: Sequence[str],
    baseline: Sequence[str],
    references: References,
    metrics: Sequence[str],
    bleu_tokenize: str = "13a",
    samples: int = 1000,
) -> dict[str, Comparison]:
    """Compare outputs with those of another system, by sacrebleu's paired bootstrap test.

    Args:
        outputs: one text per item.
        baseline: the other system's.
        references: as for `evaluate`.
        metrics: likewise.
        bleu_tokenize: likewise.
        samples: how many to draw.

    Raises:
        TransduceError: as `evaluate` does, for either system.
        UsageError: likewise.
    """
    from sacrebleu.significance import PairedTest, Result

    for texts in (outputs, baseline):
        _check_counts(texts, references)
    systems: list[tuple[str, Sequence[str]]] = [("baseline", baseline), ("outputs", outputs)]
    found = {}
    for name in metrics:
        metric = {name: _scorer(name, bleu_tokenize)}
        _, results = PairedTest(systems, metric, _streams(references), "bs", samples)()
        before, after = next(values for key, values in results.items() if key != "System")
        assert isinstance(before, Result) and isinstance(after, Result)
        # Of two equal scores sacrebleu's p-value says the opposite of what it says of all others.
        p_value = 1.0 if after.score == before.score else float(after.p_value or 0.0)
        found[name] = Comparison(name, float(after.score), float(before.score), p_value)
    return found


@dataclass(frozen=True)
class Statistics:
    """Of each item what a score of all of them is made of, so that samples can be scored."""

    of_items: npt.NDArray[np.float64]
    """A row for each item."""
    score: Callable[[npt.NDArray[np.float64]], float]
    """The score that belongs to the sum of some rows."""

    def total(self) -> float:
        """Return the score of all items."""
        return self.score(self.of_items.sum(axis=0))

    def samples(self, count: int) -> npt.NDArray[np.float64]:
        """Return the scores of samples drawn from the items, as many in each as there are items.

        Of all statistics with equally many items, the same items are drawn: their samples are
        pairs (Koehn, 2004).
        """
        draw, size = np.random.default_rng(12345), len(self.of_items)
        sums = (self.of_items[draw.integers(size, size=size)].sum(axis=0) for _ in range(count))
        return np.array([self.score(one) for one in sums])


def statistics(
    outputs: Sequence[str], references: References, metric: str, bleu_tokenize: str = "13a"
) -> Statistics:
    """Return what a metric is made of, as for `evaluate`.

    Raises:
        TransduceError: as `evaluate` does.
        UsageError: likewise.
    """
    _check_counts(outputs, references)
    scorer = _scorer(metric, bleu_tokenize)
    found = scorer._extract_corpus_statistics(list(outputs), _streams(references))
    score_of: Any = scorer._compute_score_from_stats  # its types do not say that it knows arrays
    return Statistics(np.array(found, np.float64), lambda sums: float(score_of(sums).score))


def by_sentence(
    outputs: Sequence[str], references: References, metric: str, bleu_tokenize: str = "13a"
) -> list[float]:
    """Return the score of each item by itself (of BLEU, up to the longest n-grams it has)."""
    scorer = _scorer(metric, bleu_tokenize)
    if metric == "bleu":
        scorer.effective_order = True  # type: ignore[attr-defined]
    return [
        float(scorer.sentence_score(output, list(several)).score)
        for output, several in zip(outputs, references, strict=True)
    ]


def _check_counts(outputs: Sequence[str], references: References) -> None:
    if len(outputs) != len(references):
        raise TransduceError(
            f"{len(outputs)} outputs but {len(references)} items with references: "
            "line n of one must belong to line n of the other"
        )
    if not outputs:
        raise TransduceError("nothing to score: no sentences")


def _streams(references: References) -> Any:
    """Return the first references of all items, then the second ones, ..., as sacrebleu wants.

    Where an item has fewer there is None, which its types do not say that it knows.
    """
    most = max(map(len, references))
    return [[item[i] if i < len(item) else None for item in references] for i in range(most)]


def _scorer(metric: str, bleu_tokenize: str) -> "Metric":
    """Return what computes a metric.

    Raises:
        UsageError: for an unknown tokenization or metric.
    """
    from sacrebleu.metrics.chrf import CHRF
    from sacrebleu.metrics.ter import TER

    from transduce.evaluation.error_rates import ErrorRate

    match metric:
        case "bleu":
            return bleu_scorer(bleu_tokenize)
        case "chrf":
            return _with_equal_types(CHRF())
        case "ter":
            return _with_equal_types(TER())
    return ErrorRate(metric)


def _with_equal_types(metric: "Metric") -> "Metric":
    """Have a metric score all samples in one type.

    sacrebleu gives Python's numbers where nothing is right or a reference is empty, and NumPy's
    elsewhere; where both occur, as in small sets, its mean of them fails.
    """
    score_of = metric._compute_score_from_stats

    def score(stats: Any) -> Any:
        found = score_of(stats)
        if isinstance(stats, np.ndarray):  # a sample
            found.score = np.float32(found.score)
        return found

    metric._compute_score_from_stats = score  # type: ignore[method-assign]
    return metric


def bleu_scorer(tokenize: str) -> "BLEU":
    """Return sacrebleu's BLEU with one of its tokenizations.

    Raises:
        UsageError: if there is none of that name, or its dictionary is not installed.
    """
    from sacrebleu.metrics.bleu import BLEU

    names = [name for name in BLEU.TOKENIZERS if name]
    if tokenize not in names:
        raise UsageError(
            f"evaluation.bleu_tokenize = {tokenize!r}: there is none of that name"
            f"{did_you_mean(tokenize, names)} (there are: {', '.join(names)})"
        )
    try:
        return BLEU(tokenize=tokenize, force=True)  # what looks tokenized is told by us
    except (ImportError, RuntimeError):
        extra = {"ja-mecab": "japanese", "ko-mecab": "korean"}.get(tokenize)
        how = f"pip install 'transduce[{extra}]'" if extra else "see sacrebleu's documentation"
        raise UsageError(
            f"evaluation.bleu_tokenize = {tokenize!r} needs more than is installed: {how}"
        ) from None


def tokenized_looking(outputs: Sequence[str], references: References) -> str | None:
    """Return a warning if outputs look tokenized or split into pieces and references do not."""

    def share(texts: Sequence[str]) -> float:
        marks = (" ,", " .", " !", " ?", "@@", "▁", " 's")
        return sum(any(mark in text for mark in marks) for text in texts) / max(1, len(texts))

    if share(outputs) > 0.5 and share([refs[0] for refs in references]) < 0.1:
        return (
            "the outputs look tokenized but the references do not: this score is lower than that "
            "of detokenized text, and cannot be compared with it"
        )
    return None
