"""What is chosen for the machine: always the same, and never more than it can bear."""

import pytest
import torch

from transduce.training import machine
from transduce.training.machine import pick_precision, pick_workers

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("threads", "tokens", "workers"),
    [
        (1, 4096, 1),
        (2, 4096, 2),
        (2, 300, 1),
        (4, 2048, 4),
        (6, 1024, 3),
        (12, 8192, 6),
        (16, 99, 1),
    ],
)
def test_workers(monkeypatch: pytest.MonkeyPatch, threads: int, tokens: int, workers: int) -> None:
    """A divisor of the threads, with enough tokens for each."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    assert pick_workers(CPU, tokens) == workers
    assert pick_workers(torch.device("cuda"), tokens) == 1


@pytest.mark.parametrize(
    ("instructions", "factor", "precision"),
    [(True, 2.0, "bfloat16"), (True, 1.1, "float32"), (False, 2.0, "float32")],
)
def test_precision(
    monkeypatch: pytest.MonkeyPatch, instructions: bool, factor: float, precision: str
) -> None:
    """Instructions alone do not suffice: it must be faster, too."""
    speeds = {torch.bfloat16: factor, torch.float32: 1.0}
    monkeypatch.setattr(machine, "bfloat16_instructions", lambda: instructions)
    monkeypatch.setattr(machine, "speed", lambda kind, width: speeds[kind])
    assert pick_precision("auto", CPU, 64) == precision
    for asked in ("float32", "bfloat16"):
        assert pick_precision(asked, CPU, 64) == asked


def test_the_probe_is_small_whatever_the_model() -> None:
    assert machine.speed(torch.float32, 999_999, rows=2) > 0
