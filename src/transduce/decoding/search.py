"""Search over a `step` function: greedy and beam search (§6.1), and sampling.

    step(tokens, origin) -> log-probabilities of each next token

`tokens[b, i]` is the token that hypothesis i of sentence b has just been given (BEGIN at first),
and `origin[b, i]` the row (sentence · beam + hypothesis) that it had in the call before, so that
whoever owns the step can carry its memory along. Sentences that are done leave the batch. Nothing
here knows a model or a text.
"""

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from transduce.config import BOS, EOS, PAD, UNK
from transduce.decoding.constraints import FREE, Constraints


class Next(NamedTuple):
    """What a step says about each hypothesis."""

    log_probs: Float[Tensor, "B beam vocab"]
    """Of each next token."""
    coverage: Float[Tensor, "B beam"] | None = None
    """Σ log min(Σ attention, 1) over the source: 0 once every source token was attended to."""


Step = Callable[[Int[Tensor, "B beam"], Int[Tensor, "B beam"]], Next]
Same = Callable[[tuple[int, ...]], Hashable]
Rule = tuple[Constraints, int]
"""What holds for the output of a sentence, and how many more tokens it may have."""
NEVER = (PAD, UNK, BOS)
"""Tokens that are never generated."""
GROUP = 64
"""How many neighbours make a group in `largest`; measured to be best for 4 to 11 of 8,000."""
DEAD = -math.inf
"""The sum of what is no hypothesis: a place in the beam that nothing fills."""


@dataclass(frozen=True)
class Penalty:
    """How a sum of log-probabilities becomes a score.

    It is divided by a function of the length n, which counts END and not BEGIN. `none`: 1;
    `average`: n; `gnmt`: ((5 + n) / 6)^alpha (Wu et al., 2016, eq. 14), which the paper uses with
    alpha 0.6. With `beta`, beta times the coverage is added (there, too).
    """

    kind: Literal["none", "average", "gnmt"] = "gnmt"
    alpha: float = 0.6
    beta: float = 0.0

    def __call__(self, n: int) -> float:
        """Return the divisor for a hypothesis of n tokens."""
        match self.kind:
            case "none":
                return 1.0
            case "average":
                return float(max(n, 1))
            case "gnmt":
                return float(((5 + n) / 6) ** self.alpha)

    def score(self, total: float, n: int, coverage: float = 0.0) -> float:
        """Return the score of a hypothesis."""
        return total / self(n) + self.beta * coverage


@dataclass(frozen=True)
class Hypothesis:
    """One output: its tokens (END included, if it ended), each with its log-probability."""

    tokens: tuple[int, ...]
    log_probabilities: tuple[float, ...]
    """Of each token; nothing where only the sum is known."""
    log_probability: float
    """Their sum."""
    score: float
    """The sum over the length penalty, and what coverage adds."""
    finished: bool
    """False if the length limit came before END."""


