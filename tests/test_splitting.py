"""Dividing and drawing pairs: equal sources on one side, sizes as asked, the same every time."""

import io
import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transduce.config import Reading, Source
from transduce.data import splitting
from transduce.data.readers import read_pairs, sources
from transduce.data.splitting import sample, split
from transduce.data.text import Pair, comparison_key
from transduce.errors import TransduceError, UsageError

Write = Callable[[str, str | bytes], Path]


def of(*paths: Path) -> list[Source]:
    return sources([str(path) for path in paths], Reading())


def read(out: Path, name: str) -> list[Pair]:
    path = out / f"{name}.tsv"
    return list(read_pairs(str(path))) if path.exists() else []


def keys(pairs: list[Pair]) -> set[str]:
    return {comparison_key(pair.src) for pair in pairs}


def lines(count: int) -> str:
    return "".join(f"source {i}\ttarget {i}\n" for i in range(count))


@pytest.mark.parametrize("seed", range(10))
def test_equal_sources_stay_together(write: Write, tmp_path: Path, seed: int) -> None:
    """A10: ten times `x y` among 100 lines; also equal but for case, spaces, Unicode form."""
    forms = ["x y", "X y", "x  y", " x y", "x\u00a0y", "x Y", "x y ", "ｘ y", "X Y", "x y"]
    others = [f"s{i}\tt{i}" for i in range(90)]
    for i, form in enumerate(forms):
        others.insert(9 * i, f"{form}\t{i}")
    train = write("a.tsv", "\n".join(others) + "\n")
    counts = split(of(train), tmp_path / "out", "10%", "10%", seed)
    parts = {name: read(tmp_path / "out", name) for name in ("train", "valid", "test")}
    assert counts == {name: len(pairs) for name, pairs in parts.items()}
    assert counts == {"train": 80, "valid": 10, "test": 10}
    for one, other in itertools.combinations(parts.values(), 2):
        assert not keys(one) & keys(other)
    for pairs in parts.values():
        assert sum(comparison_key(pair.src) == "x y" for pair in pairs) in (0, 10)


SOURCES = st.lists(st.integers(0, 30), min_size=3, max_size=120)


@settings(max_examples=60, deadline=None)
@given(SOURCES, st.integers(1, 40), st.integers(0, 40), st.integers(0, 100))
def test_every_pair_is_in_one_part_and_sizes_are_near(
    tmp_path_factory: pytest.TempPathFactory, ids: list[int], valid: int, test: int, seed: int
) -> None:
    folder = tmp_path_factory.mktemp("split")
    (folder / "a.tsv").write_text("".join(f"s{i}\tline {n}\n" for n, i in enumerate(ids)))
    largest = max(ids.count(i) for i in ids)
    try:
        counts = split(of(folder / "a.tsv"), folder, str(valid), str(test), seed)
    except UsageError as error:
        few = valid + test >= len(ids)
        assert ("pairs, too few" in str(error)) == few
        assert few or valid + test + 2 * largest > len(ids)  # too few different ones
        assert not (folder / "train.tsv").exists()
        return
    parts = {name: read(folder, name) for name in ("train", "valid", "test")}
    together = [(pair.src, pair.tgt) for pairs in parts.values() for pair in pairs]
    assert sorted(together) == sorted((f"s{i}", f"line {n}") for n, i in enumerate(ids))
    assert not keys(parts["train"]) & keys(parts["valid"])
    assert not keys(parts["train"]) & keys(parts["test"])
    assert not keys(parts["valid"]) & keys(parts["test"])
    for pairs in parts.values():  # each in the order of the file
        numbers = [int(pair.tgt.split()[1]) for pair in pairs]
        assert numbers == sorted(numbers)
    for name, wanted in (("valid", valid), ("test", test)):
        assert len(parts[name]) == counts.get(name, 0)
        assert (counts.get(name, 0) == 0) == (wanted == 0)
        assert abs(len(parts[name]) - wanted) < max(1, largest)
    assert parts["train"]


