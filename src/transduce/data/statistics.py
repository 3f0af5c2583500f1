"""What a corpus looks like: counts that are taken part by part and added up."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

MANY_WORDS = 20_000  # distinct words are counted up to here
BINS = 24  # of a histogram


@dataclass
class SideStatistics:
    """One side of a corpus as text, as far as choices and the report depend on it."""

    lines: int = 0
    word_count: int = 0
    lines_with_space: int = 0
    characters: Counter[str] = field(default_factory=Counter)
    words: set[str] = field(default_factory=set)
    """Distinct words, no more than about MANY_WORDS."""
    lengths: Counter[int] = field(default_factory=Counter)
    """How many lines have how many characters."""

    def add(self, text: str) -> None:
        """Take one line into account."""
        self.lines += 1
        self.characters.update(text)
        words = text.split()
        self.word_count += len(words)
        self.lines_with_space += len(words) > 1
        self.lengths[len(text)] += 1
        if len(self.words) < MANY_WORDS:
            self.words.update(words)

    def merge(self, other: "SideStatistics") -> None:
        """Take over the counts of lines further on."""
        self.lines += other.lines
        self.word_count += other.word_count
        self.lines_with_space += other.lines_with_space
        self.characters.update(other.characters)
        self.lengths.update(other.lengths)
        if len(self.words) < MANY_WORDS:
            self.words |= other.words

    @property
    def bytes(self) -> int:
        """The size of the text in UTF-8, line ends apart."""
        return sum(len(c.encode("utf-8")) * count for c, count in self.characters.items())

    def to_json(self) -> dict[str, Any]:
        """Return the counts as JSON, in an order that does not depend on the machine."""
        return {
            "lines": self.lines,
            "word_count": self.word_count,
            "lines_with_space": self.lines_with_space,
            "characters": dict(sorted(self.characters.items())),
            "words": sorted(self.words),
            "lengths": sorted(self.lengths.items()),
        }

    @classmethod
    def from_json(cls, counts: dict[str, Any]) -> "SideStatistics":
        """Read what `to_json` wrote."""
        return cls(
            counts["lines"],
            counts["word_count"],
            counts["lines_with_space"],
            Counter(counts["characters"]),
            set(counts["words"]),
            Counter(dict(counts["lengths"])),
        )

    def summary(self) -> dict[str, Any]:
        """Return what the report shows of it."""
        return {
            "characters": self.characters.total(),
            "words": self.word_count,
            "distinct_words": min(MANY_WORDS, len(self.words)),
            "distinct_words_capped": len(self.words) >= MANY_WORDS,
            "distinct_characters": len(self.characters),
            "lengths": distribution(self.lengths),
            "top_characters": [
                [character, count]
                for character, count in sorted(
                    self.characters.items(), key=lambda item: (-item[1], item[0])
                )[:40]
            ],
        }


RATIO_STEPS = [2 ** ((i + 0.5) / 4) for i in range(-17, 17)]
"""From 1/17 to 17, and 1 in the middle of a bin; the last bin also holds what is beyond."""


@dataclass
class Survey:
    """What a part of a corpus looks like before anything is learnt from it."""

    source: SideStatistics = field(default_factory=SideStatistics)
    target: SideStatistics = field(default_factory=SideStatistics)
    ratios: Counter[int] = field(default_factory=Counter)
    """How many pairs have which ratio of lengths, by index into RATIO_STEPS."""

    @property
    def pairs(self) -> int:
        """The number of pairs."""
        return self.source.lines

    def add(self, src: str, tgt: str) -> None:
        """Take one pair into account."""
        self.source.add(src)
        self.target.add(tgt)
        step = bisect_right(RATIO_STEPS, len(tgt) / max(1, len(src)))
        self.ratios[min(step, len(RATIO_STEPS) - 1)] += 1

    def merge(self, other: "Survey") -> None:
        """Take over the counts of pairs further on."""
        self.source.merge(other.source)
        self.target.merge(other.target)
        self.ratios.update(other.ratios)

    def to_json(self) -> dict[str, Any]:
        """Return the counts as JSON."""
        return {
            "source": self.source.to_json(),
            "target": self.target.to_json(),
            "ratios": sorted(self.ratios.items()),
        }

    @classmethod
    def from_json(cls, counts: dict[str, Any]) -> "Survey":
        """Read what `to_json` wrote."""
        return cls(
            SideStatistics.from_json(counts["source"]),
            SideStatistics.from_json(counts["target"]),
            Counter(dict(counts["ratios"])),
        )

    def ratio_summary(self) -> dict[str, Any]:
        """Return what the report shows of the ratios of lengths."""
        if not self.pairs:
            return {"bins": [], "median": 1.0}
        edges = [0.0, *RATIO_STEPS]
        middle = percentile(sorted(self.ratios.items()), self.pairs, 0.5)
        return {
            "bins": [
                [round(edges[i], 3), round(edges[i + 1], 3), self.ratios[i]]
                for i in range(min(self.ratios), max(self.ratios) + 1)
            ],
            "median": round((max(edges[middle], 1 / 32) * edges[middle + 1]) ** 0.5, 2),
        }


def distribution(lengths: Counter[int]) -> dict[str, Any]:
    """Return mean, median, 95th percentile, maximum and a histogram of counted lengths."""
    total = lengths.total()
    if not total:
        return {"bins": [], "mean": 0.0, "median": 0, "p95": 0, "max": 0}
    ordered = sorted(lengths.items())
    high, longest = percentile(ordered, total, 0.99), ordered[-1][0]
    width = max(1, -(-high // BINS))
    bins: Counter[int] = Counter()
    for length, count in ordered:
        bins[min(length // width, BINS)] += count  # the last one holds the tail
    return {
        "bins": [
            [i * width, (i + 1) * width if i < BINS else longest + 1, bins[i]]
            for i in range(max(bins) + 1)
        ],
        "mean": round(sum(length * count for length, count in ordered) / total, 2),
        "median": percentile(ordered, total, 0.5),
        "p95": percentile(ordered, total, 0.95),
        "max": longest,
    }


def percentile(ordered: Sequence[tuple[int, int]], total: int, share: float) -> int:
    """Return the smallest length that at least this share of the lines do not exceed."""
    below = 0
    for length, count in ordered:
        below += count
        if below >= share * total:
            return length
    return ordered[-1][0]
