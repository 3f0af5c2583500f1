"""Counts of text: added up in any parts, they are the same; what is shown follows from them."""

import json
from collections import Counter
from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from transduce.data import statistics
from transduce.data.statistics import (
    BINS,
    RATIO_STEPS,
    SideStatistics,
    Survey,
    distribution,
    percentile,
)

LINES = st.text(st.sampled_from("ab ü你\u00a0😀"), min_size=1, max_size=30)
PAIRS = st.lists(st.tuples(LINES, LINES), max_size=30)


def surveyed(pairs: list[tuple[str, str]]) -> Survey:
    found = Survey()
    for src, tgt in pairs:
        found.add(src, tgt)
    return found


def test_a_line() -> None:
    side = SideStatistics()
    side.add("a bb  a\u00a0ü")
    side.add("你好")
    assert (side.lines, side.word_count, side.lines_with_space) == (2, 5, 1)
    assert side.characters == Counter("a bb  a\u00a0ü你好")
    assert side.words == {"a", "bb", "ü", "你好"}
    assert side.lengths == {9: 1, 2: 1}


@given(PAIRS, st.lists(st.integers(0, 30), max_size=3))
def test_parts_add_up(pairs: list[tuple[str, str]], cuts: list[int]) -> None:
    whole, merged = surveyed(pairs), Survey()
    edges = [0, *sorted(min(cut, len(pairs)) for cut in cuts), len(pairs)]
    for start, end in pairwise(edges):
        part = surveyed(pairs[start:end])
        kept = json.dumps(part.to_json())
        merged.merge(part)
        assert json.dumps(part.to_json()) == kept  # it is not changed by that
    assert merged == whole
    assert merged.pairs == len(pairs)


@given(PAIRS)
def test_counts_survive_json(pairs: list[tuple[str, str]]) -> None:
    found = surveyed(pairs)
    text = json.dumps(found.to_json(), ensure_ascii=False)
    again = Survey.from_json(json.loads(text))
    assert again == found
    assert json.dumps(again.to_json(), ensure_ascii=False) == text
    reordered = surveyed(pairs[::-1])
    assert json.dumps(reordered.to_json(), ensure_ascii=False) == text


@given(st.lists(st.text(st.sampled_from("abc "), max_size=12), max_size=40), st.integers(0, 40))
def test_words_are_counted_up_to_a_limit(lines: list[str], cut: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(statistics, "MANY_WORDS", 5)
        whole, first, second = SideStatistics(), SideStatistics(), SideStatistics()
        for number, line in enumerate(lines):
            whole.add(line)
            (first if number < cut else second).add(line)
        first.merge(second)
        distinct = len({word for line in lines for word in line.split()})
        for found in (whole, first):
            summary = found.summary()
            assert summary["distinct_words"] == min(5, distinct)
            assert summary["distinct_words_capped"] is (distinct >= 5)
            assert len(found.words) <= 5 + 6 + 6  # and one line's more, from either part
        assert first.summary() == whole.summary()


def test_what_is_shown() -> None:
    side = SideStatistics()
    for line in ("abba", "c", "d e"):
        side.add(line)
    summary = side.summary()
    assert (summary["characters"], summary["words"], summary["distinct_words"]) == (8, 4, 4)
    assert summary["distinct_characters"] == 6 and not summary["distinct_words_capped"]
    assert summary["top_characters"] == [["a", 2], ["b", 2]] + [[c, 1] for c in " cde"]
    assert summary["lengths"]["max"] == 4 and summary["lengths"]["median"] == 3
    for number in range(60):
        side.add(chr(0x4E00 + number))
    assert len(side.summary()["top_characters"]) == 40


# --- distributions -------------------------------------------------------------------------------


@example([5] * 200 + [1000])
@example(list(range(24)) * 20 + [24])
@given(st.lists(st.integers(0, 10**6) | st.integers(0, 40), min_size=1, max_size=200))
def test_a_histogram(lengths: list[int]) -> None:
    shown = distribution(Counter(lengths))
    bins = shown["bins"]
    assert sum(count for _, _, count in bins) == len(lengths)
    assert 1 <= len(bins) <= BINS + 1
    assert bins[0][0] == 0
    for (low, high, _), (following, _, _) in pairwise(bins):
        assert low < high == following
    for low, high, count in bins:
        assert count == sum(low <= length < high for length in lengths)
    assert shown["max"] == max(lengths)
    assert shown["mean"] == pytest.approx(sum(lengths) / len(lengths), abs=0.0051)
    ordered = sorted(lengths)
    for key, share in (("median", Fraction(1, 2)), ("p95", Fraction(95, 100))):
        assert shown[key] == ordered[max(0, -(-share * len(lengths) // 1) - 1)]


def test_nothing_to_show() -> None:
    assert distribution(Counter()) == {"bins": [], "mean": 0.0, "median": 0, "p95": 0, "max": 0}
    assert Survey().ratio_summary() == {"bins": [], "median": 1.0}
    assert SideStatistics().summary()["top_characters"] == []


@pytest.mark.parametrize(
    ("lengths", "share", "expected"),
    [
        ([7], 0.5, 7),
        ([1, 2], 0.5, 1),
        ([1, 2, 3], 0.5, 2),
        (list(range(1, 101)), 0.95, 95),
        (list(range(1, 101)), 0.99, 99),
        (list(range(1, 101)), 1.0, 100),
        ([1] * 19 + [50], 0.95, 1),
        ([1] * 18 + [50] * 2, 0.95, 50),
    ],
)
def test_percentiles(lengths: list[int], share: float, expected: int) -> None:
    assert percentile(sorted(Counter(lengths).items()), len(lengths), share) == expected


# --- ratios --------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(1, 300), st.integers(1, 300)), min_size=1, max_size=50))
def test_ratios(sizes: list[tuple[int, int]]) -> None:
    found = surveyed([("a" * src, "b" * tgt) for src, tgt in sizes])
    shown = found.ratio_summary()
    assert sum(count for _, _, count in shown["bins"]) == len(sizes)
    ratios = sorted(tgt / src for src, tgt in sizes)
    least, most = shown["bins"][0], shown["bins"][-1]
    assert least[0] <= ratios[0] + 1e-3 and least[2] > 0
    assert (most[1] > ratios[-1] - 1e-3 or most[1] == round(RATIO_STEPS[-1], 3)) and most[2] > 0
    middle = min(max(ratios[-(-len(ratios) // 2) - 1], 0.05), 16)
    assert middle / 1.3 < shown["median"] + 0.01 and shown["median"] < middle * 1.3 + 0.01


@pytest.mark.parametrize(
    ("pair", "median"),
    [(("abc", "abc"), 1.0), (("ab", "abcd"), 2.0), (("abcd", "ab"), 0.5), (("", "a"), 1.0)],
)
def test_usual_ratios_lie_in_the_middle(pair: tuple[str, str], median: float) -> None:
    assert surveyed([pair]).ratio_summary()["median"] == median


def test_a_survey_stays_small() -> None:
    """What is kept does not grow with the corpus."""
    once, often = (
        len(json.dumps(surveyed([("a b", "c")] * times).to_json())) for times in (10, 1000)
    )
    assert often < once + 40
