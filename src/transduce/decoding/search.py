"""Beam search over a `step` function (§6.1). It knows neither model nor text.

    step(tokens, origin) -> log-probabilities of each next token

`tokens[b, i]` is the token that hypothesis i of sentence b has just been given (BEGIN at first),
and `origin[b, i]` the row (sentence · beam + hypothesis) that it had in the call before, so that
whoever owns the step can carry its memory along. Sentences that are done leave the batch.
"""

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from transduce.config import BOS, EOS, PAD, UNK

Step = Callable[
    [Int[Tensor, "B beam"], Int[Tensor, "B beam"]],
    Float[Tensor, "B beam vocab"],
]
NEVER = (PAD, UNK, BOS)
"""Tokens that are never generated."""


@dataclass(frozen=True)
class Penalty:
    """What a sum of log-probabilities is divided by, as a function of the length n.

    n counts END and not BEGIN. `none`: 1; `average`: n; `gnmt`: ((5 + n) / 6)^alpha
    (Wu et al., 2016, eq. 14), which the paper uses with alpha 0.6.
    """

    kind: Literal["none", "average", "gnmt"] = "gnmt"
    alpha: float = 0.6

    def __call__(self, n: int) -> float:
        """Return the divisor for a hypothesis of n tokens."""
        match self.kind:
            case "none":
                return 1.0
            case "average":
                return float(max(n, 1))
            case "gnmt":
                return float(((5 + n) / 6) ** self.alpha)


@dataclass(frozen=True)
class Hypothesis:
    """One output: its tokens (END included, if it ended), each with its log-probability."""

    tokens: tuple[int, ...]
    log_probabilities: tuple[float, ...]
    score: float
    """The sum of the log-probabilities over the length penalty."""
    finished: bool
    """False if the length limit came before END."""

    @property
    def log_probability(self) -> float:
        """The sum of the tokens' log-probabilities."""
        return math.fsum(self.log_probabilities)


@dataclass(frozen=True)
class _Node:
    """A hypothesis during search: its last token, and the hypothesis that this continues."""

    parent: "_Node | None"
    token: int
    log_probability: float
    total: float
    length: int

    def hypothesis(self, penalty: Penalty, finished: bool) -> Hypothesis:
        path: list[_Node] = []
        node = self
        while node.parent is not None:
            path.append(node)
            node = node.parent
        path.reverse()
        return Hypothesis(
            tokens=tuple(node.token for node in path),
            log_probabilities=tuple(node.log_probability for node in path),
            score=self.total / penalty(self.length),
            finished=finished,
        )


@dataclass
class _Sentence:
    """The search for one sentence: live hypotheses, best first, and the finished ones."""

    index: int
    limit: int
    live: list[_Node]
    finished: dict[Hashable, Hypothesis]

    def best(self) -> list[Hypothesis]:
        return sorted(self.finished.values(), key=lambda h: -h.score)


