"""What a run wrote down, read again: whole, half written, begun anew, or not there at all."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from transduce.assembly import lock
from transduce.config import parse
from transduce.errors import TransduceError
from transduce.inspection.history import History, points, read

Write = Callable[..., Path]


def update(step: int, loss: float = 2.0, **more: float) -> dict[str, float]:
    return {"step": step, "loss": loss, "perplexity": 5.0, **more}


def validation(step: int, bleu: float, loss: float = 1.0) -> dict[str, float]:
    return {"step": step, "valid_loss": loss, "valid_perplexity": math.e, "bleu": bleu}


def sample(step: int, output: str) -> dict[str, Any]:
    return {"step": step, "source": "ab", "references": ["A B"], "output": output}


@pytest.fixture
def run(tmp_path: Path) -> Write:
    """Write a run's logs from objects and from lines as they are."""

    def run(*rows: Any, samples: tuple[Any, ...] = (), **training: Any) -> Path:
        config = {"training": {"steps": 100} | training, "evaluation": {"metrics": ["bleu"]}}
        (tmp_path / "config.toml").write_text(parse(config, "test").to_toml())
        for name, some in (("metrics", rows), ("samples", samples)):
            lines = [one if isinstance(one, str) else json.dumps(one) + "\n" for one in some]
            (tmp_path / f"{name}.jsonl").write_text("".join(lines))
        return tmp_path

    return run


def test_lines_of_both_kinds(run: Write) -> None:
    history = read(
        run(
            update(50, seconds=5.0), validation(50, 10.0), update(100, seconds=12.0),
            samples=(sample(50, "A"), sample(100, "A B")),
        )
    )  # fmt: skip
    assert points(history.updates, "seconds") == [(50.0, 5.0), (100.0, 12.0)]
    assert points(history.validations, "bleu") == [(50.0, 10.0)]
    assert (history.steps, history.seconds, history.unreadable) == (100, 12.0, 0)
    assert [(one.step, one.right) for one in history.samples] == [(50, False), (100, True)]


def test_a_line_that_is_being_written_is_no_damage(run: Write) -> None:
    history = read(run(update(50), '{"step": 100, "loss": 1', samples=(sample(50, "A"), '{"st')))
    assert (history.steps, history.unreadable, len(history.samples)) == (50, 0, 1)


def test_what_cannot_be_read_is_counted(run: Write) -> None:
    damaged = ["\n", "nonsense\n", "[1]\n", '{"loss": 2.0}\n', '{"step": "x", "loss": 1}\n',
               '{"step": 7}\n', '{"step": NaN, "loss": 1}\n', "[" * 100_000 + "\n"]  # fmt: skip
    path = run(update(50), *damaged, update(100), samples=('{"step": 1, "source": 3}\n',))
    history = read(path)
    assert len(history.updates) == 2
    assert history.unreadable == 8  # a blank line is none
    (path / "metrics.jsonl").write_bytes(b'{"step": 1, "loss": 2.0}\n\xff\xfe\n')
    assert read(path).unreadable == 2


def test_numbers_that_are_none(run: Write) -> None:
    row = '{"step": 50, "loss": NaN, "perplexity": Infinity, "seconds": null, "rate": true}\n'
    history = read(run(row, update(100, loss=1.0), f'{{"step": 150, "loss": 1{"0" * 400}}}\n'))
    assert points(history.updates, "loss") == [(100.0, 1.0)]
    assert points(history.updates, "perplexity") == [(100.0, 5.0)]
    assert history.updates[0].keys() == {"step", "loss", "perplexity"}
    assert history.updates[2]["loss"] == math.inf


def test_what_was_done_again_counts_once(run: Write) -> None:
    rows = [update(50, 3.0), update(100, 2.0), validation(100, 10.0), update(50, 2.5)]
    history = read(run(*rows, samples=(sample(100, "old"), sample(50, "new"))))
    assert points(history.updates, "loss") == [(50.0, 2.5)]
    assert history.validations == []
    assert [one.output for one in history.samples] == ["new"]


