"""The worst sentences: what is wrong with each is a number that was counted by hand."""

from pathlib import Path
from typing import Any

import pytest

from transduce.decoding.translator import Translator
from transduce.evaluating import Items
from transduce.inspection import worst
from transduce.inspection.worst import (
    Finding,
    Outputs,
    by_copying,
    by_length,
    by_repetition,
    by_score,
    command_for,
    examples,
    findings,
    record,
    repetition,
    units,
)


def outputs(*rows: tuple[str, str | list[str], str], **each: list[float]) -> Outputs:
    """Sources, references and outputs."""
    return Outputs(
        Translator.__new__(Translator),
        Items(
            [row[0] for row in rows],
            [[row[1]] if isinstance(row[1], str) else row[1] for row in rows],
        ),
        [row[2] for row in rows],
        [() for _ in rows],
        {},
        each or {"bleu": [0.0] * len(rows)},
    )  # fmt: skip


def found(finding: Finding) -> dict[int, str]:
    return {i: finding.notes[i] for i in finding.items}


WORDS = ("words", str.split)


@pytest.mark.parametrize(
    ("text", "again", "what"),
    [
        ("", 0, ""),
        ("a b c", 0, ""),
        ("a a", 1, "a"),
        ("a a a a", 3, "a"),
        ("x a b a b y", 2, "a b"),
        ("a b a b a", 3, "a b"),
        ("a b c a b", 0, ""),  # not a whole one
        ("a a b a a b", 3, "a a b"),
        ("c d d e a b c a b c a b c", 6, "a b c"),
    ],
)
def test_repetitions_by_hand(text: str, again: int, what: str) -> None:
    assert repetition(text.split()) == (again, what.split())


def test_repetitions_of_long_stretches_are_not_looked_for() -> None:
    assert repetition([str(i) for i in range(6)] * 2, longest=5) == (0, [])
    assert repetition([str(i) for i in range(5)] * 2, longest=5)[0] == 5


def test_texts_are_counted_in_words_or_characters() -> None:
    assert units(["a b", "c"])[0] == "words"
    name, cut = units(["今天", "天气 好", "很好"])
    assert (name, cut("天气 好")) == ("characters", ["天", "气", "好"])


def test_the_right_ones_are_never_among_the_worst() -> None:
    right = outputs(("a a a a", ["b", "a a a a"], "a a a a"))
    assert right.wrong == []
    assert [finding.items for finding in findings(right)] == [[], [], [], []]


def test_by_score_and_then_by_the_next() -> None:
    three = [("s", "r", "o")] * 3
    rising = outputs(*three, bleu=[5.0, 1.0, 5.0], chrf=[9.0, 9.0, 8.0])
    assert by_score(rising).items == [1, 2, 0]
    falling = outputs(*three, wer=[100.0, 100.0, 0.0], per=[10.0, 20.0, 0.0])
    assert by_score(falling).items == [1, 0, 2]


def test_by_length() -> None:
    some = outputs(
        ("s", "a b c d", "a b c d e f"),  # 1.5 times
        ("s", "a b c d", "a b c d e"),
        ("s", "a b c d", ""),
        ("s", ["a b c d", "a"], "a b"),  # the nearest has one less
        ("s", "a b", "a"),  # half, but one word
        ("s", "a b c d e f g h", "a b"),
        ("s", "", "a b c"),
    )
    assert found(by_length(some, *WORDS)) == {
        2: "0 words, the reference has 4",
        5: "2 words, the reference has 8",
        0: "6 words, the reference has 4",
    }
    assert by_length(some, *WORDS).items == [2, 5, 0]


def test_by_copying() -> None:
    some = outputs(
        ("der Hund bellt", "the dog barks", "der Hund barks"),  # 2 of 3
        ("Herr Weber lacht", "Mr Weber laughs", "Mr Weber lacht"),  # a name is no copy: 1 of 3
        ("a b", "c d", "a b"),
        ("a b", ["c d", "a b e"], "a b"),  # as another reference has it
        ("a", "b", ""),
    )
    assert found(by_copying(some, *WORDS)) == {
        0: "2 of 3 words stand in the source and not in the reference",
        2: "2 of 2 words stand in the source and not in the reference",
    }


def test_by_repetition() -> None:
    some = outputs(
        ("s", "a b", "a b b b"),
        ("s", "no no no", "yes no no no"),  # the reference says it, too
        ("s", "a b", "a a b"),  # once more may be meant
        ("s", "c", "x a b a b a b"),
    )
    assert found(by_repetition(some, *WORDS)) == {
        3: "“a b” 3 times in a row",
        0: "“b” 3 times in a row",
    }


def test_commands_can_be_pasted() -> None:
    assert command_for(Path("run"), "it's $HOME") == """transduce inspect run 'it'"'"'s $HOME'"""
    assert command_for(Path("my run"), "-x y") == "transduce inspect 'my run' -- '-x y'"


def test_examples_and_their_record() -> None:
    some = outputs(*[(f"s {i}", "a b c d", "o") for i in range(12)], (" ", "a b c d", ""))
    kinds = findings(some)
    groups = examples(some, kinds, Path("run"), None)
    assert [group.caption for group in groups] == [
        "Worst by bleu: 13 of 13 sentences, the first 10",
        "Far too long or too short: 13 of 13 sentences, the first 10",
    ]
    first = groups[0].items[0]
    assert first.about == "sentence 1 · bleu 0.0"
    assert first.texts == [("source", "s 0"), ("reference", "a b c d"), ("output", "o")]
    assert (first.command, first.link) == ("transduce inspect run 's 0'", None)
    assert groups[1].items[0].command == ""  # nothing is to be seen in a blank source
    written = record(some, kinds)
    assert written["sentences"] == 13
    assert [len(items) for items in written["worst"].values()] == [10, 10, 0, 0]
    assert written["worst"]["Far too long or too short"][0]["item"] == 13


def test_each_sentence_has_one_page(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    written: list[Any] = []
    folder = tmp_path / "report-pages"
    monkeypatch.setattr(worst, "sentence_page", lambda *arguments: written.append(arguments[1:]))
    some = outputs(("x y z", "a b", "1"), ("s", "a b c d", "2"), ("t", "ok a", "ok a"))
    groups = examples(some, findings(some), Path("run"), folder)
    assert written == [("x y z", folder / "1.html", "run"), ("s", folder / "2.html", "run")]
    links = [example.link for group in groups for example in group.items]
    assert [link.path for link in links if link] == [
        "report-pages/1.html", "report-pages/2.html", "report-pages/2.html",
    ]  # fmt: skip