@pytest.mark.parametrize(
    ("valid", "test", "expected"),
    [
        ("10%", "20%", (700, 100, 200)),
        ("100", "7", (893, 100, 7)),
        ("0", "1%", (990, None, 10)),
        ("0%", "0", (1000, None, None)),
        ("0.5%", "0.0%", (995, 5, None)),
        (" 12.5% ", "0", (875, 125, None)),
        ("0.0001%", "00", (999, 1, None)),
    ],
)
def test_sizes(
    write: Write, tmp_path: Path, valid: str, test: str, expected: tuple[int | None, ...]
) -> None:
    counts = split(of(write("a.tsv", lines(1000))), tmp_path / "out", valid, test, 1)
    assert tuple(counts.get(name) for name in ("train", "valid", "test")) == expected
    names = {f"{name}.tsv" for name in counts}
    assert {path.name for path in (tmp_path / "out").iterdir()} == names


@pytest.mark.parametrize("size", ["-5", "ten", "10 %", "1.5", "", "%", "1e3", "10%%", "9" * 400])
@pytest.mark.parametrize("name", ["valid", "test"])
def test_nonsense_sizes(write: Write, tmp_path: Path, size: str, name: str) -> None:
    """Refused before the pairs are read: here, there is no such file."""
    given = {"valid": "1", "test": "1"} | {name: size}
    with pytest.raises(UsageError, match=rf"--{name} .*must be a number of pairs or a share"):
        split(of(tmp_path / "nothing.tsv"), tmp_path / "out", given["valid"], given["test"], 1)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("valid", "test"), [("50%", "50%"), ("10", "0"), ("0", "200%"), ("5", "5"), ("99999999", "1")]
)
def test_too_large(write: Write, tmp_path: Path, valid: str, test: str) -> None:
    with pytest.raises(UsageError, match=r"there are 10 pairs, too few for .* and some to train"):
        split(of(write("a.tsv", lines(10))), tmp_path / "out", valid, test, 1)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("content", ["s\tt\n" * 100, "s\tt\n" * 60 + "S\tt\n" * 40])
@pytest.mark.parametrize(("valid", "test"), [("10", "10"), ("0", "10%"), ("1", "0")])
def test_one_source_cannot_be_divided(
    write: Write, tmp_path: Path, content: str, valid: str, test: str
) -> None:
    with pytest.raises(UsageError, match="the 100 pairs have 1 different sources, too few"):
        split(of(write("a.tsv", content)), tmp_path / "out", valid, test, 1)


@pytest.mark.parametrize("seed", range(5))
def test_a_frequent_source_does_not_swell_a_small_part(
    write: Write, tmp_path: Path, seed: int
) -> None:
    content = "often\tt\n" * 900 + lines(100)
    counts = split(of(write("a.tsv", content)), tmp_path / "out", "10", "10", seed)
    assert counts == {"train": 980, "valid": 10, "test": 10}


