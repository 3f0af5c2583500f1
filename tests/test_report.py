"""What a training was like: of a real run, of one that goes on, that has no samples, no model."""

import json
import shutil
from pathlib import Path

import pytest

from tests.conftest import letters_recipe
from transduce.config import Settings, merge
from transduce.errors import TransduceError
from transduce.experiment import train
from transduce.inspection import worst
from transduce.inspection.history import Sample, read
from transduce.inspection.report import course, rounded, spread, study
from transduce.inspection.study import Section, Study, page, printed, write_json


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of twelve updates on letters, with four validations."""
    folder = tmp_path_factory.mktemp("trained")
    recipe = merge(letters_recipe(folder, steps=12, every=3), {"training": {"log_every": 1}})
    assert train(recipe, folder / "run") == "finished"
    return folder / "run"


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """A copy of it to spoil."""
    return Path(shutil.copytree(trained, tmp_path / "run"))


def section(found: Study, heading: str) -> Section:
    return next(one for one in found.sections if one.heading == heading)


def facts(found: Study) -> dict[str, str]:
    return {row[0]: row[1] for row in section(found, "In short").tables[0].rows}


def test_a_whole_run(trained: Path, tmp_path: Path) -> None:
    said: list[str] = []
    found = study(trained, tell=said.append)
    best = read(trained).standing().best[0]
    told = facts(found)
    metric = read(trained).metric
    assert told["result"] == (
        f"{metric} {best.score:.2f}, the best of 4 validations, after update {best.step}"
    )
    assert (told["updates"], told["end"]) == ("12 of 12", "all updates are done")
    assert "target tokens a second" in told["speed"]
    assert [plot.title for plot in section(found, "Curves").plots] == [
        "Loss", "Perplexity", "Validation scores", "Learning rate", "Gradient norm", "Speed",
    ]  # fmt: skip
    rows = section(found, "Curves").tables[0].rows
    assert [row[0] for row in rows] == ["3", "6", "9", "12"]
    assert [row[0] for row in rows if row[-1]] == [str(best.step)]
    samples = section(found, "Samples over time").examples[0]
    assert samples.caption == "7 sentences"
    assert [example.texts[0] for example in samples.items] == [
        ("source", text) for text in ("a", "b", "ab", "bc", "abc", "cab", "bca")
    ]
    assert said[-1] == "translating: 35 of 35 validation sentences"
    assert "translated 35 validation sentences" in section(found, "Worst sentences").sentences[0]
    write_json(found, tmp_path / "report.json")
    record = json.loads((tmp_path / "report.json").read_text())
    assert record["updates"] == 12
    assert record["best"][0]["step"] == best.step
    assert [row["step"] for row in record["validations"]] == [3, 6, 9, 12]
    assert len(record["samples"]) == 28
    assert record["worst"]["sentences"] == 35
    assert len(record["curves"]["Loss"]["training"]) == 12
    assert "Samples over time" in page(found)
    assert any("transduce inspect" in line for line in printed(found))


def test_the_worst_are_of_the_validation(trained: Path) -> None:
    """Translated again, the validation pairs have the score that the best validation had."""
    history = read(trained)
    found = worst.outputs(trained, history.config, 500, lambda line: None)
    best = history.standing().best[0]
    assert found.scores[history.metric].score == pytest.approx(best.score)
    assert worst.outputs(trained, history.config, 5, lambda line: None).asked.sources == [
        found.asked.sources[i] for i in (0, 7, 14, 21, 28)
    ]


def test_no_sentences_are_translated_unless_wanted(
    trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worst, "outputs", None)
    found = study(trained, sentences=0)
    assert "--sentences 0" in section(found, "Worst sentences").sentences[0]
    assert found.record["worst"] is None


def test_a_run_without_samples_says_so(run: Path) -> None:
    (run / "samples.jsonl").unlink()
    found = study(run, sentences=0)
    assert "no samples.jsonl" in section(found, "Samples over time").sentences[0]


@pytest.mark.parametrize(
    ("lost", "word"), [("model", "no model folder"), ("corpus", "not a prepared corpus")]
)
def test_what_is_lost_takes_one_section_away(run: Path, lost: str, word: str) -> None:
    shutil.rmtree(run / lost)
    found = study(run)
    assert word in section(found, "Worst sentences").sentences[0]
    assert len(section(found, "Curves").plots) == 6


def test_a_run_in_its_first_updates(run: Path) -> None:
    rows = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text(rows[0] + rows[1][:20])
    shutil.rmtree(run / "model")
    (run / "samples.jsonl").unlink()
    found = study(run)
    assert facts(found)["result"] == "none yet: there was no validation"
    assert facts(found)["updates"] == "1 of 12"
    assert "Validation scores" not in [plot.title for plot in section(found, "Curves").plots]
    assert "<svg" in page(found)
    list(printed(found))


def test_doubts_are_said(run: Path) -> None:
    with open(run / "metrics.jsonl", "a") as log:
        log.write('broken\n{"step": 13, "loss": NaN, "divided_batches": 2}\n')
    found = study(run, sentences=0)
    assert list(section(found, "In short").sentences) == [
        "Lines of the logs that cannot be read and are left out: 1.",
        "Not finite, and left out: loss after update 13.",
        "Memory did not suffice: divided batches: 2.",
    ]
    assert "nan" not in page(found).lower()


def test_a_resumed_run_is_one_run(tmp_path: Path) -> None:
    recipe = letters_recipe(tmp_path, steps=8, every=2)
    train(recipe, tmp_path / "run", assignments=["training.steps=4"])
    train(recipe, tmp_path / "run", resume=True, assignments=["training.steps=8"])
    found = study(tmp_path / "run", sentences=0)
    assert facts(found)["updates"] == "8 of 8"
    assert [row[0] for row in section(found, "Curves").tables[0].rows] == ["2", "4", "6", "8"]


def test_a_fine_tuned_model_knows_where_it_comes_from(trained: Path, tmp_path: Path) -> None:
    recipe: Settings = {
        "data": {"train": str(trained.parent / "t.tsv"), "valid": str(trained.parent / "t.tsv")},
        "fine_tuning": {"init_from": str(trained)},
        "training": {"steps": 2, "validate_every": 2},
    }
    train(recipe, tmp_path / "tuned")
    rows = section(study(tmp_path / "tuned", sentences=0), "In short").tables[0].rows
    assert ["began as", str(trained)] in rows
    assert any(row[0] == "by fine-tuning" and " before, " in row[1] for row in rows)


def test_the_average_is_named(run: Path) -> None:
    config = (run / "config.toml").read_text().replace("average = 1\n", "average = 3\n")
    (run / "config.toml").write_text(config)
    assert facts(study(run, sentences=0))["model"] == "the average of 3 checkpoints (last)"


def test_outputs_that_stay_stand_once() -> None:
    steps = [(1, "A"), (2, "B"), (3, "B"), (4, "A B"), (5, "A B"), (6, "B")]
    samples = [Sample(step, "ab", ["A B", "A"], output) for step, output in steps]
    assert list(course(samples)) == [
        ("source", "ab"),
        ("reference", "A B"),
        ("reference", "A"),
        ("update 1, right", "A"),
        ("updates 2 to 3", "B"),
        ("updates 4 to 5, right", "A B"),
        ("update 6", "B"),
    ]


def test_some_of_many() -> None:
    assert spread(list(range(100)), 4) == [0, 33, 66, 99]
    assert spread([1, 2], 4) == [1, 2]
    assert [rounded(number) for number in (7.0, 1234.0, 987_654.0)] == ["7", "1,230", "988,000"]


def test_what_is_no_run(tmp_path: Path, trained: Path) -> None:
    with pytest.raises(TransduceError, match=f"give the run: {trained}"):
        study(trained / "model")
    with pytest.raises(TransduceError, match="does not exist"):
        study(tmp_path / "nowhere")
