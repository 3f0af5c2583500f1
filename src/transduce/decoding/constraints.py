"""What the output of one sentence must look like, in tokens."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor

from transduce.config import EOS

_GOES_ON = -1
"""Stands for any token that is `inside` a word."""

Banned = Callable[[Sequence[int]], Iterable[int]]
"""Given the tokens so far, those that must not come next."""


class Phrase(NamedTuple):
    """Tokens that must occur in a row."""

    tokens: tuple[int, ...]
    word: bool = False
    """Whether it ends in a word, which then must end there, too."""


def nothing_banned(tokens: Sequence[int]) -> Iterable[int]:
    """Allow every token."""
    return ()


@dataclass(frozen=True)
class Constraints:
    """Rules for the output of one sentence."""

    prefix: tuple[int, ...] = ()
    """How it begins."""
    required: tuple[Phrase, ...] = ()
    """What must occur in it, in any order; a phrase that is named twice, twice."""
    inside: frozenset[int] = frozenset()
    """Tokens that go on with the word before them."""
    banned: Banned = nothing_banned
    """What must not come next, behind the prefix."""
    no_repeat: int = 0
    """So many tokens in a row occur no second time; 0: they may."""
    min_length: int = 0
    """The least number of tokens, END included."""

    @property
    def needed(self) -> int:
        """The tokens of all required phrases."""
        return sum(len(phrase.tokens) for phrase in self.required)

    def restrict(
        self, tokens: Sequence[int], room: int, log_probs: Float[Tensor, " vocab"]
    ) -> None:
        """Set to −∞ what must not follow `tokens`, with room for so many more, END included."""
        n = len(tokens)
        if n < len(self.prefix):
            _allow_only([self.prefix[n]], log_probs)
            return
        if n + 1 < self.min_length or self.missing(tokens):
            log_probs[EOS] = -math.inf
        if banned := list(self.banned(tokens)):
            log_probs[banned] = -math.inf
        if self.no_repeat:
            begin = list(tokens[n - self.no_repeat + 1 :])
            for i in range(n - self.no_repeat + 1):
                if list(tokens[i : i + self.no_repeat - 1]) == begin:
                    log_probs[tokens[i + self.no_repeat - 1]] = -math.inf
        if self.required:
            self._keep_room(tokens, room, log_probs)

    def _keep_room(
        self, tokens: Sequence[int], room: int, log_probs: Float[Tensor, " vocab"]
    ) -> None:
        """Set to −∞ what would leave too little room for the required phrases and END."""

        def fits(met: int) -> bool:
            return met == self.needed or self.needed - met + 1 < room

        elsewhere, within = self.complete(tokens), self.complete([*tokens, _GOES_ON])
        if fits(elsewhere) and fits(within):
            return
        keep = {token for token in self.wanted(tokens) if fits(self.met([*tokens, token]))}
        if fits(elsewhere):
            log_probs[sorted(self.inside - keep)] = -math.inf
            return
        # A word that must end may stand last, but not before what goes on with it.
        missing = sorted(
            self.missing(tokens), key=lambda p: (p.word, p.tokens[0] not in self.inside)
        )
        sooner = (keep & following([phrase], tokens) for phrase in missing)
        _allow_only(sorted(next(filter(None, sooner), keep)), log_probs)

    def wanted(self, tokens: Sequence[int]) -> set[int]:
        """Return the next tokens that would bring a required phrase forward."""
        return following(self.missing(tokens), tokens)

    def met(self, tokens: Sequence[int]) -> int:
        """Return how many tokens of required phrases are in place."""
        missing = self.missing(tokens)
        return self.complete(tokens) + max((begun(p.tokens, tokens) for p in missing), default=0)

    def complete(self, tokens: Sequence[int]) -> int:
        """Return how many tokens are in place of phrases that are so wholly."""
        return self.needed - sum(len(phrase.tokens) for phrase in self.missing(tokens))

    def missing(self, tokens: Sequence[int]) -> list[Phrase]:
        """Return the required phrases that do not occur in `tokens`, as often as they lack."""
        return [
            phrase
            for phrase, count in Counter(self.required).items()
            for _ in range(count - self.occurrences(phrase, tokens))
        ]

    def occurrences(self, phrase: Phrase, tokens: Sequence[int]) -> int:
        """Count how often `tokens` contain a phrase, one behind the other."""
        n, i, count = len(phrase.tokens), 0, 0
        while i <= len(tokens) - n:
            behind = tokens[i + n] if i + n < len(tokens) else EOS
            goes_on = phrase.word and (behind == _GOES_ON or behind in self.inside)
            if not goes_on and tuple(tokens[i : i + n]) == phrase.tokens:
                count += 1
                i += n
            else:
                i += 1
        return count


FREE = Constraints()


def following(phrases: Iterable[Phrase], tokens: Sequence[int]) -> set[int]:
    """Return what goes on with phrases that `tokens` have begun, and what begins them."""
    return {p[k] for p, _ in phrases for k in (0, begun(p, tokens))}


def begun(phrase: tuple[int, ...], tokens: Sequence[int]) -> int:
    """Return how much of a phrase `tokens` end with."""
    shorter = range(min(len(phrase) - 1, len(tokens)), 0, -1)
    return next((k for k in shorter if tuple(tokens[-k:]) == phrase[:k]), 0)


def _allow_only(tokens: Sequence[int], log_probs: Float[Tensor, " vocab"]) -> None:
    kept = log_probs[tokens]
    log_probs.fill_(-math.inf)
    log_probs[tokens] = kept
