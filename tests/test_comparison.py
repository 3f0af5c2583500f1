"""Duplicates and leaks: what hashes find is what a plain comparison of all texts finds."""

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transduce.config import CleaningConfig
from transduce.data import chunks as chunking
from transduce.data import comparison
from transduce.data.chunks import CleanJob, clean
from transduce.data.comparison import Chunk, compare, find_leaks, mixed, repeated
from transduce.data.corpus import Corpus
from transduce.data.report import printed
from transduce.data.text import Pair, comparison_key
from transduce.preparing import prepare_corpus

Write = Callable[[str, str | bytes], Path]
Texts = Sequence[tuple[str, str]]
OFF = CleaningConfig(ratio="off", symbols="off", identical="off", script="off")


def chunks_of(folder: Path, name: str, pairs: Texts, size: int) -> list[Chunk]:
    """Clean pairs in chunks of some size, as preparation does."""
    found = []
    for first in range(0, len(pairs), size):
        some = [
            Pair(src, tgt, first + i + 1)
            for i, (src, tgt) in enumerate(pairs[first : first + size])
        ]
        title = f"{name}-{first:05}"
        job = CleanJob(folder, title, list(some), 0, "", "", OFF, "NFC", None, (), True)
        assert clean(job) == title
        found.append(Chunk(folder / f"{title}.arrow", first, len(some), ""))
    return found


SIDE = st.sampled_from(["a", "A", "a b", "a  B", "é", "e\u0301", "b", "ﬁ", "fi", "c"])
PAIRS = st.lists(st.tuples(SIDE, SIDE), min_size=1, max_size=30)


def normal(pairs: Texts) -> list[tuple[str, str]]:
    import unicodedata

    return [
        (unicodedata.normalize("NFC", src), unicodedata.normalize("NFC", tgt)) for src, tgt in pairs
    ]


def seen_before(values: Sequence[Any]) -> list[bool]:
    return [value in values[:i] for i, value in enumerate(values)]


def keys(pair: tuple[str, str]) -> tuple[str, str]:
    return comparison_key(pair[0]), comparison_key(pair[1])


@settings(max_examples=40, deadline=None)
@given(PAIRS, st.integers(1, 7), st.integers(1, 40))
def test_repeated_is_what_a_set_says(texts: Texts, size: int, bucket: int) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(comparison, "BUCKET", bucket)
        chunks = chunks_of(Path(folder), "train", texts, size)
        pairs = normal(texts)
        expected = {
            "pair": seen_before(pairs),
            "pair_key": seen_before([keys(pair) for pair in pairs]),
            "src_hash": seen_before([src for src, _ in pairs]),
            "tgt_hash": seen_before([tgt for _, tgt in pairs]),
            "src_key": seen_before([keys(pair)[0] for pair in pairs]),
            "tgt_key": seen_before([keys(pair)[1] for pair in pairs]),
        }
        for what, flags in expected.items():
            assert repeated(chunks, what).tolist() == flags, what