def beam_search(
    step: Step,
    limits: Sequence[int],
    beam_size: int,
    n_best: int = 1,
    penalty: Penalty = Penalty(),
    same: Callable[[tuple[int, ...]], Hashable] = tuple,
    never: Iterable[int] = NEVER,
) -> list[list[Hypothesis]]:
    """Find the best outputs of each sentence of a batch.

    At every step the `beam_size` best continuations are looked at: those that end are finished,
    and the `beam_size` best that do not end live on. A sentence is done when no live hypothesis
    could still beat its `n_best` finished ones, however it went on, or at its length limit. So
    neither `n_best` nor the rest of the batch changes which output comes first. A beam of one is
    greedy search: the best continuation alone is looked at.

    Args:
        step: see the module's docstring.
        limits: for each sentence, the number of tokens it may have, END included.
        beam_size: number of live hypotheses of a sentence.
        n_best: number of outputs asked for, at most `beam_size`.
        penalty: the length penalty.
        same: outputs for whose tokens this gives equal values count as one; the best is kept.
        never: tokens that are never generated.

    Returns:
        For each sentence its outputs, best score first: distinct, and fewer than `n_best` only if
        the search found no more. If none ended in time, the best unfinished one.

    Raises:
        ValueError: for a beam or an n_best below one, an n_best above the beam, or a limit of 0.
    """
    if not 1 <= n_best <= beam_size:
        raise ValueError(f"n_best ({n_best}) must lie between 1 and beam_size ({beam_size})")
    if any(limit < 1 for limit in limits):
        raise ValueError("the length limit must be at least 1")
    never = frozenset(never)
    looked_at = beam_size if beam_size == 1 else 2 * beam_size
    results: list[list[Hypothesis]] = [[] for _ in limits]
    begin = _Node(None, BOS, 0.0, 0.0, 0)
    batch = [_Sentence(i, limit, [begin], {}) for i, limit in enumerate(limits)]
    tokens = torch.full((len(batch), 1), BOS)
    origin = torch.arange(len(batch))[:, None]
    while batch:
        log_probs = step(tokens, origin)
        # The best overall are among the best of each hypothesis (and `never` may be among those).
        best = log_probs.topk(min(looked_at + len(never), log_probs.size(-1)), dim=-1)
        continuations = zip(best.values.tolist(), best.indices.tolist(), strict=True)
        rows: list[list[int]] = []  # the row in this call of each live hypothesis of the next
        going_on: list[_Sentence] = []
        for place, (sentence, (values, ids)) in enumerate(zip(batch, continuations, strict=True)):
            candidates = sorted(
                (
                    (parent.total + value, -i, value, token)
                    for i, parent in enumerate(sentence.live)
                    for value, token in zip(values[i], ids[i], strict=True)
                    if token not in never and value > -math.inf
                ),
                key=lambda candidate: candidate[:2],
                reverse=True,
            )[:looked_at]
            live: list[_Node] = []
            live_rows: list[int] = []
            for rank, (total, minus_i, value, token) in enumerate(candidates):
                parent = sentence.live[-minus_i]
                node = _Node(parent, token, value, total, parent.length + 1)
                if token != EOS and len(live) < beam_size:
                    live.append(node)
                    live_rows.append(place * len(values) - minus_i)
                elif token == EOS and rank < beam_size:
                    hypothesis = node.hypothesis(penalty, finished=True)
                    key = same(hypothesis.tokens)
                    known = sentence.finished.get(key)
                    if known is None or hypothesis.score > known.score:
                        sentence.finished[key] = hypothesis
            if beam_size == 1 and sentence.finished:
                live = []
            if _done(sentence, live, n_best, penalty):
                ended = sentence.best()[:n_best]
                results[sentence.index] = ended or [_unfinished(live or sentence.live, penalty)]
            else:
                sentence.live = live
                going_on.append(sentence)
                rows.append(live_rows)
        batch = going_on
        if batch:
            tokens, origin = _next_call(batch, rows)
    return results


def _done(sentence: _Sentence, live: list[_Node], n_best: int, penalty: Penalty) -> bool:
    """Say whether nothing that is live can still change the sentence's `n_best` outputs.

    Log-probabilities are never positive, so a hypothesis ends with at most its present sum, over
    at most the largest divisor that the limit allows.
    """
    if not live or live[0].length >= sentence.limit:
        return True
    if len(sentence.finished) < n_best:
        return False
    attainable = max(node.total for node in live) / penalty(sentence.limit)
    return sentence.best()[n_best - 1].score >= attainable


def _unfinished(live: list[_Node], penalty: Penalty) -> Hypothesis:
    """Return the best hypothesis as it stands, where none ended in time."""
    hypotheses = (node.hypothesis(penalty, finished=False) for node in live)
    return max(hypotheses, key=lambda hypothesis: hypothesis.score)


def _next_call(
    batch: list[_Sentence], rows: list[list[int]]
) -> tuple[Int[Tensor, "B beam"], Int[Tensor, "B beam"]]:
    """Put the live hypotheses into one rectangle; where a sentence has fewer, its first repeats."""
    width = max(len(sentence.live) for sentence in batch)
    tokens = [
        [node.token for node in sentence.live]
        + [sentence.live[0].token] * (width - len(sentence.live))
        for sentence in batch
    ]
    origin = [of_one + [of_one[0]] * (width - len(of_one)) for of_one in rows]
    return torch.tensor(tokens), torch.tensor(origin)