@pytest.mark.parametrize(
    ("rows", "training", "ending"),
    [
        ([update(100)], {}, "all updates are done"),
        ([update(50), validation(50, 31.0)], {"stop_at_score": 30.0}, "bleu reached 30"),
        ([update(50), validation(50, 29.0)], {"stop_at_score": 30.0}, "stopped before its end"),
        ([validation(10, 9.0), validation(20, 8.0), validation(30, 7.0)], {"patience": 2},
         "no better bleu in 2 validations"),
        ([validation(10, 9.0), validation(20, 8.0), validation(30, 9.5)], {"patience": 2},
         "stopped before its end"),
        ([update(50)], {}, "stopped before its end: transduce train --resume --out"),
    ],
)  # fmt: skip
def test_why_it_ended(
    run: Write, rows: list[dict[str, float]], training: dict[str, Any], ending: str
) -> None:
    assert read(run(*rows, **training)).ending().startswith(ending)


def test_a_run_that_is_training(run: Write) -> None:
    history = read(run(update(50)))
    with lock(history.run):
        assert history.ending() == "not yet: it is training"
    assert history.ending().startswith("stopped")


def test_the_best_is_the_one_that_training_keeps(run: Write) -> None:
    """Of equal scores that of lower loss; what is no number is never the best."""
    rows = [validation(10, 9.0, 2.0), validation(20, 9.0, 1.5), validation(30, math.nan)]
    standing = read(run(*rows, validation(40, 8.0))).standing()
    assert [(best.step, best.score) for best in standing.best] == [(20, 9.0)]
    assert standing.misses == 1
    assert read(run(update(10))).standing().best == []


def test_tokens_by_hand(run: Write) -> None:
    """Speed is that of updates alone, time is that of all: a stretch with a validation tells less.

    10 s at 100 tokens/s for 50 updates: 20 tokens an update; the 3 s of the validation after
    update 50 lie in the stretch that ends with update 100, which is left out.
    """
    rows = [
        update(50, seconds=10.0, target_tokens_per_second=100.0), validation(50, 1.0),
        update(100, seconds=23.0, target_tokens_per_second=100.0),
        update(150, seconds=33.0, target_tokens_per_second=100.0),
    ]  # fmt: skip
    assert read(run(*rows)).tokens() == pytest.approx(20.0 * 150)
    assert math.isnan(read(run(update(50))).tokens())


def folder(path: Path, *files: str) -> Path:
    for name in files:
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).touch()
    return path


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ([], "does not exist"),
        (["notes.txt"], "is no run: it holds no config.toml"),
        (["metrics.jsonl"], "is no run: it holds no config.toml"),
        (["config.toml"], "no update of it was written down yet"),
        (["config.toml", "metrics.jsonl"], "has no line yet: .*training.log_every"),
        (["config.toml", "model.safetensors"], "model folder, .*: give the run$"),
        (["ablation.toml"], "is an ablation: report on one of its runs$"),
        (["ablation.toml", "A1/seed-1/metrics.jsonl"], "its runs, such as .*A1/seed-1$"),
    ],
)
def test_what_is_no_run(tmp_path: Path, files: list[str], message: str) -> None:
    with pytest.raises(TransduceError, match=message):
        read(folder(tmp_path / "run", *files))


def test_a_model_folder_names_its_run(tmp_path: Path) -> None:
    folder(tmp_path, "config.toml", "metrics.jsonl", "model/config.toml", "model/model.safetensors")
    with pytest.raises(TransduceError, match=f"give the run: {tmp_path}$"):
        read(tmp_path / "model")
    with pytest.raises(TransduceError, match="is no run"):
        read(tmp_path / "metrics.jsonl")


def test_an_empty_log_is_not_one_of_validations(run: Write) -> None:
    assert isinstance(read(run(validation(1, 2.0))), History)
    with pytest.raises(TransduceError, match="has no line yet"):
        read(run('{"step": 1'))