@settings(max_examples=40, deadline=None)
@given(PAIRS, PAIRS, st.integers(1, 7))
def test_leaks_are_what_a_set_says(texts: Texts, held_out: Texts, size: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        train = chunks_of(Path(folder), "train", texts, size)
        valid = chunks_of(Path(folder), "valid", held_out, size)
        (leak,), leaked = find_leaks(train, {"valid": valid})
    known, asked = normal(texts), normal(held_out)
    known_keys = [keys(pair) for pair in known]
    for side, kind in enumerate(("source", "target")):
        assert leak[kind] == {
            "exact": sum(pair[side] in {one[side] for one in known} for pair in asked),
            "normalised": sum(
                keys(pair)[side] in {one[side] for one in known_keys} for pair in asked
            ),
        }
    assert leak["pair"] == {
        "exact": sum(pair in known for pair in asked),
        "normalised": sum(keys(pair) in known_keys for pair in asked),
    }
    sources = {keys(pair)[0] for pair in asked}
    assert leaked.tolist() == [key[0] in sources for key in known_keys]
    assert leak["pairs"] == len(held_out)


@settings(max_examples=25, deadline=None)
@given(
    PAIRS,
    PAIRS,
    st.sampled_from(["off", "report", "drop"]),
    st.sampled_from(["off", "report", "drop"]),
    st.sampled_from(["off", "report", "drop"]),
)
def test_each_pair_is_left_out_for_one_reason(
    texts: Texts, held_out: Texts, duplicates: Any, near: Any, leaks: Any
) -> None:
    cleaning = CleaningConfig(duplicates=duplicates, near_duplicates=near, leaks=leaks)
    noted: list[tuple[int, str]] = []
    with tempfile.TemporaryDirectory() as folder:
        train = chunks_of(Path(folder), "train", texts, 4)
        valid = chunks_of(Path(folder), "valid", held_out, 4)

        def note(chunk: Chunk, reason: str, pair: Pair) -> None:
            noted.append((pair.line, reason))

        result = compare(train, {"valid": valid}, cleaning, note)
    pairs = normal(texts)
    exact = seen_before(pairs)
    similar = [
        near and not same
        for near, same in zip(seen_before([keys(p) for p in pairs]), exact, strict=True)
    ]
    sources = {keys(pair)[0] for pair in normal(held_out)}
    leaked = [keys(pair)[0] in sources for pair in pairs]
    expected: dict[int, str] = {}
    reported: dict[str, int] = {}
    for name, action, flags in (
        ("duplicates", duplicates, exact),
        ("near_duplicates", near, similar),
        ("leaks", leaks, leaked),
    ):
        lines = [i for i, flag in enumerate(flags, start=1) if flag and i not in expected]
        if action == "drop":
            expected |= dict.fromkeys(lines, name)
        if action != "off" and lines:
            reported[name] = len(lines)
    assert dict(noted) == expected and len(noted) == len(expected)
    assert [i + 1 for i in np.flatnonzero(result.dropped)] == sorted(expected)
    assert {name: f.count for (name, _), f in result.findings.found.items()} == reported
    assert result.duplicates["pairs"] == sum(exact)
    assert result.duplicates["near_pairs"] == sum(exact) + sum(similar)


def test_a_pair_is_more_than_the_sum_of_its_sides() -> None:
    """(a, b), (b, a) and (a, a), (b, b) are four different pairs."""
    a, b = np.array([3], np.uint64), np.array([2**63 + 5], np.uint64)
    hashes = {int(mixed(x, y)[0]) for x in (a, b) for y in (a, b)}
    assert len(hashes) == 4


# --- in a corpus ---------------------------------------------------------------------------------


def prepare(
    folder: Path, train: str, valid: str, test: str = "", **cleaning: str
) -> tuple[Corpus, dict[str, Any]]:
    data: dict[str, Any] = {"workers": 1}
    for name, text in (("train", train), ("valid", valid), ("test", test)):
        if text:
            (folder / f"{name}.tsv").write_text(text)
            data[name] = str(folder / f"{name}.tsv")
    settings = {"data": data, "cleaning": cleaning, "tokenizer": {"kind": "char"}}
    corpus = prepare_corpus(settings, folder / "corpus", lambda line: None)
    return corpus, corpus.report()


TRAIN = "the cat\tdie Katze\nA  Dog\tein Hund\nbirds fly\tVögel fliegen\none\teins\ntwo\tzwei\n"
VALID = "the cat\tder Kater\na dog\tirgendein Hund\nnew\tneu\n"


def test_exact_1_normalised_2(tmp_path: Path) -> None:
    """A10: one copy, and one that differs in case and a double space."""
    _, report = prepare(tmp_path, TRAIN, VALID)
    (leak,) = report["leaks"]
    assert leak["source"] == {"exact": 1, "normalised": 2}
    assert leak["target"] == {"exact": 0, "normalised": 0}
    assert leak["pair"] == {"exact": 0, "normalised": 0}
    assert [(e["src"], e["kind"], e["line"]) for e in leak["examples"]] == [
        ("the cat", "source", 1),
        ("a dog", "source", 2),
    ]
    line = "of 3 valid pairs also in training (exact / normalised): source 1 / 2, target 0 / 0"
    assert any(shown.startswith(line) for shown in printed(report))
    assert "2 of 3 valid sources are also training sources" in report["advice"][0]
    rows = [row for row in report["parts"]["train"]["checks"] if row["name"] == "leaks"]
    assert [(row["action"], row["lines"]) for row in rows] == [("report", ["1", "2"])]


def test_by_target_and_by_pair_in_validation_and_test(tmp_path: Path) -> None:
    test = "x\tEINS\ntwo\tzwei\nTwo\tZwei\ny\tz\n"
    _, report = prepare(tmp_path, TRAIN, VALID, test)
    valid, tests = report["leaks"]
    assert (valid["part"], tests["part"]) == ("valid", "test")
    assert tests["source"] == {"exact": 1, "normalised": 2}
    assert tests["target"] == {"exact": 1, "normalised": 3}
    assert tests["pair"] == {"exact": 1, "normalised": 2}
    assert tests["pairs"] == 4
    assert [e["kind"] for e in tests["examples"]] == ["target", "pair", "pair"]
    assert len(report["advice"]) >= 2


def texts(corpus: Corpus) -> list[str]:
    return [corpus.train.text(i)[0] for i in range(len(corpus.train))]


def test_leaks_are_dropped(tmp_path: Path) -> None:
    """Of validation and of test; after that nothing is left to be advised."""
    corpus, report = prepare(tmp_path, TRAIN, VALID, "One\tx\n", leaks="drop")
    assert texts(corpus) == ["birds fly", "two"]
    assert corpus.manifest["train"]["dropped"] == {"leaks": 3}
    dropped = (tmp_path / "corpus" / "dropped.tsv").read_text().split("\n")
    assert dropped[1:] == [
        "train\tleaks\t\t1\tthe cat\tdie Katze",
        "train\tleaks\t\t2\tA  Dog\tein Hund",
        "train\tleaks\t\t4\tone\teins",
        "",
    ]
    assert not any("also training sources" in line for line in report["advice"])
    assert any("before they were left out there" in line for line in printed(report))


def test_leaks_off(tmp_path: Path) -> None:
    corpus, report = prepare(tmp_path, TRAIN, VALID, leaks="off")
    assert len(corpus.train) == 5
    assert "leaks" not in [row["name"] for row in report["parts"]["train"]["checks"]]


REPEATED = "a\tb\nc\td\na\tb\nA\tB\na\tx\nC \td\na\tb\n"


@pytest.mark.parametrize(
    ("actions", "left"),
    [
        ({}, "a c a A a C a"),
        ({"duplicates": "drop"}, "a c A a C"),
        ({"near_duplicates": "drop"}, "a c a a a"),
        ({"duplicates": "drop", "near_duplicates": "drop"}, "a c a"),
        ({"duplicates": "off", "near_duplicates": "off"}, "a c a A a C a"),
    ],
)
@pytest.mark.parametrize("size", [2, 100])
def test_duplicates_across_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, actions: dict[str, str], left: str, size: int
) -> None:
    monkeypatch.setattr(chunking, "CHUNK", size)
    monkeypatch.setattr(comparison, "BUCKET", 2)
    corpus, report = prepare(tmp_path, REPEATED, "z\tz\n", **actions)
    assert texts(corpus) == left.split()
    part = report["parts"]["train"]
    assert part["duplicates"] == {"pairs": 2, "near_pairs": 4, "sources": 3, "targets": 3}
    found = {(row["name"], row["action"]): row["lines"] for row in part["checks"]}
    for name, lines in (("duplicates", ["3", "7"]), ("near_duplicates", ["4", "6"])):
        action = actions.get(name, "report")
        assert found.get((name, action)) == (None if action == "off" else lines)


def test_many_copies_of_one_pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first stays, wherever the chunks end."""
    monkeypatch.setattr(chunking, "CHUNK", 3)
    corpus, _ = prepare(tmp_path, "a\tb\n" * 20, "z\tz\n", duplicates="drop")
    assert len(corpus.train) == 1
    assert corpus.manifest["train"]["dropped"] == {"duplicates": 19}
