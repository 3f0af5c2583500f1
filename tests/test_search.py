"""Beam search over stub scorers: exact answers, brute force, limits, reserved tokens."""

import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from transduce.config import BOS, EOS, PAD, UNK
from transduce.decoding.constraints import FREE, Constraints, Phrase
from transduce.decoding.search import (
    GROUP,
    Hypothesis,
    Next,
    Penalty,
    Sampling,
    Step,
    beam_search,
    largest,
    sample,
)

A, B = 4, 5
Scorer = Callable[[tuple[int, ...]], dict[int, float]]
NONE, AVERAGE = Penalty("none"), Penalty("average")


def stub(scorers: Sequence[Scorer], vocab: int = 6, calls: list[int] | None = None) -> Step:
    """Make a step function from one scorer per sentence: prefix -> probabilities."""
    rows: list[tuple[int, tuple[int, ...]]] = []

    def step(tokens: Tensor, origin: Tensor) -> Next:
        nonlocal rows
        if not rows:
            rows = [(sentence, ()) for sentence in range(len(scorers))]
            prefixes = rows
        else:
            prefixes = [
                (rows[r][0], (*rows[r][1], t))
                for r, t in zip(origin.flatten().tolist(), tokens.flatten().tolist(), strict=True)
            ]
        rows = prefixes
        if calls is not None:
            calls.append(len(rows))
        log_probs = torch.full((len(rows), vocab), -math.inf, dtype=torch.float64)
        for row, (sentence, prefix) in zip(log_probs, prefixes, strict=True):
            for token, probability in scorers[sentence](prefix).items():
                row[token] = math.log(probability) if probability else -math.inf
        return Next(log_probs.view(*tokens.shape, vocab))

    return step


def s1(prefix: tuple[int, ...]) -> dict[int, float]:
    """The stub scorer S1."""
    match prefix:
        case ():
            return {A: 0.55, B: 0.40, EOS: 0.05}
        case (4,):
            return {A: 0.35, B: 0.33, EOS: 0.32}
        case (5,):
            return {A: 0.06, B: 0.04, EOS: 0.90}
        case _:
            return {EOS: 1.0}


def strings(hypotheses: list[Hypothesis]) -> list[str]:
    return ["".join("AB"[t - 4] for t in h.tokens if t != EOS) for h in hypotheses]


S1_ALL = {  # string: log-probability, the same divided by n
    "B": (-1.0217, -0.5108), "AA": (-1.6477, -0.5492), "AB": (-1.7065, -0.5688),
    "A": (-1.7373, -0.8686), "": (-2.9957, -2.9957), "BA": (-3.7297, -1.2432),
    "BB": (-4.1352, -1.3784),
}  # fmt: skip


def test_s1_greedy_and_beams() -> None:
    """A29."""
    assert strings(beam_search(stub([s1]), [9], 1, penalty=NONE)[0]) == ["AA"]
    for beam in range(2, 9):
        assert strings(beam_search(stub([s1]), [9], beam, penalty=NONE)[0]) == ["B"]


@pytest.mark.parametrize(("beam", "n_best"), [(10, 7), (20, 20), (7, 7)])
def test_s1_all_strings(beam: int, n_best: int) -> None:
    found = beam_search(stub([s1]), [9], beam, n_best, NONE)[0]
    assert strings(found) == list(S1_ALL)
    for hypothesis, (log_probability, _) in zip(found, S1_ALL.values(), strict=True):
        assert hypothesis.log_probability == pytest.approx(log_probability, abs=5e-5)
        assert hypothesis.score == hypothesis.log_probability
        assert hypothesis.tokens[-1] == EOS and EOS not in hypothesis.tokens[:-1]
        assert hypothesis.finished
    found = beam_search(stub([s1]), [9], beam, n_best, AVERAGE)[0]
    assert strings(found) == ["B", "AA", "AB", "A", "BA", "BB", ""]
    assert [h.score for h in found] == pytest.approx(
        [S1_ALL[s][1] for s in strings(found)], abs=5e-5
    )


@pytest.mark.parametrize("penalty", [NONE, AVERAGE, Penalty(), Penalty("gnmt", 2.0)], ids=str)
def test_the_first_is_the_same_for_every_n_best(penalty: Penalty) -> None:
    """A30."""
    for beam in (2, 4, 8):
        firsts = {
            beam_search(stub([s1]), [9], beam, n, penalty)[0][0].tokens for n in range(1, beam + 1)
        }
        assert len(firsts) == 1