@dataclass
class _Live:
    """The hypotheses of a batch that live on, best first, and what they are made of."""

    sentences: list[int]
    """Which sentence each row belongs to."""
    tokens: Int[Tensor, "B beam n"]
    log_probs: Float[Tensor, "B beam n"]
    totals: Float[Tensor, "B beam"]
    """Sums of the log-probabilities, in float64; `DEAD` where the beam is not full."""
    coverage: Float[Tensor, "B beam"]

    @classmethod
    def begin(cls, count: int) -> "_Live":
        """Return one empty hypothesis for each of `count` sentences."""
        nothing, zero = torch.empty(count, 1, 0), torch.zeros(count, 1, dtype=torch.float64)
        return cls(list(range(count)), nothing.long(), nothing, zero, zero)

    @property
    def length(self) -> int:
        """The number of tokens that each of them has."""
        return self.tokens.size(2)

    def hypothesis(self, row: int, i: int, penalty: Penalty) -> Hypothesis:
        """Return one of them as it stands."""
        tokens, log_probs = self.tokens[row, i].tolist(), self.log_probs[row, i].tolist()
        score = penalty.score(float(self.totals[row, i]), self.length, float(self.coverage[row, i]))
        return Hypothesis(tuple(tokens), tuple(log_probs), math.fsum(log_probs), score, False)

    def continued(self, best: "_Continuations", places: Int[Tensor, "B some"]) -> "_Live":
        """Return what some of the continuations make of them."""
        parents = best.parents.gather(1, places)[:, :, None].expand(-1, -1, self.length)
        token = best.tokens.gather(1, places)[:, :, None]
        log_prob = best.log_probs.gather(1, places)[:, :, None]
        return _Live(
            self.sentences,
            torch.cat([self.tokens.gather(1, parents), token], dim=2),
            torch.cat([self.log_probs.gather(1, parents).to(log_prob), log_prob], dim=2),
            best.totals.gather(1, places),
            best.coverage.gather(1, places),
        )

    def rows(self, some: Int[Tensor, " fewer"]) -> "_Live":
        """Return some of the rows."""
        sentences = [self.sentences[row] for row in some.tolist()]
        return _Live(
            sentences, self.tokens[some], self.log_probs[some], self.totals[some],
            self.coverage[some],
        )  # fmt: skip


@dataclass
class _Continuations:
    """The best continuations of each sentence's hypotheses, best first."""

    totals: Float[Tensor, "B looked_at"]
    parents: Int[Tensor, "B looked_at"]
    tokens: Int[Tensor, "B looked_at"]
    log_probs: Float[Tensor, "B looked_at"]
    coverage: Float[Tensor, "B looked_at"]
    ranks: Int[Tensor, "B looked_at"]
    """Place among those with as many required tokens: without any, among all."""


@dataclass
class _Found:
    """The finished outputs of one sentence: of equal ones the best."""

    n_best: int
    by_key: dict[Hashable, Hypothesis] = field(default_factory=dict)
    worst_kept: float = -math.inf
    """Score of the n_best-th: what a live hypothesis has to beat."""

    def add(self, hypothesis: Hypothesis, key: Hashable) -> bool:
        """Keep a finished output; say whether it is kept, and no equal one is better."""
        known = self.by_key.get(key)
        if known is not None and hypothesis.score <= known.score:
            return False
        self.by_key[key] = hypothesis
        best = self.best()
        self.worst_kept = best[-1].score if len(best) == self.n_best else -math.inf
        return True

    def best(self) -> list[Hypothesis]:
        """Return the `n_best` best, or as many as there are."""
        return sorted(self.by_key.values(), key=lambda found: -found.score)[: self.n_best]


@dataclass(frozen=True)
class Moment:
    """One step of a search, for whoever watches it: nothing here is to be changed."""

    live: _Live
    """The hypotheses before it."""
    following: Next
    """What the model said."""
    rules: Sequence[Rule]
    """What holds for each sentence; nothing, where nothing was asked for."""
    chosen: _Continuations
    """The continuations that were looked at."""
    ended: dict[tuple[int, int], tuple[Hypothesis, bool]]
    """By row and place in `chosen`: the outputs, and whether each was kept."""
    grown: _Live
    """The hypotheses after it; the row of one that has ended is still there."""
    parents: Int[Tensor, "B beam"]
    """Which of the hypotheses before it each of them continues."""
    done: Bool[Tensor, " B"]
    to_beat: Sequence[float]
    """For each sentence, the score of the worst output that is kept; −∞ while there is room."""
    results: Sequence[list[Hypothesis]]
    """The outputs of the sentences that are done."""


Watch = Callable[[Moment], None]


