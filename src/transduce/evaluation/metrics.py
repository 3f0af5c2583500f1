"""Scores of outputs against references: BLEU, chrF and TER by sacrebleu, error rates by us.

Every item has one or several references. Text is scored as it is shown, without any tokenization
but the one that the signature names.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rapidfuzz.distance import Levenshtein

from transduce.errors import TransduceError, UsageError, did_you_mean

if TYPE_CHECKING:
    from sacrebleu.metrics.bleu import BLEU

References = Sequence[Sequence[str]]
"""For each item its references, at least one."""

HIGHER_IS_BETTER = {
    "bleu": True,
    "chrf": True,
    "ter": False,
    "exact": True,
    "wer": False,
    "per": False,
    "word_edits": False,
}


@dataclass(frozen=True)
class Score:
    """A score in per cent (0 to 100; error rates may be more), and what exactly was computed."""

    name: str
    score: float
    signature: str


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
) -> dict[str, Score]:
    """Compute scores.

    Args:
        outputs: one text per item.
        references: for each item its references.
        metrics: names, of HIGHER_IS_BETTER.
        bleu_tokenize: sacrebleu's tokenization for BLEU.

    Raises:
        TransduceError: if there are not as many outputs as items, or nothing at all.
        UsageError: for an unknown tokenization or metric.
    """
    if len(outputs) != len(references):
        raise TransduceError(
            f"{len(outputs)} outputs but {len(references)} items with references: "
            "line n of one must belong to line n of the other"
        )
    if not outputs:
        raise TransduceError("nothing to score: no sentences")
    return {
        metric: _sacrebleu(metric, outputs, references, bleu_tokenize)
        if metric in ("bleu", "chrf", "ter")
        else _error_rate(metric, outputs, references)
        for metric in metrics
    }


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
        return BLEU(tokenize=tokenize)
    except (ImportError, RuntimeError):
        extra = {"ja-mecab": "japanese", "ko-mecab": "korean"}.get(tokenize)
        how = f"pip install 'transduce[{extra}]'" if extra else "see sacrebleu's documentation"
        raise UsageError(
            f"evaluation.bleu_tokenize = {tokenize!r} needs more than is installed: {how}"
        ) from None


def _sacrebleu(
    metric: str, outputs: Sequence[str], references: References, bleu_tokenize: str
) -> Score:
    from sacrebleu.metrics.base import Metric
    from sacrebleu.metrics.chrf import CHRF
    from sacrebleu.metrics.ter import TER

    scorer: Metric
    match metric:
        case "bleu":
            scorer = bleu_scorer(bleu_tokenize)
        case "chrf":
            scorer = CHRF()
        case _:
            scorer = TER()
    most = max(map(len, references))
    # sacrebleu wants the first references of all items, then the second ones, ...
    streams = [[item[i] if i < len(item) else None for item in references] for i in range(most)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = scorer.corpus_score(list(outputs), streams)  # type: ignore[arg-type] # None: fewer
    return Score(metric, float(result.score), str(scorer.get_signature()))


def _error_rate(metric: str, outputs: Sequence[str], references: References) -> Score:
    items = [
        (output.split(), [reference.split() for reference in several])
        for output, several in zip(outputs, references, strict=True)
    ]
    several = "several" if any(len(refs) > 1 for _, refs in items) else "1"
    signature = f"{metric}|refs:{several}|items:{len(items)}|tokens:whitespace"
    match metric:
        case "exact" | "wer":
            right = sum(output in refs for output, refs in items)
            share = 100.0 * right / len(items)
            return Score(metric, share if metric == "exact" else 100.0 - share, signature)
        case "per" | "word_edits":
            edits = length = 0
            for output, refs in items:
                nearest = min(refs, key=lambda ref: (Levenshtein.distance(output, ref), len(ref)))
                edits += Levenshtein.distance(output, nearest)
                length += len(nearest)
            return Score(metric, 100.0 * edits / max(1, length), signature)
    raise UsageError(f"unknown metric {metric!r} (there are: {', '.join(HIGHER_IS_BETTER)})")


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


def shown(scores: Mapping[str, Score]) -> list[str]:
    """Return one line per score, with its signature."""
    return [f"{score.name} {score.score:.2f}  ({score.signature})" for score in scores.values()]
