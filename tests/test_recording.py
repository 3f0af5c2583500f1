"""What a search records: every candidate has one fate, and the tree is the search."""

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.test_search import AVERAGE, NONE, S1_ALL, A, B, Scorer, random_scorer, s1, stub
from transduce.config import EOS
from transduce.decoding.constraints import Constraints
from transduce.decoding.recording import Record, Recorder
from transduce.decoding.search import NEVER, Hypothesis, Penalty, Sampling, beam_search, sample


def recorded(
    scorer: Scorer, limit: int, beam: int, n_best: int = 1, penalty: Penalty = NONE, **more: Any
) -> tuple[Record, list[Hypothesis]]:
    recorder = Recorder(penalty, limit, beam)
    found = beam_search(
        stub([scorer]), [limit], beam, n_best, penalty, watch=recorder, **more
    )[0]  # fmt: skip
    return recorder.record, found


def check(record: Record, found: list[Hypothesis]) -> None:
    """Check what holds for every record."""
    nodes = record.candidates()
    assert sorted(nodes) == list(range(1, len(nodes) + 1))
    assert record.outputs == found
    alive = {0}
    for step in record.steps:
        assert {hopes.id for hopes in step.live} == alive
        assert {one.parent for one in step.candidates} <= alive
        alive = {one.id for one in step.candidates if one.fate in ("kept", "limit")}
        assert len(alive) <= record.beam_size
        assert len({(one.parent, one.token) for one in step.candidates}) == len(step.candidates)
        assert all((one.token == EOS) >= (one.fate in ("finished", "duplicate")) for one in
                   step.candidates)  # fmt: skip
    for node in nodes.values():
        before = nodes[node.parent].total if node.parent else 0.0
        assert node.total == pytest.approx(before + node.log_probability, abs=1e-5)
        n = len(record.path(node.id))
        assert node.score == pytest.approx(record.penalty.score(node.total, n))
    for id, output in zip(record.output_ids, found, strict=True):
        assert tuple(record.path(id)) == output.tokens
        assert nodes[id].total == pytest.approx(math.fsum(output.log_probabilities), abs=1e-5)
        assert nodes[id].score == pytest.approx(output.score, abs=1e-5)
    assert record.end is not None


def test_s1_has_its_seven_strings() -> None:
    record, found = recorded(s1, 9, 10, 7)
    check(record, found)
    finished = {
        "".join("AB"[token - 4] for token in record.path(one.id)[:-1]): one
        for one in record.candidates().values()
        if one.fate == "finished"
    }
    assert set(finished) == set(S1_ALL)
    for string, (log_probability, average) in S1_ALL.items():
        assert finished[string].total == pytest.approx(log_probability, abs=5e-5)
        n = len(string) + 1
        assert finished[string].total / n == pytest.approx(average, abs=5e-5)
    assert record.end is not None and record.end.reason == "nothing lives"


def test_greedy_step_by_step() -> None:
    """A beam of one: A (0.55), then A again (0.35), then END."""
    record, found = recorded(s1, 9, 1)
    check(record, found)
    first = record.steps[0].candidates
    assert [(one.token, one.fate) for one in first[:3]] == [(A, "kept"), (B, "cut"), (EOS, "cut")]
    assert [one.rank for one in first] == list(range(1, len(first) + 1))
    assert first[0].log_probability == pytest.approx(math.log(0.55), abs=1e-6)
    assert record.path(record.output_ids[0]) == [A, A, EOS]


def test_the_bound_that_ended_it() -> None:
    """With a beam of two, B END (0.36) cannot be beaten by AA (0.1925) any more."""
    record, found = recorded(s1, 9, 2)
    check(record, found)
    end = record.end
    assert end is not None and end.reason == "bound"
    assert end.to_beat == pytest.approx(math.log(0.36), abs=1e-5)
    assert end.best_live == pytest.approx(math.log(0.1925), abs=1e-5)
    assert end.divisor == 1.0 and end.bound == end.best_live


def test_limit() -> None:
    record, found = recorded(lambda prefix: {A: 0.7, B: 0.3}, 3, 2)
    check(record, found)
    assert record.end is not None and record.end.reason == "limit"
    assert {one.fate for one in record.steps[-1].candidates} == {"limit", "cut"}
    assert not found[0].finished


def test_forbidden() -> None:
    rule = Constraints(banned=lambda tokens: [A])
    record, found = recorded(s1, 9, 2, constraints=[rule])
    check(record, found)
    fates = {one.token: one.fate for one in record.steps[0].candidates}
    assert fates[A] == "forbidden" and fates[B] == "kept"


def test_duplicates() -> None:
    """Outputs that count as one: the worse is a duplicate."""
    record, found = recorded(s1, 9, 10, 7, same=lambda tokens: len(tokens))
    check(record, found)
    fates = [one.fate for one in record.candidates().values() if one.token == EOS]
    assert fates.count("duplicate") == 7 - len(found) and len(found) == 3


@settings(deadline=None, max_examples=60)
@given(
    st.integers(0, 10**6), st.integers(1, 6), st.integers(1, 6),
    st.sampled_from([NONE, AVERAGE, Penalty(), Penalty("gnmt", 2.0)]),
)  # fmt: skip
def test_any_search(seed: int, beam: int, limit: int, penalty: Penalty) -> None:
    """Watched or not, the same outputs; and of a batch, each sentence's own record."""
    scorers = [random_scorer(seed + i, 3, limit) for i in range(3)]
    alone = beam_search(stub(scorers, 7), [limit] * 3, beam, 1, penalty)
    for sentence in range(3):
        recorder = Recorder(penalty, limit, beam, sentence=sentence)
        found = beam_search(stub(scorers, 7), [limit] * 3, beam, 1, penalty, watch=recorder)
        assert found == alone
        check(recorder.record, found[sentence])


def test_sampling() -> None:
    recorder = Recorder(NONE, 9, 3, "sample")
    found = sample(stub([s1]), [9], [0], 3, Sampling(seed=5), NONE, watch=recorder)[0]
    assert recorder.record.outputs == found
    nodes = recorder.record.candidates()
    assert {tuple(recorder.record.path(i)) for i in recorder.record.output_ids} == {
        output.tokens for output in found
    }
    assert all(one.token not in NEVER for one in nodes.values() if one.fate != "forbidden")
