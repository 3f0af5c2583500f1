"""Is an engine the same model? Log-probabilities of given pairs, outputs, scores, speed."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from transduce.config import EOS
from transduce.decoding.engines import Engine, Pairs
from transduce.decoding.search import Penalty
from transduce.decoding.translator import Translator
from transduce.evaluation.metrics import evaluate, is_better

LENGTHS = (1, 2, 17, 60, 499, 500, 501)
"""Pieces of made-up pairs: short ones, usual ones, and where tables of others ended."""
CLOSE = 1e-4
"""How far the log-probabilities of a pair may lie apart in float32, in nats; of long pairs, whose
sums have fewer digits behind the point, a millionth of the sum; of a model that magnifies what
float32 loses, ROUNDED times that."""
ROUNDED = 10
SCORED = 200
"""Sentences whose outputs are scored by both."""
EQUAL = {1: 0.995, 4: 0.98}
"""The share of outputs that must be equal in float32, by the width of the beam."""
WORSE = {"float32": 0.1, "int8": 0.3}
"""By how much a score, of 100, may differ."""


@dataclass(frozen=True)
class Difference:
    """A sentence with two outputs, and how the exact model scores both (P9)."""

    beam_size: int
    source: str
    ours: str
    theirs: str
    score: float
    score_of_theirs: float


@dataclass
class Search:
    """What a search with one width of the beam gave."""

    sentences: int
    equal: int
    seconds: float
    seconds_of_theirs: float
    scores: dict[str, float] = field(default_factory=dict)
    scores_of_theirs: dict[str, float] = field(default_factory=dict)


@dataclass
class Parity:
    """How an engine compares with ours in float32."""

    name: str
    precision: str
    pairs: int = 0
    worst: float = 0.0
    """The largest distance of two log-probabilities of a pair, in units of what is allowed."""
    distance: float = 0.0
    """The largest distance itself, in nats."""
    per_token: float = 0.0
    """The mean distance of the log-probabilities of a token, in nats."""
    searches: dict[int, Search] = field(default_factory=dict)
    differences: list[Difference] = field(default_factory=list)

    def problems(self) -> list[str]:
        """Return which bounds do not hold."""
        found = []
        exact = self.precision == "float32"
        if exact and not self.worst <= 1.0:
            found.append(
                f"log-probabilities of a pair differ by {self.distance:.2g}, "
                f"{self.worst:.3g} times what is allowed"
            )
        if not self.per_token <= 0.1:
            found.append(f"log-probabilities of a token differ by {self.per_token:.2g} on average")
        for beam, search in self.searches.items():
            share = search.equal / max(1, search.sentences)
            least = EQUAL[1 if beam == 1 else 4] if exact else 0.0
            # One sentence of few weighs more than the bounds.
            most = max(1, math.floor(search.sentences * (1 - least) + 1e-9))
            if search.sentences - search.equal > most:
                found.append(f"beam {beam}: {share:.1%} of the outputs are equal, not {least:.1%}")
            allowed = max(WORSE["float32" if exact else "int8"], 100 / max(1, search.sentences))
            for name, score in search.scores.items():
                theirs = search.scores_of_theirs[name]
                if abs(score - theirs) > allowed and (exact or is_better(name, score, theirs)):
                    found.append(
                        f"beam {beam}: {name} {theirs:.2f} instead of {score:.2f}, allowed are "
                        f"{allowed:g}"
                    )
        return found

    def lines(self) -> list[str]:
        """Return the report, a line for each thing measured."""
        lines = [
            f"{self.name}, {self.precision}: log-probabilities of {self.pairs} given pairs differ "
            f"by at most {self.distance:.2g}, of a token by {self.per_token:.2g} on average"
        ]
        for beam, search in self.searches.items():
            lines.append(
                f"beam {beam}: {search.equal:,} of {search.sentences:,} outputs equal; "
                f"{speed(search.sentences, search.seconds_of_theirs)} sentences/s "
                f"(torch, float32: {speed(search.sentences, search.seconds)})"
                + "".join(
                    f"; {name} {search.scores_of_theirs[name]:.2f} (torch: {score:.2f})"
                    for name, score in search.scores.items()
                )
            )
        return lines


def speed(sentences: int, seconds: float) -> str:
    """Return how many sentences a second that is; large models do less than one."""
    rate = sentences / seconds
    return f"{rate:,.0f}" if rate >= 10 else f"{rate:.2g}"


def made_up_pairs(ours: Translator) -> list[tuple[list[int], list[int]]]:
    """Return pairs of random pieces, up to the longest that a search can come to."""
    draw = np.random.default_rng(0)
    most = ours.limit(ours.max_source)
    lengths = [*(n for n in LENGTHS if n < min(ours.max_source, most - 1))]
    pairs = [(n, n) for n in lengths] + [(n, 1) for n in lengths] + [(ours.max_source, most - 1)]
    return [
        (
            draw.integers(EOS + 1, len(ours.source), source).tolist(),
            draw.integers(EOS + 1, len(ours.target), target).tolist(),
        )
        for source, target in pairs
    ]


def compare_engines(
    name: str,
    precision: str,
    ours: Translator,
    theirs: Translator,
    sources: Sequence[str] = (),
    references: Sequence[Sequence[str]] = (),
    metrics: Sequence[str] = (),
    bleu_tokenize: str = "13a",
    beams: Sequence[int] = (1, 4),
    exactly: Callable[[], Engine] | None = None,
) -> Parity:
    """Compare an engine with the torch engine in float32.

    Args:
        name: of the other engine.
        precision: what it computes in.
        ours: the torch engine, in float32.
        theirs: the other one, with the same settings and tokenizers.
        sources: sentences to translate.
        references: what is right, for each of them; or nothing.
        metrics: the scores to compare, where there are references.
        bleu_tokenize: see `metrics.evaluate`.
        beams: widths of the beam.
        exactly: returns the torch engine in float64, which says what float32 loses.
    """
    found = Parity(name, precision)
    pairs = made_up_pairs(ours)
    encoded = ours.source.encode_lines(sources)
    for beam in beams if sources else ():
        began = time.monotonic()
        mine = ours.translate(sources, beam_size=beam)
        between = time.monotonic()
        its = theirs.translate(sources, beam_size=beam, detail="text")
        ended = time.monotonic()
        equal = 0
        for src, one, other in zip(encoded, mine, its, strict=True):
            if one.text == other.text:
                equal += 1
            else:
                scores = (score_of(ours, src, text) for text in (one.text, other.text))
                found.differences.append(
                    Difference(beam, one.source, one.text, other.text, *scores)
                )
        search = Search(len(sources), equal, between - began, ended - between)
        if references:
            search.scores, search.scores_of_theirs = (
                {
                    key: score.score
                    for key, score in evaluate(
                        [translation.text for translation in outputs],
                        references,
                        metrics,
                        bleu_tokenize,
                    ).items()
                }
                for outputs in (mine, its)
            )
        found.searches[beam] = search
        if beam == beams[0]:
            texts = [translation.text for translation in mine[:SCORED]]
            pairs += zip(encoded[:SCORED], ours.target.encode_lines(texts), strict=True)
    forced(found, ours, theirs, [within(ours, *pair) for pair in pairs], exactly)
    return found


def within(ours: Translator, src: list[int], tgt: list[int]) -> tuple[list[int], list[int]]:
    """Return a pair cut to what a search comes to: an output's text may have more pieces than it.

    There may be no further positions.
    """
    src = src[: ours.max_source]
    return src, tgt[: ours.limit(ours.max_source) - 1]


def forced(
    found: Parity,
    ours: Translator,
    theirs: Translator,
    pairs: Pairs,
    exactly: Callable[[], Engine] | None = None,
) -> None:
    """Compare the log-probabilities of given pairs."""
    distances: list[float] = []
    exact: Engine | None = None
    for pair in pairs:
        (mine,), (its,) = ours.engine.score([pair]), theirs.engine.score([pair])
        total = math.fsum(mine)
        distance = abs(total - math.fsum(its))
        found.distance = max(found.distance, distance)
        allowed = max(CLOSE, 1e-6 * abs(total))
        if distance > allowed and exactly:
            exact = exact or exactly()
            (wide,) = exact.score([pair])
            lost = math.fsum(abs(one - other) for one, other in zip(mine, wide, strict=True))
            allowed = max(allowed, ROUNDED * lost)
        found.worst = max(found.worst, distance / allowed)
        distances += [abs(one - other) for one, other in zip(mine, its, strict=True)]
    found.pairs, found.per_token = len(pairs), float(np.mean(distances))


def score_of(ours: Translator, src: list[int], output: str) -> float:
    """Return the score of an output by P9, as the exact model has it."""
    (log_probs,) = ours.engine.score([within(ours, src, ours.target.encode(output))])
    asked = ours.decoding
    return Penalty(asked.penalty, asked.alpha).score(math.fsum(log_probs), len(log_probs))
