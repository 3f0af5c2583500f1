"""The log: whole lines, taken back where updates are done again, and the same for TensorBoard."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from transduce.errors import TransduceError, UsageError
from transduce.training.log import Log


def steps(run: Path) -> list[int]:
    return [
        json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().split("\n")[:-1]
    ]


def test_what_is_done_again_is_taken_back(tmp_path: Path) -> None:
    log = Log(tmp_path)
    for step in range(1, 6):
        log.write({"step": step, "loss": 1.5})
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write('{"step": 6, "lo')  # cut short by a kill
    for step in (2, 4):
        log.write_samples(step, [{"source": "日\u2028本"}, {"source": "b"}])
    log.forget_after(3)
    log.write({"step": 4, "loss": 1.25})
    assert steps(tmp_path) == [1, 2, 3, 4]
    assert (tmp_path / "samples.jsonl").read_bytes().count(b"\n") == 2
    log.forget_after(0)
    assert steps(tmp_path) == []


def test_nothing_to_take_back(tmp_path: Path) -> None:
    Log(tmp_path).forget_after(3)
    assert not list(tmp_path.iterdir())


def test_a_log_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(TransduceError, match=r"metrics\.jsonl"):
        Log(tmp_path / "nowhere").write({"step": 1})


def test_tensorboard_sees_the_same_numbers(tmp_path: Path) -> None:
    event_files = pytest.importorskip("tensorboard.backend.event_processing.event_file_loader")

    def values() -> list[tuple[int, str, float]]:
        found: list[tuple[int, str, float]] = []
        for path in sorted((tmp_path / "tensorboard").iterdir()):
            for event in event_files.EventFileLoader(str(path)).Load():
                for value in event.summary.value:
                    found.append((event.step, value.tag, value.tensor.float_val[0]))
        return found

    log = Log(tmp_path, tensorboard=True)
    log.write({"step": 1, "loss": 2.5, "epoch": 0})
    log.write({"step": 2, "valid_loss": 1.5})
    assert sorted(values()) == [(1, "epoch", 0.0), (1, "loss", 2.5), (2, "valid_loss", 1.5)]


def test_tensorboard_that_is_not_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    missing: Any = None
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", missing)
    with pytest.raises(UsageError, match=r"transduce\[tensorboard\]"):
        Log(tmp_path, tensorboard=True)