def beam_search(
    step: Step,
    limits: Sequence[int],
    beam_size: int,
    n_best: int = 1,
    penalty: Penalty = Penalty(),
    same: Same = tuple,
    never: Iterable[int] = NEVER,
    constraints: Sequence[Constraints] | None = None,
    watch: Watch | None = None,
) -> list[list[Hypothesis]]:
    """Find the best outputs of each sentence of a batch.

    At every step the `beam_size` best continuations are looked at: those that end are finished,
    and the `beam_size` best that do not end live on. A sentence is done when no live hypothesis
    could still beat its `n_best` finished ones, however it went on, or at its length limit. So
    neither `n_best` nor the rest of the batch changes which output comes first. A beam of one is
    greedy search: the best continuation alone is looked at.

    Where phrases are required, the beam is divided among hypotheses that have more and fewer of
    their tokens, so that those with more, which are less probable at first, are not crowded out
    (Post and Vilar, 2018).

    Args:
        step: see the module's docstring.
        limits: for each sentence, the number of tokens it may have, END included.
        beam_size: number of live hypotheses of a sentence.
        n_best: number of outputs asked for, at most `beam_size`.
        penalty: the length penalty.
        same: outputs for whose tokens this gives equal values count as one; the best is kept.
        never: tokens that are never generated.
        constraints: for each sentence.
        watch: is shown every step; changes nothing.

    Returns:
        For each sentence its outputs, best score first: distinct, and fewer than `n_best` only if
        the search found no more. If none ended in time, the best unfinished one.

    Raises:
        ValueError: for a beam or an n_best below one, an n_best above the beam, or a limit of 0.
    """
    if not 1 <= n_best <= beam_size:
        raise ValueError(f"n_best ({n_best}) must lie between 1 and beam_size ({beam_size})")
    looked_at = beam_size if beam_size == 1 else 2 * beam_size
    reserved = torch.tensor(sorted(set(never)))

    def best(following: Next, live: _Live, rules: Sequence[Rule]) -> _Continuations:
        return _best(following, live, looked_at, reserved, penalty, rules)

    return _search(step, best, limits, beam_size, n_best, penalty, same, constraints, watch)


def _search(
    step: Step,
    choose: Callable[[Next, _Live, Sequence[Rule]], _Continuations],
    limits: Sequence[int],
    width: int,
    n_best: int,
    penalty: Penalty,
    same: Same,
    constraints: Sequence[Constraints] | None,
    watch: Watch | None,
) -> list[list[Hypothesis]]:
    """Continue the hypotheses of each sentence as `choose` says, `width` of them, until all end."""
    if any(limit < 1 for limit in limits):
        raise ValueError("the length limit must be at least 1")
    if constraints and all(rule == FREE for rule in constraints):
        constraints = None
    found = [_Found(n_best) for _ in limits]
    results: list[list[Hypothesis]] = [[] for _ in limits]
    live = _Live.begin(len(limits))
    tokens = torch.full((len(limits), 1), BOS)
    origin = torch.arange(len(limits))[:, None]
    while live.sentences:
        rules = [(constraints[s], limits[s] - live.length) for s in live.sentences if constraints]
        following = step(tokens, origin)
        chosen = choose(following, live, rules)
        real, ends = chosen.totals > DEAD, chosen.tokens == EOS
        ended = {}
        for row, place in (real & ends & (chosen.ranks < width)).nonzero().tolist():
            hypothesis = _ended(live, chosen, row, place, penalty)
            kept = found[live.sentences[row]].add(hypothesis, same(hypothesis.tokens))
            ended[row, place] = (hypothesis, kept)
        grown, parents = _living(live, chosen, real & ~ends, width)
        done = _done(grown, limits, found, penalty)
        for row in done.nonzero().flatten().tolist():
            sentence = live.sentences[row]
            unfinished = grown if grown.totals[row, 0] > DEAD else live
            results[sentence] = found[sentence].best() or [unfinished.hypothesis(row, 0, penalty)]
        if watch is not None:
            to_beat = [found[sentence].worst_kept for sentence in live.sentences]
            seen = (live, following, rules, chosen, ended, grown, parents, done, to_beat, results)
            watch(Moment(*seen))
        on = (~done).nonzero().flatten()
        tokens, origin = grown.tokens[on, :, -1], on[:, None] * live.tokens.size(1) + parents[on]
        live = grown.rows(on)
    return results