def test_an_empty_file(write: Write, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there are 0 pairs"):
        split(of(write("a.tsv", "")), tmp_path / "out", "10%", "10%", 1)


@pytest.mark.parametrize("name", ["train", "valid", "test"])
def test_files_that_are_there_stay_untouched(write: Write, tmp_path: Path, name: str) -> None:
    there = write(f"{name}.tsv", "mine")
    with pytest.raises(UsageError, match=rf"{name}.tsv is there already: give another --out"):
        split(of(write("a.tsv", lines(10))), tmp_path, "1", "1", 1)
    assert there.read_text() == "mine"
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(["a.tsv", f"{name}.tsv"])


def test_a_part_that_is_not_made_may_be_there(write: Write, tmp_path: Path) -> None:
    there = write("test.tsv", "mine")
    assert split(of(write("a.tsv", lines(10))), tmp_path, "1", "0", 1) == {"valid": 1, "train": 9}
    assert there.read_text() == "mine"


def test_the_same_seed_divides_the_same_way(write: Write, tmp_path: Path) -> None:
    train = write("a.tsv", lines(200))
    for name, seed in (("one", 1), ("again", 1), ("other", 2)):
        split(of(train), tmp_path / name, "10%", "10%", seed)
    for part in ("train.tsv", "valid.tsv", "test.tsv"):
        one, again, other = (
            (tmp_path / name / part).read_bytes() for name in ("one", "again", "other")
        )
        assert one == again != other


def test_two_files(write: Write, tmp_path: Path) -> None:
    src, tgt = write("s", "a\nb\u2028c\nd\n"), write("t", "A\nB\tB\nD\n")
    split(of(src, tgt), tmp_path / "out", "1", "0", 1)
    both = read(tmp_path / "out", "train") + read(tmp_path / "out", "valid")
    assert sorted((pair.src, pair.tgt) for pair in both) == [("a", "A"), ("b c", "B B"), ("d", "D")]


class Stdin:
    def __init__(self, content: bytes) -> None:
        self.buffer = io.BytesIO(content)


def test_standard_input(tmp_path: Path, write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is read twice, though it comes once; and divides as the same file does."""
    content = lines(50)
    monkeypatch.setattr("sys.stdin", Stdin(content.encode()))
    assert split(sources("-", Reading()), tmp_path / "piped", "5", "5", 3)["train"] == 40
    split(of(write("a.tsv", content)), tmp_path / "file", "5", "5", 3)
    for name in ("train", "valid", "test"):
        assert read(tmp_path / "piped", name) == read(tmp_path / "file", name)


def test_one_side_from_standard_input(
    tmp_path: Path, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", Stdin(b"a\nb\nc\n"))
    found = sources(["-", str(write("t", "A\nB\nC\n"))], Reading())
    split(found, tmp_path / "out", "1", "1", 3)
    pairs = [pair for part in ("train", "valid", "test") for pair in read(tmp_path / "out", part)]
    assert sorted((pair.src, pair.tgt) for pair in pairs) == [("a", "A"), ("b", "B"), ("c", "C")]


def test_both_sides_from_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", Stdin(b"a\nb\nc\n"))
    with pytest.raises(UsageError, match="only one file can come from standard input"):
        split(sources(["-", "-"], Reading()), tmp_path / "out", "1", "1", 3)


def test_a_file_that_breaks_off_leaves_nothing(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the second pass, when the parts are half written."""
    passes = itertools.count()

    def breaking(*args: Any) -> Iterator[Pair]:
        second = next(passes) == 1
        for number, pair in enumerate(read_pairs(*args)):
            if second and number == 20:
                raise TransduceError("cannot read it any further")
            yield pair

    monkeypatch.setattr(splitting, "read_pairs", breaking)
    with pytest.raises(TransduceError, match="any further"):
        split(of(write("a.tsv", lines(50))), tmp_path / "out", "5", "5", 1)
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_full_disk_leaves_nothing(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    replace, calls = os.replace, itertools.count(1)

    def full(*args: Any) -> None:
        if next(calls) == at:
            raise OSError(28, "No space left on device")
        replace(*args)

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(TransduceError, match=r"cannot write to .*out: No space left on device"):
        split(of(write("a.tsv", lines(50))), tmp_path / "out", "5", "5", 1)
    assert list((tmp_path / "out").iterdir()) == []


def test_a_place_that_cannot_be_written(write: Write) -> None:
    file = write("file", "")
    with pytest.raises(TransduceError, match=r"cannot write to .*file/out: Not a directory"):
        split(of(write("a.tsv", lines(50))), file / "out", "5", "5", 1)


# --- sample --------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, 7, 50, 51, 1000])
def test_so_many_pairs_in_the_order_of_the_file(write: Write, count: int) -> None:
    train = of(write("a.tsv", lines(50)))
    found = sample(train, count, 1)
    assert len(found) == min(count, 50)
    assert [pair.line for pair in found] == sorted({pair.line for pair in found})
    assert all(pair.src == f"source {pair.line - 1}" for pair in found)
    assert sample(train, count, 1) == found


def test_another_seed_draws_others(write: Write) -> None:
    train = of(write("a.tsv", lines(100)))
    assert sample(train, 10, 1) != sample(train, 10, 2)


def test_each_pair_is_drawn_equally_often(write: Write) -> None:
    """200 draws of 5 of 20: each about 50 times (six standard deviations are 37)."""
    train = of(write("a.tsv", lines(20)))
    times = dict.fromkeys(range(1, 21), 0)
    for seed in range(200):
        for pair in sample(train, 5, seed):
            times[pair.line] += 1
    assert sum(times.values()) == 1000
    assert all(13 < count < 87 for count in times.values())