def test_the_long_one_wins() -> None:
    """A30: no early end while a live hypothesis can still win under the penalty."""

    def scorer(prefix: tuple[int, ...]) -> dict[int, float]:
        if not prefix:
            return {EOS: 0.5, A: 0.5}
        return {A: 0.99, EOS: 0.01} if len(prefix) < 10 else {EOS: 1.0}

    assert len(beam_search(stub([scorer]), [20], 2, penalty=AVERAGE)[0][0].tokens) == 11
    assert len(beam_search(stub([scorer]), [20], 2, penalty=NONE)[0][0].tokens) == 1


@pytest.mark.parametrize(
    ("penalty", "first", "scores"),
    [
        (NONE, "X", (-0.9163, -1.2040)),
        (AVERAGE, "Y", (-0.4581, -0.3010)),
        (Penalty("gnmt", 0.6), "X", (-0.8353, -0.9440)),
        (Penalty("gnmt", 1.0), "X", (-0.7854, -0.8026)),
    ],
    ids=str,
)
def test_what_a_length_penalty_means(
    penalty: Penalty, first: str, scores: tuple[float, float]
) -> None:
    """A31: X has n = 2 and p = 0.4, Y has n = 4 and p = 0.3; n counts END."""

    def scorer(prefix: tuple[int, ...]) -> dict[int, float]:
        table = {(): {A: 0.4, B: 0.3}, (A,): {EOS: 1.0}, (B,): {B: 1.0}, (B, B): {B: 1.0}}
        return table.get(prefix, {EOS: 1.0})

    found = beam_search(stub([scorer]), [9], 4, 2, penalty)[0]
    by_length = {len(h.tokens): h.score for h in found}
    assert (by_length[2], by_length[4]) == pytest.approx(scores, abs=5e-5)
    assert len(found[0].tokens) == {"X": 2, "Y": 4}[first]
    for hypothesis in found:
        assert hypothesis.log_probability == pytest.approx(sum(hypothesis.log_probabilities))


def test_a_beam_wider_than_the_vocabulary() -> None:
    """A32."""
    found = beam_search(stub([lambda prefix: {EOS: 0.5, 4: 0.5}], vocab=5), [3], 10, 10, NONE)[0]
    assert [h.tokens for h in found] == [(EOS,), (4, EOS), (4, 4, EOS)]


@pytest.mark.parametrize(("beam", "n_best"), [(0, 1), (-1, 1), (2, 3), (2, 0)])
def test_impossible_beams(beam: int, n_best: int) -> None:
    with pytest.raises(ValueError, match="n_best"):
        beam_search(stub([s1]), [9], beam, n_best)
    with pytest.raises(ValueError, match="limit"):
        beam_search(stub([s1]), [0], 1)


@pytest.mark.parametrize("beam", [1, 4])
@pytest.mark.parametrize("limit", [1, 2, 7])
def test_a_search_that_would_never_end(beam: int, limit: int) -> None:
    """A33: exactly the limit, marked, and the neighbour is as it is alone."""

    def endless(prefix: tuple[int, ...]) -> dict[int, float]:
        return {A: 0.6, B: 0.4}

    found, neighbour = beam_search(stub([endless, s1]), [limit, 9], beam, penalty=NONE)
    assert [h.finished for h in found] == [False]
    assert found[0].tokens == (A,) * limit
    assert neighbour == beam_search(stub([s1]), [9], beam, penalty=NONE)[0]


@pytest.mark.parametrize("beam", [1, 2, 4])
def test_reserved_tokens_are_never_generated(beam: int) -> None:
    """A27: all mass on PAD, BEGIN and UNKNOWN; then next best, or nothing at all."""
    nearly = beam_search(
        stub([lambda prefix: {PAD: 0.5, BOS: 0.3, UNK: 0.19, A: 0.006, EOS: 0.004}]), [5], beam
    )[0][0]
    assert not {PAD, BOS, UNK} & set(nearly.tokens)
    nothing = beam_search(stub([lambda prefix: {PAD: 1.0}]), [5], beam)[0]
    assert [(h.tokens, h.finished) for h in nothing] == [((), False)]


def test_finished_sentences_leave_the_batch() -> None:
    def long(prefix: tuple[int, ...]) -> dict[int, float]:
        return {A: 1.0} if len(prefix) < 12 else {EOS: 1.0}

    calls: list[int] = []
    beam_search(stub([s1, long, s1], calls=calls), [20] * 3, 1)
    assert calls[0] == 3
    assert calls[-1] == 1
    assert len(calls) == 13


