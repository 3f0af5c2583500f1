"""What comes out: texts with their tokens, scores and flags."""

import math
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Output:
    """One hypothesis as text."""

    text: str
    tokens: tuple[str, ...]
    """Pieces as the vocabulary spells them, END included."""
    log_probabilities: tuple[float, ...]
    log_probability: float
    """The sum over the tokens."""
    score: float
    """That sum over the length penalty, and what coverage adds."""
    finished: bool


EMPTY = Output("", (), (), 0.0, 0.0, finished=True)


@dataclass(frozen=True)
class Translation:
    """What became of one line.

    Flags: `empty` (a blank line, passed through), `cut` (the source was longer than max_source),
    `unfinished` (the length limit came first), `fewer` (fewer alternatives exist than asked for),
    `unmet` (something that must occur in the best output does not).
    """

    source: str
    hypotheses: tuple[Output, ...]
    flags: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The best output."""
        return self.hypotheses[0].text

    def record(self) -> dict[str, Any]:
        """Return the translation as a JSON object."""
        return asdict(self)


@dataclass(frozen=True)
class Scored:
    """A given pair and how probable the model finds its target."""

    source: str
    target: str
    tokens: tuple[str, ...]
    log_probabilities: tuple[float, ...]

    @property
    def log_probability(self) -> float:
        """The sum over the tokens, END included."""
        return math.fsum(self.log_probabilities)

    def record(self) -> dict[str, Any]:
        """Return the pair as a JSON object."""
        return asdict(self) | {"log_probability": self.log_probability}
