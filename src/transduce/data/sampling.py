"""Other ways to cut text into learnt subwords, drawn at random: BPE-dropout, unigram sampling.

sentencepiece offers both, but whatever its seed, each process draws other numbers; a run must be
able to go on in a new process as if it had never stopped. Here the numbers are Python's, which
are the same everywhere. Text is cut word by word, since no learnt piece goes beyond a word.
"""

from bisect import bisect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush
from itertools import accumulate
from math import exp, log, log1p
from random import Random

Spell = Callable[[Iterable[str]], list[int]]
"""Turns pieces into ids; what is no piece is spelled in bytes, or unknown."""
REMEMBERED = 20_000  # words, the first that come; only short ones come back
SHORT = 20


class Dropout:
    """BPE-dropout (Provilkov et al., 2020): of the merges, some are left out.

    Args:
        scores: of the learnt pieces; the merge that gives the highest comes first.
        spell: turns pieces into ids.
    """

    def __init__(self, scores: Mapping[str, float], spell: Spell) -> None:
        self._scores = scores
        self._spell = spell
        self._usual: dict[str, tuple[list[int], int]] = {}

    def draw(self, texts: Sequence[str], rate: float, seed: int) -> Iterator[list[int]]:
        """Yield the ids of each text, each merge being left out with probability `rate`."""
        random = Random(seed)

        def draw_gap() -> int:
            return int(min(log(1 - random.random()) / log1p(-rate), 1e15))

        gap = draw_gap()  # merges to come before one is left out

        def dropped() -> bool:
            nonlocal gap
            gap, drop = (gap - 1, False) if gap else (draw_gap(), True)
            return drop

        for text in texts:
            ids: list[int] = []
            for word in _words(text):
                usual, merges = self._usual_ids(word)
                if merges <= gap:
                    gap -= merges
                    ids += usual
                else:
                    ids += self._spell(self._pieces(word, dropped))
            yield ids

    def _usual_ids(self, word: str) -> tuple[list[int], int]:
        """Return the ids of a word with nothing left out, and how many merges lead there."""
        if (found := self._usual.get(word)) is None:
            pieces = self._pieces(word, lambda: False)
            found = self._spell(pieces), len(word) - len(pieces)
            if len(word) <= SHORT and len(self._usual) < REMEMBERED:
                self._usual[word] = found
        return found

    def _pieces(self, word: str, dropped: Callable[[], bool]) -> list[str]:
        """Merge the characters of a word, the best pair first, unless `dropped` says no."""
        parts, scores = list(word), self._scores
        before, after = list(range(-1, len(word) - 1)), list(range(1, len(word) + 1))
        pairs = [
            (-scores[pair], i, pair)
            for i in range(len(word) - 1)
            if (pair := word[i : i + 2]) in scores
        ]
        heapify(pairs)
        while pairs:
            _, i, merged = heappop(pairs)
            j = after[i]
            if j == len(word) or not parts[i] or parts[i] + parts[j] != merged or dropped():
                continue
            parts[i], parts[j] = merged, ""
            after[i] = k = after[j]
            if k < len(word):
                before[k] = i
                if (pair := merged + parts[k]) in scores:
                    heappush(pairs, (-scores[pair], i, pair))
            if (h := before[i]) >= 0 and (pair := parts[h] + merged) in scores:
                heappush(pairs, (-scores[pair], h, pair))
        return [part for part in parts if part]


class Segmentations:
    """Subword regularisation (Kudo, 2018): all segmentations, by the unigram model.

    Args:
        scores: logarithms of the learnt pieces' probabilities.
        spell: turns pieces into ids.
    """

    def __init__(self, scores: Mapping[str, float], spell: Spell) -> None:
        self._scores = scores
        self._spell = spell
        self._longest = max(map(len, scores), default=1)
        self._unknown = min(scores.values(), default=0.0) - 10
        self._remembered: dict[tuple[str, float], list[tuple[list[int], list[float]]]] = {}

    def draw(self, texts: Sequence[str], rate: float, seed: int) -> Iterator[list[int]]:
        """Yield the ids of each text, drawn by probability to the power of `rate`."""
        random = Random(seed).random
        for text in texts:
            ids: list[int] = []
            for word in _words(text):
                begins_of = self._begins(word, rate)
                pieces, end = [], len(word)
                while end:
                    begins, weights = begins_of[end]
                    begin = begins[bisect(weights, random() * weights[-1], 0, len(begins) - 1)]
                    pieces.append(word[begin:end])
                    end = begin
                ids += self._spell(reversed(pieces))
            yield ids

    def _begins(self, word: str, rate: float) -> list[tuple[list[int], list[float]]]:
        """Return for each end of a piece where it may begin, and the weights of that, summed up."""
        if (found := self._remembered.get((word, rate))) is not None:
            return found
        found, totals = [([], [])], [0.0]  # the logarithm of all ways to get to each end
        for end in range(1, len(word) + 1):
            ways = [
                (begin, totals[begin] + rate * score)
                for begin in range(max(0, end - self._longest), end)
                if (score := self._scores.get(word[begin:end])) is not None
            ]
            if not ways:  # an unknown character
                ways = [(end - 1, totals[end - 1] + rate * self._unknown)]
            most = max(way for _, way in ways)
            weights = list(accumulate(exp(way - most) for _, way in ways))
            found.append(([begin for begin, _ in ways], weights))
            totals.append(most + log(weights[-1]))
        if len(word) <= SHORT and len(self._remembered) < REMEMBERED:
            self._remembered[word, rate] = found
        return found


def _words(text: str) -> list[str]:
    """Cut text before each space."""
    first, *others = text.split(" ")
    return ([first] if first else []) + [f" {word}" for word in others]
