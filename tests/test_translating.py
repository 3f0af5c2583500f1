"""Whole files: stopped and taken up again, refused where something else was begun."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.test_requests import translator_with
from transduce.decoding import translator as translator_module
from transduce.decoding.outputs import Translation
from transduce.decoding.requests import Request
from transduce.errors import TransduceError, UsageError
from transduce.translating import Destination, count_lines, destination, translate_file

LINES = [f"{'a ' * (i % 5)}dog {i}" for i in range(23)]
TRANSLATOR = translator_with("char", max_extra=3)


class Killed(Exception):
    """Stands for a process that ends."""


def show(translation: Translation, number: int) -> str:
    return f"{number} {translation.text}"


def translate(output: Path, lines: list[str], until: int | None = None, settings: str = "s") -> int:
    """Translate lines to a file, perhaps killed before one of them; return how many were read."""
    read = 0

    def requests() -> Iterator[Request]:
        nonlocal read
        for i, line in enumerate(lines):
            if i == until:
                raise Killed
            read += 1
            yield Request(line)

    with destination(output, settings) as out:
        translate_file(TRANSLATOR, requests(), show, out, total=len(lines))
    return read


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transduce.translating.CHUNK", 4)


@pytest.mark.parametrize("until", [0, 1, 4, 5, 11, 22])
def test_it_goes_on_where_it_stopped(tmp_path: Path, until: int) -> None:
    whole, output = tmp_path / "whole", tmp_path / "out"
    translate(whole, LINES)
    with pytest.raises(Killed):
        translate(output, LINES, until)
    assert not output.exists()
    calls = []
    real = TRANSLATOR.translate
    try:
        TRANSLATOR.translate = lambda *a, **k: calls.append(len(a[0])) or real(*a, **k)  # type: ignore[method-assign,func-returns-value]
        assert translate(output, LINES) == len(LINES)
    finally:
        TRANSLATOR.translate = real  # type: ignore[method-assign]
    assert sum(calls) == len(LINES) - until // 4 * 4
    assert output.read_bytes() == whole.read_bytes()
    assert {path.name for path in tmp_path.iterdir()} == {"whole", "out"}


def test_what_was_half_written_is_written_again(tmp_path: Path) -> None:
    output, part = tmp_path / "out", tmp_path / ".out.part"
    with pytest.raises(Killed):
        translate(output, LINES, 9)
    with part.open("a") as file:
        file.write("9 half a li")
    translate(output, LINES)
    assert len(output.read_text().splitlines()) == len(LINES)
    assert "half" not in output.read_text()


def test_another_translation_is_not_continued(tmp_path: Path) -> None:
    output = tmp_path / "out"
    with pytest.raises(Killed):
        translate(output, LINES, 9)
    before = (tmp_path / ".out.part").read_bytes()
    with pytest.raises(UsageError, match=r"\.out\.part holds .* other settings: move it away"):
        translate(output, LINES, settings="t")
    for lines in (["other", *LINES[1:]], LINES[:3]):
        with pytest.raises(UsageError, match=r"of other lines"):
            translate(output, lines)
    assert (tmp_path / ".out.part").read_bytes() == before
    translate(output, [*LINES, "one more"])
    assert len(output.read_text().splitlines()) == len(LINES) + 1


def test_two_processes_refuse_each_other(tmp_path: Path) -> None:
    with destination(tmp_path / "out", "s"), pytest.raises(TransduceError, match="another process"):
        translate(tmp_path / "out", LINES)


def test_nothing_stays_of_what_did_not_begin(tmp_path: Path) -> None:
    with pytest.raises(Killed):
        translate(tmp_path / "out", LINES, 0)
    assert list(tmp_path.iterdir()) == []


def test_an_old_output_stays_until_the_new_one_is_complete(tmp_path: Path) -> None:
    output = tmp_path / "out"
    output.write_text("old")
    with pytest.raises(Killed):
        translate(output, LINES, 9)
    assert output.read_text() == "old"
    translate(output, LINES)
    assert output.read_text().startswith("1 ")


def test_pipes_are_written_directly(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    translate(pipe, LINES[:3])
    assert os.read(reader, 10_000).count(b"\n") == 3
    os.close(reader)
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]


def test_draws_are_the_same_after_a_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawing = translator_with("char", max_extra=3, method="sample")
    monkeypatch.setattr("tests.test_translating.TRANSLATOR", drawing)
    translate(tmp_path / "whole", LINES)
    with pytest.raises(Killed):
        translate(tmp_path / "out", LINES, 9)
    translate(tmp_path / "out", LINES)
    assert (tmp_path / "out").read_bytes() == (tmp_path / "whole").read_bytes()
    texts = [t.text for t in drawing.translate(LINES)]
    assert [show(t, i) for i, t in enumerate(drawing.translate_stream(LINES), 1)] == [
        f"{i} {text}" for i, text in enumerate(texts, start=1)
    ]
    assert len({t.text for t in drawing.translate(["a dog"] * 9)}) > 1


def test_a_person_gets_each_answer_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    answers = tmp_path / "answers"

    def typed() -> Iterator[Request]:
        for line in LINES[:3]:
            assert answers.read_text().count("\n") == len(asked)
            asked.append(line)
            yield Request(line)

    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    with answers.open("w") as out:
        translate_file(TRANSLATOR, typed(), show, Destination(out))
    assert answers.read_text().count("\n") == 3


def test_lines_are_counted(tmp_path: Path) -> None:
    import gzip

    (tmp_path / "a.txt").write_bytes(b"a\nb\r\nc\rd")
    (tmp_path / "a.gz").write_bytes(gzip.compress(b"a\nb\n"))
    assert count_lines(str(tmp_path / "a.txt")) == 3
    assert count_lines(str(tmp_path / "a.gz")) == 2
    assert count_lines("-") is None


def test_the_journal_says_how_far_it_is(tmp_path: Path) -> None:
    with pytest.raises(Killed):
        translate(tmp_path / "out", LINES, 9)
    journal = json.loads((tmp_path / ".out.journal").read_text())
    assert journal["lines"] == 8
    assert journal["bytes"] == (tmp_path / ".out.part").stat().st_size
    assert translator_module.CHUNK == 2_000