def _best(
    following: Next,
    live: _Live,
    looked_at: int,
    reserved: Int[Tensor, " some"],
    penalty: Penalty,
    rules: Sequence[Rule],
) -> _Continuations:
    """Return the best `looked_at` continuations of the live hypotheses of each sentence."""
    log_probs = restricted(following.log_probs, live, rules)
    # The best overall are among the best of each hypothesis (and reserved ones may be among them).
    top = largest(log_probs, min(looked_at + len(reserved), log_probs.size(-1)))
    values, ids = (x.cpu() for x in top)
    if any(rule.required for rule, _ in rules):
        values, ids = _with_wanted(values, ids, log_probs, live, rules)
    values = values.masked_fill(torch.isin(ids, reserved), -math.inf)
    totals = live.totals[:, :, None] + values.double()
    covered = coverage_of(following, live)[:, :, None].expand_as(totals)
    order = totals + (penalty.beta * penalty(live.length + 1)) * covered
    places = order.flatten(1).sort(dim=1, descending=True, stable=True).indices
    ranks = torch.arange(places.size(1)).repeat(len(places), 1)
    for row, (rule, _) in enumerate(rules):
        if rule.required:
            possible = totals[row].flatten()[places[row]] > DEAD
            places[row], ranks[row] = _divided(
                places[row], possible, ids[row], live.tokens[row], rule
            )
    places, ranks = places[:, :looked_at], ranks[:, :looked_at]

    def chosen(x: Tensor) -> Tensor:
        return x.flatten(1).gather(1, places)

    return _Continuations(
        chosen(totals), places // ids.size(2), chosen(ids), chosen(values), chosen(covered), ranks
    )


def largest(
    x: Float[Tensor, "*rows vocab"], k: int
) -> tuple[Float[Tensor, "*rows k"], Int[Tensor, "*rows k"]]:
    """Return the k greatest of each row, greatest first, and where they are.

    On CPUs a long row is not sorted as a whole: the k greatest lie in those k groups of neighbours
    whose maxima are greatest, and maxima are quickly found.
    """
    groups = x.size(-1) // GROUP
    if x.device.type != "cpu" or groups < 4 * k:
        top = x.topk(k)
        return top.values, top.indices
    grouped = x[..., : groups * GROUP].unflatten(-1, (groups, GROUP))
    places = torch.arange(x.size(-1))
    best = grouped.amax(dim=-1).topk(k, sorted=False).indices
    rest = places[groups * GROUP :].expand(*best.shape[:-1], -1)
    ids = torch.cat([places[: groups * GROUP].view(groups, GROUP)[best].flatten(-2), rest], dim=-1)
    top = x.gather(-1, ids).topk(k)
    return top.values, ids.gather(-1, top.indices)


def coverage_of(following: Next, live: _Live) -> Float[Tensor, "B beam"]:
    """Return the coverage of each hypothesis: what it was, where a step says nothing about it."""
    return live.coverage if following.coverage is None else following.coverage.cpu().double()


def restricted(
    log_probs: Float[Tensor, "B beam vocab"], live: _Live, rules: Sequence[Rule]
) -> Float[Tensor, "B beam vocab"]:
    """Set to −∞ what the rules of each sentence do not allow."""
    if not rules:
        return log_probs
    log_probs = log_probs.clone()
    for (rule, room), histories, rows in zip(rules, live.tokens.tolist(), log_probs, strict=True):
        for history, row in zip(histories, rows, strict=True):
            rule.restrict(history, room, row)
    return log_probs