def test_equal_texts_count_once() -> None:
    """P10: with A and B standing for the same text, the better one is kept."""
    found = beam_search(
        stub([s1]), [9], 7, 7, NONE, same=lambda tokens: len([t for t in tokens if t != EOS])
    )[0]
    assert strings(found) == ["B", "AA", ""]


# Against the whole truth


def random_scorer(seed: int, letters: int, depth: int) -> Scorer:
    """Return a made-up scorer: any prefix has its own random distribution; all end at `depth`."""

    def scorer(prefix: tuple[int, ...]) -> dict[int, float]:
        if len(prefix) == depth:
            return {EOS: 1.0}
        draw = torch.Generator().manual_seed(hash((seed, *prefix)) % 2**31)
        weights = torch.rand(letters + 1, generator=draw, dtype=torch.float64) + 1e-3
        shares = (weights / weights.sum()).tolist()
        return dict(zip([EOS, *range(4, 4 + letters)], shares, strict=True))

    return scorer


def brute_force(
    scorer: Scorer, letters: int, depth: int, penalty: Penalty
) -> dict[tuple[int, ...], float]:
    scores = {}
    for length in range(depth + 1):
        for prefix in itertools.product(range(4, 4 + letters), repeat=length):
            tokens = (*prefix, EOS)
            log_probability = sum(math.log(scorer(tokens[:i])[t]) for i, t in enumerate(tokens))
            scores[tokens] = log_probability / penalty(len(tokens))
    return scores


PENALTIES = st.sampled_from([NONE, AVERAGE, Penalty(), Penalty("gnmt", 1.5)])


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 3), st.integers(1, 3), PENALTIES)
def test_a_beam_as_wide_as_the_space_is_brute_force(
    seed: int, letters: int, depth: int, penalty: Penalty
) -> None:
    scorer = random_scorer(seed, letters, depth)
    truth = brute_force(scorer, letters, depth, penalty)
    found = beam_search(
        stub([scorer], vocab=4 + letters), [depth + 1], len(truth) + 1, len(truth), penalty
    )[0]
    ranked = sorted(truth, key=lambda tokens: -truth[tokens])
    assert [h.tokens for h in found] == ranked
    assert [h.score for h in found] == pytest.approx([truth[tokens] for tokens in ranked])


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 3), PENALTIES)
def test_a_beam_of_one_is_greedy(seed: int, letters: int, penalty: Penalty) -> None:
    scorer = random_scorer(seed, letters, depth=4)
    prefix: tuple[int, ...] = ()
    while EOS not in prefix:
        choices = scorer(prefix)
        prefix = (*prefix, max(choices, key=lambda token: choices[token]))
    assert beam_search(stub([scorer], 4 + letters), [9], 1, penalty=penalty)[0][0].tokens == prefix


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 4), PENALTIES, st.permutations(range(5)))
def test_company_and_order_change_nothing(
    seed: int, beam: int, penalty: Penalty, order: list[int]
) -> None:
    """A28, on stub scorers of different depths and limits."""
    scorers = [random_scorer(seed + i, 3, depth=i + 1) for i in range(5)]
    limits = [3, 9, 2, 9, 4]
    alone = [
        beam_search(stub([s], 7), [limit], beam, beam, penalty)[0]
        for s, limit in zip(scorers, limits, strict=True)
    ]
    together = beam_search(
        stub([scorers[i] for i in order], 7), [limits[i] for i in order], beam, beam, penalty
    )
    assert together == [alone[i] for i in order]


# Constraints

PHRASES = st.lists(st.integers(4, 6), min_size=1, max_size=2).map(tuple)
REQUIRED = st.builds(Phrase, PHRASES, st.booleans())
INSIDE = st.frozensets(st.integers(4, 6), max_size=2)


@dataclass(frozen=True)
class Without:
    """Bans what would complete some phrases."""

    phrases: tuple[tuple[int, ...], ...]

    def __call__(self, tokens: Sequence[int]) -> list[int]:
        return [
            phrase[-1]
            for phrase in self.phrases
            if tuple(tokens[len(tokens) - len(phrase) + 1 :]) == phrase[:-1]
        ]


