"""The book: its snippets print what it says, in both languages; its names and figures are there."""

import contextlib
import io
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from transduce.inspection.inspecting import show, traced_numbers

ROOT = Path(__file__).parents[1]
TEXTS = {name: (ROOT / "docs" / name).read_text("utf-8") for name in ("book.md", "book.zh.md")}
SNIPPET = re.compile(
    r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.MULTILINE | re.DOTALL
)
NUMBERS = re.compile(
    r"^```\n\$ transduce inspect --numbers (\S+)\n(.*?)^```\n", re.MULTILINE | re.DOTALL
)
SNIPPETS = SNIPPET.findall(TEXTS["book.md"])
PLACES = r"^\*(?:Paper|论文).*\*$"
"""Under each heading: the section of the paper, and the names in the code."""
SOURCES = "".join(path.read_text("utf-8") for path in (ROOT / "src" / "transduce").rglob("*.py"))


def test_the_snippets_print_what_the_book_says() -> None:
    """One after the other, as one program."""
    assert len(SNIPPETS) > 20
    program: dict[str, Any] = {}
    for code, expected in SNIPPETS:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, "book.md", "exec"), program)
        assert printed.getvalue() == expected, code


def test_the_numbers_typed_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    examples = NUMBERS.findall(TEXTS["book.md"])
    assert len(examples) == 2
    for path, expected in examples:
        lines = show([traced_numbers(Path(path))], "numbers", None, False, print)
        assert "\n".join(lines).rstrip("\n") == expected.rstrip("\n")


def test_every_example_can_be_shown() -> None:
    for path in (ROOT / "docs" / "examples").iterdir():
        assert traced_numbers(path)["stations"]


@pytest.mark.parametrize("pattern", [SNIPPET, NUMBERS], ids=["snippets", "numbers"])
def test_both_books_have_the_same_code(pattern: re.Pattern[str]) -> None:
    assert pattern.findall(TEXTS["book.md"]) == pattern.findall(TEXTS["book.zh.md"])


def test_both_books_have_the_same_sections() -> None:
    """Sections by their numbers, boxes, figures, names of code, and as many exercises."""
    for pattern in (
        r"^##+ (\d+)?", r"^> \*\*", r"\]\((figures/[^)]+)\)", PLACES, r"^\d+\. ",
    ):  # fmt: skip
        found = [re.findall(pattern, text, re.MULTILINE) for text in TEXTS.values()]
        if pattern == PLACES:
            found = [[re.findall(r"`([^`]+)`", line) for line in lines] for lines in found]
        assert found[0] == found[1] and len(found[0]) > 10, pattern


@pytest.mark.parametrize("name", TEXTS)
def test_the_code_that_is_named_is_there(name: str) -> None:
    lines = re.findall(PLACES, TEXTS[name], re.MULTILINE)
    names = {part for line in lines for part in re.findall(r"`([\w.]+)`", line)}
    assert len(names) > 20
    for whole in names:
        for part in whole.split("."):
            there = rf"(?:def|class) {part}\b|self\.{part} ="
            assert re.search(there, SOURCES), whole


def test_the_figures_are_those_that_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is shown once, and each that is shown is made by the command."""
    pytest.importorskip("matplotlib")
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    from figures import FIGURES

    shown = Counter(re.findall(r"\]\(figures/([\w-]+)\.svg\)", TEXTS["book.md"]))
    assert shown == Counter(list(FIGURES))
    assert {path.stem for path in (ROOT / "docs" / "figures").iterdir()} == set(FIGURES)
