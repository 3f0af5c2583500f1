"""Gold links read, agreement with them by hand, and the search for the best layer and heads."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.test_alignment import FINDS, a_finder
from transduce.data.text import Pair
from transduce.errors import TransduceError
from transduce.inspection.alignment import Choice, Link, Prepared
from transduce.inspection.alignment_error import (
    Gold,
    agreement,
    error_rates,
    interval,
    read_gold,
)
from transduce.inspection.alignment_search import search, study
from transduce.inspection.study import page, printed, write_json
from transduce.inspection.words import Word

Write = Callable[[str, str | bytes], Path]


def of_sizes(*sizes: tuple[int, int]) -> list[Prepared]:
    return [
        Prepared(i, ([9] * s, [9] * t), [Word("x", ())] * s, [Word("x", ())] * t)
        for i, (s, t) in enumerate(sizes, start=1)
    ]


# Gold -------------------------------------------------------------------------------------------

PAIRS = of_sizes((3, 2), (2, 4), (5, 5))
SURE = [*map(frozenset[Link], [[(0, 0), (2, 1)], [], [(4, 4)]])]
POSSIBLE = [*map(frozenset[Link], [[(0, 0), (2, 1), (1, 1)], [(1, 3)], [(4, 4)]])]


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("0-0 2-1 1p1\n1p3\n4-4\n", 0),
        ("1-1 3-2 2p2\r\n2p4\n  5-5  \n", 1),
        ("3-2\t1-1 2p2 3p2\n2p4\n5-5", 1),
        ("1 0 0 S\n1 2 1 S \n1 1 1 P\n2 1 3 P\n\n3 4 4 S\n", 0),
        ("0001 1 1\n0001 3 2 S\n1 2 2 P 0.5\n3 5 5 S 1\n2 2 4 P\n", 1),
    ],
)
def test_formats_of_gold_links(write: Write, text: str, first: int) -> None:
    gold = read_gold(str(write("gold", text)), PAIRS)
    assert (gold.sure, gold.possible, gold.first, gold.certain) == (SURE, POSSIBLE, first, True)
    assert str(gold) == f"3 pairs with 3 sure and 2 more possible links, counted from {first}"


LINKS = st.tuples(st.integers(0, 3), st.integers(0, 2))
ALIGNED = st.lists(st.tuples(st.frozensets(LINKS), st.frozensets(LINKS)), min_size=1, max_size=5)


@settings(max_examples=50, deadline=None)
@given(aligned=ALIGNED, first=st.sampled_from([0, 1]), rows=st.booleans())
def test_gold_links_are_read_as_they_were_written(
    tmp_path_factory: pytest.TempPathFactory,
    aligned: list[tuple[frozenset[Link], frozenset[Link]]],
    first: int,
    rows: bool,
) -> None:
    sure = [one | {(0, 0), (3, 2)} for one, _ in aligned]  # so that the file says what is first
    possible = [one | other for one, (_, other) in zip(sure, aligned, strict=True)]
    lines = []
    for number, (certain, every) in enumerate(zip(sure, possible, strict=True), start=1):
        marked = [(s + first, t + first, (s, t) in certain) for s, t in sorted(every)]
        if rows:
            lines += [f"{number} {s} {t} {'S' if is_ else 'P'}\n" for s, t, is_ in marked]
        else:
            lines.append(" ".join(f"{s}{'-' if is_ else 'p'}{t}" for s, t, is_ in marked) + "\n")
    path = tmp_path_factory.mktemp("gold") / "gold"
    path.write_text("".join(lines))
    gold = read_gold(str(path), of_sizes(*[(4, 3)] * len(aligned)))
    assert (gold.sure, gold.possible, gold.first) == (sure, possible, first)


def test_a_file_that_does_not_say_where_words_begin(write: Write) -> None:
    gold = read_gold(str(write("gold", "1-1\n\n2-3\n")), PAIRS)
    assert (gold.first, gold.certain) == (0, False)
    assert gold.sure == [{(1, 1)}, set(), {(2, 3)}]
    assert read_gold(str(write("gold", "\n\n\n")), PAIRS).certain


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0-0\n\n", "has 2 lines, but there are 3 pairs"),
        ("", "has 0 lines, but there are 3 pairs"),
        ("0-0\n1-x\n\n", r"gold, line 2: '1-x' is no link such as 3-4"),
        ("0-0\n1-1-1\n\n", r"line 2: '1-1-1' is no link"),
        ("0-0\n-1-1\n\n", r"line 2: '-1-1' is no link"),
        ("0-0 1--1\n\n\n", r"line 1: '1--1' is no link"),
        ("0-0\n٣-1\n\n", "line 2: '٣-1' is no link"),
        ("0-" + "9" * 5000 + "\n\n\n", "line 1: '0-9999"),
        ("0-0\n2-1\n\n", r"line 2: link 2-1, but the pair has 2 and 4 words \(counted from 0 as"
                         r" line 1 has a word 0\)"),
        ("1-1\n2p4\n6-1\n", r"line 3: link 6-1, but the pair has 5 and 5 words \(counted from 1\)"),
        ("1 1 1\n2 1\n", "line 2: '2 1' is not the number of a pair and of two words"),
        ("1 1 1\n2 1 1 Q\n", "line 2: '2 1 1 Q' is not"),
        ("1 1 1\n1-1\n\n", "line 2: '1-1' is not"),
        ("1 0 0\n4 1 1\n", "line 2: there is no pair 4, there are 3, counted from 1"),
        ("0 0 0\n", "line 1: there is no pair 0"),
        ("1 0 0\n2 2 0\n", "line 2: link 2-0, but the pair has 2 and 4 words"),
    ],
)  # fmt: skip
def test_wrong_gold_links(write: Write, text: str, message: str) -> None:
    with pytest.raises(TransduceError, match=message):
        read_gold(str(write("gold", text)), PAIRS)


# Agreement --------------------------------------------------------------------------------------


def matrix(links: set[Link], s: int, t: int) -> torch.Tensor:
    found = torch.zeros(t, s, dtype=torch.bool)
    for i, j in links:
        found[j, i] = True
    return found


def test_an_error_rate_by_hand() -> None:
    """Three links, two of them sure: AER 1 − (2 + 2) / (3 + 2); half of it wrong once more."""
    sure, possible = frozenset({(0, 0), (1, 1)}), frozenset({(0, 0), (1, 1), (2, 2)})
    some = torch.stack([
        matrix({(0, 0), (1, 1), (2, 3)}, 3, 4), matrix({(0, 0), (2, 2)}, 3, 4),
        matrix(set(), 3, 4),
    ])  # fmt: skip
    counts = agreement(some, sure, possible)
    assert counts.tolist() == [[3, 2, 2, 2], [2, 2, 1, 2], [0, 2, 0, 0]]
    error, precision, recall = error_rates(counts)
    assert error.tolist() == pytest.approx([20.0, 25.0, 100.0])
    assert precision.tolist() == pytest.approx([200 / 3, 100.0, np.nan], nan_ok=True)
    assert recall.tolist() == pytest.approx([100.0, 50.0, 0.0])


def test_nothing_to_find_and_nothing_found_is_no_error() -> None:
    error, precision, recall = error_rates(np.array([0, 0, 0, 0]))
    assert error == 0 and np.isnan(precision) and np.isnan(recall)


@settings(max_examples=50, deadline=None)
@given(ALIGNED, st.lists(st.frozensets(LINKS), min_size=5, max_size=5))
def test_error_rates_by_sets(
    aligned: list[tuple[frozenset[Link], frozenset[Link]]], found: list[frozenset[Link]]
) -> None:
    """Against the definition on sets of (pair, link)."""
    counts = []
    A, S, P = (set[tuple[int, Link]]() for _ in range(3))
    for n, ((sure, more), links) in enumerate(zip(aligned, found, strict=False)):
        counts.append(agreement(matrix(set(links), 4, 3), sure, sure | more))
        for into, of in ((A, links), (S, sure), (P, sure | more)):
            into |= {(n, link) for link in of}
    expected = 1 - (len(A & S) + len(A & P)) / (len(A) + len(S)) if A or S else 0.0
    assert error_rates(np.sum(counts, axis=0))[0] == pytest.approx(100 * expected)


def test_intervals() -> None:
    right, wrong = [1, 1, 1, 1], [1, 1, 0, 0]
    assert interval(np.array([right] * 9)).tolist() == [0.0, 0.0]
    assert interval(np.array([right, wrong])).tolist() == [0.0, 100.0]  # a quarter is each of them
    many = interval(np.array([right, wrong] * 200))
    assert many == pytest.approx([45.1, 54.9], abs=0.7)  # 50 ± 1.96 · 50 / √400
    two = interval(np.array([[right, wrong], [right, wrong]]))
    assert two.T.tolist() == [[0.0, 0.0], [100.0, 100.0]]


# The search -------------------------------------------------------------------------------------

TEXTS = [("a b c d", "d a c b"), ("", "a"), ("e f g", "g e f"), ("h a", "a h")]
RIGHT = "0-1 1-3 2-2 3-0\n\n0-1 1-2 2-0\n0-1 1-0\n"


def test_the_head_that_finds_is_found(write: Write, tmp_path: Path) -> None:
    pairs = [Pair(src, tgt, i) for i, (src, tgt) in enumerate(TEXTS, start=1)]
    told: list[int] = []
    found = search(a_finder(), pairs, str(write("gold", RIGHT)), tell=told.append)
    assert found.best == FINDS
    assert found.usual == Choice(1)
    assert sum(told) == 3
    error, precision, recall = found.rates
    assert (error[1, 1, 1], precision[1, 1, 1], recall[1, 1, 1]) == (0.0, 100.0, 100.0)
    assert (np.delete(error.flatten(), np.ravel_multi_index((1, 1, 1), error.shape)) > 0).all()
    assert found.halves() == (0.0, 0.0, 0.0)
    assert (found.counts[..., 1].sum(axis=0) == 9).all()  # blank pairs' gold links count, too
    made = study(found, "finder")
    lines = list(printed(made))
    assert sum(len(re.findall(r"[])] best\b", line)) for line in lines) == 1
    assert any("(head 1) best" in line and line.split()[0] == "2" for line in lines if line.strip())
    assert any("Best: layer 2, head 1, one step later: error rate 0.0" in line for line in lines)
    assert "finder" in page(made)
    write_json(made, tmp_path / "figures.json")
    record = json.loads((tmp_path / "figures.json").read_text())
    assert record["best"] == {
        "layer": 2, "heads": [1], "later": True, "error": 0.0, "interval": [0.0, 0.0],
        "precision": 100.0, "recall": 100.0,
    }  # fmt: skip
    assert record["halves"] == {"error": 0.0, "interval": [0.0, 0.0]}
    assert len(record["choices"]) == 2 * 3 * 2
    assert (record["pairs"], record["units"], record["threshold"]) == (4, "words", None)


def test_a_choice_is_measured_on_the_other_half(write: Write) -> None:
    """Where the halves disagree, the best of all looks better than it is."""
    pairs = [Pair("a b", "b a", 1), Pair("a b", "b a", 2)]
    found = search(a_finder(), pairs, str(write("gold", "0-1 1-0\n0-0 1-0\n")))
    halves = found.halves()
    assert halves is not None
    assert halves[0] > found.rates[0].min()
    alone = search(a_finder(), pairs[:1], str(write("gold", "0-1 1-0\n")))
    assert alone.halves() is None
    assert not any("half" in line for line in printed(study(alone, "x")))


def test_nothing_is_found_without_pairs(write: Write) -> None:
    with pytest.raises(TransduceError, match="there are no pairs"):
        search(a_finder(), [], str(write("gold", "")))


def test_a_threshold_counts_in_the_search(write: Write) -> None:
    pairs = [Pair("a b", "b c", 1)]
    gold = str(write("gold", "1-0 0p1\n"))
    assert search(a_finder(), pairs, gold, threshold=0.9).rates[0][1, 1, 1] == 0.0
    assert isinstance(search(a_finder(), pairs, gold).gold, Gold)
