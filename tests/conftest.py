"""What all tests share: a small model, small data, and no network."""

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import hypothesis
import pytest
import torch

from transduce.config import Config, ModelConfig, Settings, parse
from transduce.model import Transformer

# How long an example takes says how busy the machine is, and nothing about the code.
hypothesis.settings.register_profile(
    "suite", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("suite")

CPU = Path("/proc/cpuinfo")
VNNI = not CPU.exists() or "vnni" in CPU.read_text()
"""Whether sums of int8 products are exact; else those of a toy's matrices saturate in 16 bits."""

BuildModel = Callable[..., Transformer]

# Models as small as these gain nothing from a second thread, and where the machine is busy the
# threads wait for each other after every operation. Holds for the processes that tests start, too.
os.environ["OMP_NUM_THREADS"] = "1"
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> NoReturn:
        raise AssertionError("a test must not use the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)


@pytest.fixture(autouse=True)
def _no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda file: None)  # no test cuts the power


@pytest.fixture(autouse=True)
def _one_seed() -> None:
    torch.manual_seed(0)


@pytest.fixture
def build() -> BuildModel:
    """Build a small float64 model in evaluation mode, of sizes that cannot be confused."""

    def build(**changes: Any) -> Transformer:
        settings: dict[str, Any] = {
            "source_vocabulary": 23,
            "target_vocabulary": 29,
            "joint_vocabulary": False,
            "N": 2,
            "d_model": 14,
            "d_ff": 19,
            "h": 3,
            "d_k": 5,
            "d_v": 7,
            "P_drop": 0.0,
        }
        return Transformer(ModelConfig(**(settings | changes))).double().eval()

    return build


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, str | bytes], Path]:
    """Write a file into the test's folder and return its path."""

    def write(name: str, content: str | bytes) -> Path:
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


ROWS = [f"{w}\t{' '.join(w.upper())}\n" for w in ("ab", "bc", "abc", "cab", "bca", "a", "b")]


def letters_recipe(folder: Path, steps: int, every: int) -> Settings:
    """Write a few pairs of letters and return the recipe of a tiny run on them."""
    (folder / "t.tsv").write_text("".join(ROWS * 5))
    return {
        "data": {"train": str(folder / "t.tsv"), "valid": str(folder / "t.tsv")},
        "tokenizer": {"joint": False, "source": {"kind": "char"}, "target": {"kind": "word"}},
        "model": {"N": 1, "d_model": 16, "d_ff": 16, "h": 2},
        "training": {
            "steps": steps, "tokens": 64, "checkpoint_every": every, "validate_every": every,
        },
        "decoding": {"max_extra": 3},
    }  # fmt: skip


def small_config(**model: object) -> Config:
    """Return a configuration of two layers with 90 pieces a side; `model` changes it."""
    sizes = {"N": 2, "d_model": 32, "d_ff": 64, "h": 4, "source_vocabulary": 90,
             "target_vocabulary": 90}  # fmt: skip
    return parse({"model": sizes | model}, "test")