def count(tokens: Sequence[int], phrase: Phrase, within: frozenset[int]) -> int:
    """Count occurrences in another way: letters, and a pattern."""
    text = "".join(chr(ord("a") + token) for token in tokens)
    words = "".join(chr(ord("a") + token) for token in phrase.tokens)
    inside = "".join(chr(ord("a") + token) for token in sorted(within))
    return len(re.findall(words + (f"(?![{inside}])" if inside and phrase.word else ""), text))


def allowed(tokens: tuple[int, ...], rule: Constraints) -> bool:
    """Say the same as `Constraints` in another way, of a whole output."""

    def behind(n: int) -> list[tuple[int, ...]]:
        first = max(0, len(rule.prefix) - n + 1)
        return [tokens[i : i + n] for i in range(first, len(tokens) - n + 1)]

    n, banned = rule.no_repeat, getattr(rule.banned, "phrases", ())
    grams = Counter(tokens[i : i + n] for i in range(len(tokens) - n + 1))
    return (
        tokens[: len(rule.prefix)] == rule.prefix
        and all(count(tokens, p, rule.inside) >= n for p, n in Counter(rule.required).items())
        and not any(phrase in behind(len(phrase)) for phrase in banned)
        and (not n or all(grams[gram] == 1 for gram in behind(n)))
        and len(tokens) >= rule.min_length
    )


RULES = st.fixed_dictionaries(
    {
        "prefix": st.lists(st.integers(4, 6), max_size=2).map(tuple),
        "required": st.lists(REQUIRED, max_size=2).map(tuple),
        "inside": INSIDE,
        "banned": st.lists(PHRASES, max_size=2).map(tuple).map(Without),
        "no_repeat": st.integers(0, 3),
        "min_length": st.integers(0, 4),
    }
)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), RULES)
def test_a_wide_beam_finds_what_is_allowed_and_no_more(seed: int, asked: dict[str, Any]) -> None:
    rule = Constraints(**asked)
    scorer = random_scorer(seed, 3, depth=3)
    truth = {t: s for t, s in brute_force(scorer, 3, 3, NONE).items() if allowed(t, rule)}
    (found,) = beam_search(stub([scorer], 7), [20], 50, 50, NONE, constraints=[rule])
    if truth:
        assert {h.tokens for h in found} == set(truth)
        assert [h.score for h in found] == pytest.approx(sorted(truth.values(), reverse=True))
    else:
        assert not found[0].finished


@settings(max_examples=100, deadline=None)
@given(
    st.integers(0, 10**6),
    st.lists(st.integers(4, 6), max_size=2).map(tuple),
    st.lists(REQUIRED, min_size=1, max_size=3),
    INSIDE,
    st.integers(1, 5),
    st.integers(0, 3),
)
def test_what_is_required_is_there_with_any_beam(
    seed: int,
    prefix: tuple[int, ...],
    phrases: list[Phrase],
    inside: frozenset[int],
    beam: int,
    room: int,
) -> None:
    """However narrow the beam and little the room: as much as is needed, END included."""
    endless, neighbour = random_scorer(seed, 3, depth=99), random_scorer(seed + 1, 3, depth=4)
    rule = Constraints(prefix, tuple(phrases), inside)
    limit = len(prefix) + rule.needed + 1 + room
    scorers = [endless, neighbour]
    found, free = beam_search(
        stub(scorers, 7), [limit, 9], beam, penalty=NONE, constraints=[rule, FREE]
    )
    best = found[0].tokens
    assert best[: len(prefix)] == prefix
    for phrase, n in Counter(phrases).items():
        others = {p.tokens for p in phrases} - {phrase.tokens}
        if not phrase.word or not any(p[0] in inside for p in others | {phrase.tokens}):
            assert count(best, phrase, inside) >= n
    assert free == beam_search(stub([neighbour], 7), [9], beam, penalty=NONE)[0]


def test_coverage_prefers_what_has_seen_the_whole_source() -> None:
    """Of two outputs the less probable one attended to everything."""

    def scorer(prefix: tuple[int, ...]) -> dict[int, float]:
        return {A: 0.6, B: 0.4} if not prefix else {EOS: 1.0}

    inner, last = stub([scorer]), [0]

    def step(tokens: Tensor, origin: Tensor) -> Next:
        last[:] = tokens.flatten().tolist()
        covered = torch.tensor([[0.0 if token == B else math.log(0.5) for token in last]])
        return Next(inner(tokens, origin).log_probs, covered.double())

    def first(beta: float) -> Hypothesis:
        inner_penalty = Penalty("none", beta=beta)
        return beam_search(step, [9], 2, penalty=inner_penalty)[0][0]

    assert strings([first(0.0)]) == ["A"]
    inner, last = stub([scorer]), [0]
    found = first(1.0)
    assert strings([found]) == ["B"]
    assert found.score == pytest.approx(math.log(0.4))


