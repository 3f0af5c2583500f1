"""Systems scored on test pairs: models and files of outputs, several references, examples."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import letters_recipe
from transduce.config import Config, parse
from transduce.errors import TransduceError, UsageError
from transduce.evaluating import Items, System, evaluate_system, items_to_score
from transduce.experiment import train

Write = Callable[[str, str | bytes], Path]
PAIRS = "ab\tA B\nbc\tB C\nab\tA BB\n"


def config(**evaluation: object) -> Config:
    return parse({"evaluation": evaluation}, "test")


def test_more_references(write: Write) -> None:
    pairs, more = write("p.tsv", PAIRS), write("more.txt", "1\n2\r\n3\n")
    assert items_to_score(config(), str(pairs), [str(more), str(more)]) == Items(
        ["ab", "bc", "ab"], [["A B", "1", "1"], ["B C", "2", "2"], ["A BB", "3", "3"]]
    )
    assert items_to_score(config(references="by_source"), str(pairs), [str(more)]) == Items(
        ["ab", "bc"], [["A B", "A BB", "1", "3"], ["B C", "2"]]
    )
    with pytest.raises(TransduceError, match=r"short\.txt has 2 lines, but there are 3 pairs"):
        items_to_score(config(), str(pairs), [str(write("short.txt", "1\n2\n"))])


def test_references_stay_as_they_are_written(write: Write) -> None:
    """Another Unicode form counts as an error, as it does for sacrebleu; and that is told."""
    pairs = write("p.tsv", "a\te\u0301 b\n")
    assert items_to_score(config(), str(pairs)).references == [["e\u0301 b"]]


def test_a_file_of_outputs(write: Write) -> None:
    asked = items_to_score(config(), str(write("p.tsv", PAIRS)))
    system = System.find([write("out.txt", "A B\nB D\n\n")], {"evaluation": {"metrics": ["exact"]}})
    other = System.find([write("other.txt", "A B\nB C\nA BB\n")], {})
    found = evaluate_system(system, other, asked)
    assert found.outputs == ["A B", "B D", ""]
    assert found.scores["exact"].score == pytest.approx(100 / 3)
    assert found.comparisons["exact"].difference == pytest.approx(-200 / 3)
    assert found.order == [0, 1, 2]
    assert [one["item"] for one in found.examples(1)["worst"]] == [3]
    record = found.record(2)
    assert record["sentences"] == 3
    assert record["settings"]["decoding"] is None
    low, high = record["metrics"]["exact"]["interval"]
    assert low <= record["metrics"]["exact"]["mean"] <= high
    assert record["metrics"]["exact"]["baseline"]["system"].endswith("other.txt")
    assert [one["output"] for one in record["best"]] == ["A B", "B D"]


def test_counts_that_differ(write: Write) -> None:
    asked = items_to_score(config(), str(write("p.tsv", PAIRS)))
    with pytest.raises(TransduceError, match=r"out\.txt has 2 lines, but there are 3 sources"):
        evaluate_system(System.find([write("out.txt", "A\nB\n")], {}), None, asked)


def test_empty_references_are_told_and_never_all(write: Write) -> None:
    asked = items_to_score(config(), str(write("p.tsv", "a\tA\nb\n")))
    told: list[str] = []
    evaluate_system(System.find([write("out.txt", "A\nB\n")], {}), None, asked, told.append)
    assert "warning: empty references: 1; any output is wrong there" in told
    with pytest.raises(TransduceError, match="no test pair has a target"):
        items_to_score(config(), str(write("q.tsv", "a\nb\t \n")))


def test_the_worst_by_an_error_rate_has_the_most_errors(write: Write) -> None:
    asked = Items(["a", "b", "c"], [["A B C D"]] * 3)
    system = System.find(
        [write("out.txt", "A B C D\nX Y Z W\nA B C\n")], {"evaluation": {"metrics": ["per"]}}
    )
    assert evaluate_system(system, None, asked).order == [0, 2, 1]


def test_models_and_their_outputs_score_alike(tmp_path: Path) -> None:
    recipe = letters_recipe(tmp_path, steps=3, every=3)
    train(recipe, tmp_path / "run")
    system = System.find([tmp_path / "run"], {"evaluation": {"metrics": ["per"]}})
    asked = items_to_score(system.config, str(tmp_path / "t.tsv"))
    said: list[str] = []
    found = evaluate_system(system, system, asked, said.append)
    (tmp_path / "out.txt").write_text("".join(text + "\n" for text in found.outputs))
    again = System.find([tmp_path / "out.txt"], {"evaluation": {"metrics": ["per"]}})
    assert evaluate_system(again, None, asked).scores == found.scores
    assert found.comparisons["per"].difference == 0.0
    odd = Items(["ab"], [["A\u00a0B"]])
    evaluate_system(system, None, odd, said.append)
    assert "1 references have characters that the model never writes" in said[-1]
    both = System.find([tmp_path / "run", tmp_path / "run" / "model"], {})
    assert both.outputs(asked.sources) == found.outputs
    with pytest.raises(TransduceError, match="does not exist"):
        System.find([tmp_path / "nowhere"], {})
    with pytest.raises(UsageError, match="beam_size"):
        System.find([tmp_path / "run"], {"decoding": {"beam_size": 0}})