def _with_wanted(
    values: Float[Tensor, "B beam k"],
    ids: Int[Tensor, "B beam k"],
    log_probs: Float[Tensor, "B beam vocab"],
    live: _Live,
    rules: Sequence[Rule],
) -> tuple[Float[Tensor, "B beam more"], Int[Tensor, "B beam more"]]:
    """Add the tokens that required phrases want next, where they are not among the best anyway."""
    wanted = [
        [sorted(rule.wanted(history) - set(known)) for history, known in zip(*both, strict=True)]
        for (rule, _), *both in zip(rules, live.tokens.tolist(), ids.tolist(), strict=True)
    ]
    most = max(len(tokens) for row in wanted for tokens in row)
    more = torch.tensor(
        [[tokens + [PAD] * (most - len(tokens)) for tokens in row] for row in wanted]
    )
    more = more.long()
    extra = log_probs.cpu().gather(2, more).masked_fill(more == PAD, -math.inf)
    return torch.cat([values, extra], dim=2), torch.cat([ids, more], dim=2)


def _divided(
    places: Int[Tensor, " candidates"],
    possible: Bool[Tensor, " candidates"],
    ids: Int[Tensor, "beam k"],
    histories: Int[Tensor, "beam n"],
    rule: Constraints,
) -> tuple[Int[Tensor, " candidates"], Int[Tensor, " candidates"]]:
    """Order continuations so that those with more and fewer required tokens take turns.

    Returns:
        Their places in this order, and the rank of each among those with as many.
    """
    seen: Counter[int] = Counter()
    keyed = []
    for place in places[possible].tolist():
        i, j = divmod(place, ids.size(1))
        met = rule.met([*histories[i].tolist(), int(ids[i, j])])
        keyed.append((seen[met], -met, place))
        seen[met] += 1
    keyed.sort()
    rest = [(len(places), 0, place) for place in places[~possible].tolist()]
    return (
        torch.tensor([place for _, _, place in keyed + rest]),
        torch.tensor([rank for rank, _, _ in keyed + rest]),
    )


def _ended(live: _Live, best: _Continuations, row: int, place: int, penalty: Penalty) -> Hypothesis:
    """Return the output that a continuation by END makes."""
    i = best.parents[row, place]
    tokens = (*live.tokens[row, i].tolist(), EOS)
    log_probs = (*live.log_probs[row, i].tolist(), float(best.log_probs[row, place]))
    total, coverage = float(best.totals[row, place]), float(best.coverage[row, place])
    score = penalty.score(total, len(tokens), coverage)
    return Hypothesis(tokens, log_probs, math.fsum(log_probs), score, True)


def _living(
    live: _Live, best: _Continuations, lives: Bool[Tensor, "B looked_at"], beam_size: int
) -> tuple[_Live, Int[Tensor, "B beam"]]:
    """Return the continuations that live on, and which hypothesis each of them continues.

    Where there are fewer than elsewhere, the first stands in for the rest, as dead.
    """
    places = (~lives).sort(dim=1, stable=True).indices[:, :beam_size]
    alive = lives.gather(1, places)
    width = max(1, int(alive.sum(dim=1).max()))
    places, alive = places[:, :width], alive[:, :width]
    places = places.where(alive, places[:, :1])
    grown = live.continued(best, places)
    grown.totals.masked_fill_(~alive, DEAD)
    return grown, best.parents.gather(1, places)


def _done(
    grown: _Live, limits: Sequence[int], found: Sequence[_Found], penalty: Penalty
) -> Bool[Tensor, " B"]:
    """Say for each sentence whether nothing live can still change its `n_best` outputs.

    Log-probabilities are never positive, and coverage adds nothing positive, so a hypothesis ends
    with at most its present sum, over at most the largest divisor that the limit allows.
    """
    own = [limits[s] for s in grown.sentences]
    largest = torch.tensor([penalty(limit) for limit in own], dtype=torch.float64)
    to_beat = torch.tensor([found[s].worst_kept for s in grown.sentences], dtype=torch.float64)
    best = grown.totals.amax(dim=1)
    at_limit = torch.tensor(own) <= grown.length
    return at_limit | (best == DEAD) | (to_beat >= best / largest)


