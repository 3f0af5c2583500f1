"""Scores that sacrebleu lacks, in its form, so that its intervals and tests serve them as well.

Tokens are what stands between spaces. Every item has its references, and counts once.
"""

from collections.abc import Sequence
from typing import Any

from rapidfuzz.distance import Levenshtein
from sacrebleu.metrics.base import Metric, Score, Signature

from transduce import __version__
from transduce.errors import UsageError


class ErrorSignature(Signature):
    """Says what was computed: of sacrebleu's keys those that hold here."""

    def __init__(self, args: dict[str, Any]) -> None:
        super().__init__(args)
        self._abbr |= {"tok": "tok"}
        self.info |= {"tok": "spaces", "version": f"transduce-{__version__}"}


class ErrorRate(Metric):
    """`exact`, `wer`, `per` or `word_edits`, in per cent of items or of reference tokens (P13).

    Args:
        name: which of them.

    Raises:
        UsageError: for any other name.
    """

    _SIGNATURE_TYPE = ErrorSignature

    def __init__(self, name: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        if name not in ("exact", "wer", "per", "word_edits"):
            raise UsageError(f"there is no metric {name!r}")
        self.name = name

    def _preprocess_segment(self, sent: str) -> str:
        return sent

    def _extract_reference_info(self, refs: Sequence[str]) -> dict[str, Any]:
        return {"references": [reference.split() for reference in refs]}

    def _compute_segment_statistics(self, hypothesis: str, ref_kwargs: dict[str, Any]) -> list[int]:
        """Return what is counted, and out of how many."""
        output, references = hypothesis.split(), ref_kwargs["references"]
        if self.name == "exact":
            return [int(output in references), 1]
        if self.name == "wer":
            return [int(output not in references), 1]
        nearest = min(references, key=lambda ref: (Levenshtein.distance(output, ref), len(ref)))
        return [Levenshtein.distance(output, nearest), len(nearest)]

    def _compute_score_from_stats(self, stats: Any) -> Score:
        """Take sums of what `_compute_segment_statistics` returns, in a list or an array."""
        counted, of = stats
        return Score(self.name, float(100.0 * counted / max(1, of)))

    def _aggregate_and_compute(self, stats: list[list[int]]) -> Score:
        return self._compute_score_from_stats([sum(column) for column in zip(*stats, strict=True)])
