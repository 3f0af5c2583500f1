"""What is chosen for the machine: always the same, and never more than it can bear."""

import os
from pathlib import Path

import pytest
import torch

from transduce.training import machine
from transduce.training.machine import memory_of, pick_precision, pick_workers

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


def test_a_container_may_have_less_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = memory_of(CPU)
    limit, without = tmp_path / "limit", tmp_path / "without"
    monkeypatch.setattr(machine, "CONTAINER_LIMITS", [tmp_path / "none", without, limit])
    without.write_text("max\n")
    limit.write_text("123456789\n")
    assert memory_of(CPU) == 123456789
    limit.write_text(f"{2**63}\n")
    assert memory_of(CPU) >= whole


def test_only_deterministic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    try:
        machine.only_deterministic()
        assert torch.are_deterministic_algorithms_enabled()
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    finally:
        torch.use_deterministic_algorithms(False)