# Sampling ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sampling:
    """How outputs are drawn instead of searched for."""

    temperature: float = 1.0
    """Log-probabilities are divided by it: below 1 the probable becomes more so."""
    top_k: int = 0
    """Draw among so many most probable tokens; 0: among all."""
    top_p: float = 1.0
    """Draw among the fewest most probable tokens that have this share of the probability."""
    seed: int = 1


def sample(
    step: Step,
    limits: Sequence[int],
    keys: Sequence[int],
    count: int = 1,
    sampling: Sampling = Sampling(),
    penalty: Penalty = Penalty(),
    same: Same = tuple,
    never: Iterable[int] = NEVER,
    constraints: Sequence[Constraints] | None = None,
    watch: Watch | None = None,
) -> list[list[Hypothesis]]:
    """Draw outputs of each sentence of a batch.

    Args:
        step: see the module's docstring.
        limits: as for `beam_search`.
        keys: numbers that tell the sentences apart: what is drawn depends on (seed, key) alone, and
            not on the batch.
        count: how many outputs to draw of each.
        sampling: how.
        penalty: as for `beam_search`.
        same: likewise.
        never: likewise.
        constraints: likewise, but phrases cannot be required.
        watch: likewise.

    Returns:
        For each sentence its outputs, best score first; of equal ones one. Log-probabilities are
        the model's own, temperature or not.

    Raises:
        ValueError: for a required phrase, a count below one, or a limit of 0.
    """
    if count < 1:
        raise ValueError(f"count ({count}) must be at least 1")
    if constraints and any(rule.required for rule in constraints):
        raise ValueError("phrases cannot be required of what is drawn at random")
    reserved = torch.tensor(sorted(set(never)))
    generators = [np.random.default_rng([sampling.seed, key]) for key in keys]

    def drawn(following: Next, live: _Live, rules: Sequence[Rule]) -> _Continuations:
        u = torch.from_numpy(np.stack([generators[s].random(count) for s in live.sentences]))
        return _drawn(following, live, u, sampling, reserved, rules)

    return _search(step, drawn, limits, count, count, penalty, same, constraints, watch)


def _drawn(
    following: Next,
    live: _Live,
    u: Float[Tensor, "B count"],
    sampling: Sampling,
    reserved: Int[Tensor, " some"],
    rules: Sequence[Rule],
) -> _Continuations:
    """Draw one continuation of each hypothesis; at the beginning, `count` of the empty one.

    Each takes one of the random numbers `u` between 0 and 1.
    """
    log_probs = restricted(following.log_probs, live, rules).cpu()
    totals, covered = live.totals, coverage_of(following, live)
    parents = torch.arange(totals.size(1)).expand(totals.shape)
    if live.length == 0:
        log_probs = log_probs.expand(-1, u.size(1), -1)
        totals, covered, parents = (x.expand(u.shape) for x in (totals, covered, parents))
    allowed = log_probs.index_fill(2, reserved, -math.inf).double()
    values, ids = allowed.topk(sampling.top_k or allowed.size(2), dim=2)
    p = (values / sampling.temperature).softmax(dim=2).nan_to_num(0.0)  # nothing is allowed: 0
    before = p.cumsum(dim=2) - p
    p = p.masked_fill(before >= sampling.top_p, 0.0).cumsum(dim=2)
    place = torch.searchsorted(p, p[:, :, -1:] * u[:, : p.size(1), None], right=True)
    place = place.clamp(max=p.size(2) - 1)
    value, token = values.gather(2, place)[:, :, 0], ids.gather(2, place)[:, :, 0]
    ranks = torch.zeros_like(token)
    return _Continuations(totals + value, parents, token, value, covered, ranks)