# Sampling


def test_draws_have_the_probabilities_of_the_model() -> None:
    """Each of S1's strings comes up as often as it should, within five standard deviations."""
    count = 3_000
    found = sample(stub([s1] * count), [9] * count, range(count), penalty=NONE)
    drawn = Counter(strings(hypotheses)[0] for hypotheses in found)
    assert set(drawn) <= set(S1_ALL)
    for string, (log_probability, _) in S1_ALL.items():
        p = math.exp(log_probability)
        assert abs(drawn[string] - count * p) < 5 * math.sqrt(count * p * (1 - p))
    (hypothesis,) = found[0]
    assert hypothesis.log_probability == pytest.approx(S1_ALL[strings(found[0])[0]][0], abs=5e-5)


@pytest.mark.parametrize(
    "sampling", [Sampling(top_k=1), Sampling(top_p=1e-6), Sampling(temperature=1e-6)], ids=str
)
def test_narrow_draws_are_greedy(sampling: Sampling) -> None:
    assert strings(sample(stub([s1]), [9], [7], 1, sampling, NONE)[0]) == ["AA"]


def test_tops_leave_out_the_improbable() -> None:
    """S1 begins with A 0.55, B 0.40, END 0.05: of the two best tokens END is never one here."""
    for sampling in (Sampling(top_k=2), Sampling(top_p=0.9)):
        found = sample(stub([s1] * 400), [9] * 400, range(400), 1, sampling, NONE)
        drawn = {strings(hypotheses)[0] for hypotheses in found}
        assert "" not in drawn
        assert {"B", "AA"} <= drawn


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 4), st.permutations(range(5)))
def test_draws_do_not_depend_on_company(seed: int, count: int, order: list[int]) -> None:
    scorers = [random_scorer(seed + i, 3, depth=i + 1) for i in range(5)]
    limits, sampling = [3, 9, 2, 9, 4], Sampling(seed=seed)
    alone = [
        sample(stub([s], 7), [limit], [i], count, sampling)[0]
        for i, (s, limit) in enumerate(zip(scorers, limits, strict=True))
    ]
    together = sample(
        stub([scorers[i] for i in order], 7), [limits[i] for i in order], order, count, sampling
    )
    assert together == [alone[i] for i in order]
    for hypotheses in alone:
        assert len({h.tokens for h in hypotheses}) == len(hypotheses) <= count


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), RULES)
def test_draws_obey_rules_too(seed: int, asked: dict[str, Any]) -> None:
    scorer = random_scorer(seed, 3, depth=4)
    rule = Constraints(**asked | {"required": ()})
    for hypothesis in sample(stub([scorer], 7), [5], [seed], 20, constraints=[rule])[0]:
        assert not hypothesis.finished or allowed(hypothesis.tokens, rule)


def test_impossible_draws() -> None:
    with pytest.raises(ValueError, match="count"):
        sample(stub([s1]), [9], [0], 0)
    with pytest.raises(ValueError, match="required"):
        sample(stub([s1]), [9], [0], constraints=[Constraints(required=(Phrase((A,)),))])
    unfinished = sample(stub([lambda prefix: {PAD: 1.0}]), [5], [0])[0]
    assert [(h.tokens, h.finished) for h in unfinished] == [((), False)]


@given(st.integers(0, 10**6), st.integers(1, 12), st.integers(0, GROUP - 1), st.booleans())
@settings(deadline=None, max_examples=60)
def test_the_largest_are_found_by_groups(seed: int, k: int, rest: int, hidden: bool) -> None:
    """As `torch.topk` finds them; also where nearly everything is forbidden."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(2, 3, 4 * 12 * GROUP + rest, generator=generator)
    if hidden:
        x[torch.rand(x.shape, generator=generator) < 0.999] = -math.inf
    values, ids = largest(x, k)
    assert torch.equal(values, x.topk(k).values)
    assert torch.equal(x.gather(-1, ids), values)
    assert all(len(set(row)) == k for row in ids.flatten(0, 1).tolist())
