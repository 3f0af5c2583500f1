"""Checkpoints: all that resuming needs, as tensors and JSON, never pickle.

    checkpoints/step-N/model.safetensors      the weights
                       optimizer.safetensors  Adam's moments, and the random generator's state
                       state.json             where the run stands

A checkpoint is written into a hidden folder that gets its name when it is complete; what a killed
process left behind is removed at the next start.
"""

import json
import os
import re
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from transduce.errors import TransduceError
from transduce.model_folder import (
    WEIGHTS,
    average,
    read_tensors,
    set_weights,
    weights,
    write_file,
    write_tensors,
)

OPTIMIZER, STATE = "optimizer.safetensors", "state.json"
RNG = "rng_state"


@dataclass
class Progress:
    """Where a run stands."""

    step: int = 0
    """Updates done."""
    epoch: int = 0
    """The current epoch, from 0."""
    window: int = 0
    """Windows of the current epoch already gone through (`data.batches`)."""
    batch: int = 0
    """Batches of the window after them already used."""
    seconds: float = 0.0
    """Time spent training, validation included."""
    best_score: float | None = None
    """Best validation score so far."""
    best_loss: float = 0.0
    """Validation loss at that score: of equal scores the one of lower loss is the better."""
    best_step: int = 0
    """The update after which it was reached."""
    misses: int = 0
    """Validations since then."""


class Checkpoints:
    """The checkpoints of one run.

    Args:
        folder: `checkpoints/` of the run; made if it is not there.
        keep: how many of the newest stay; -1 keeps all.

    Raises:
        TransduceError: if the folder cannot be written.
    """

    def __init__(self, folder: Path, keep: int) -> None:
        self.folder = folder
        self.keep = keep
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for leftover in folder.glob(".step-*"):
                shutil.rmtree(leftover)
        except OSError as error:
            raise TransduceError(f"cannot write {folder}: {error.strerror}") from None

    def all(self) -> list[Path]:
        """Return the complete checkpoints, oldest first."""
        return sorted(
            (path for path in self.folder.glob("step-*") if re.fullmatch(r"step-\d+", path.name)),
            key=step_of,
        )

    def save(self, model: nn.Module, optimizer: torch.optim.Optimizer, progress: Progress) -> Path:
        """Write a checkpoint, then remove those that are too many (never the best one).

        Raises:
            TransduceError: if it cannot be written; the older ones stay.
        """
        final = self.folder / f"step-{progress.step}"
        part = self.folder / f".step-{progress.step}"
        try:
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir()
            write_tensors(part / WEIGHTS, weights(model))
            write_tensors(part / OPTIMIZER, _optimizer_tensors(model, optimizer))
            write_file(part / STATE, json.dumps(asdict(progress)).encode())
            shutil.rmtree(final, ignore_errors=True)
            os.replace(part, final)
        except OSError as error:
            shutil.rmtree(part, ignore_errors=True)
            raise TransduceError(f"cannot write {final}: {error.strerror}") from None
        except TransduceError:
            shutil.rmtree(part, ignore_errors=True)
            raise
        self.rotate(progress.best_step)
        return final

    def rotate(self, best_step: int) -> None:
        """Remove all but the newest `keep` checkpoints and the best one."""
        if self.keep > 0:
            for path in self.all()[: -self.keep]:
                if step_of(path) != best_step:
                    shutil.rmtree(path, ignore_errors=True)

    def restore(self, path: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> Progress:
        """Put model, optimizer and the random generator into the state of a checkpoint.

        Raises:
            TransduceError: naming the file that is broken or does not fit.
        """
        set_weights(model, read_tensors(path / WEIGHTS), path / WEIGHTS)
        tensors = read_tensors(path / OPTIMIZER)
        try:
            progress = Progress(**json.loads((path / STATE).read_text(encoding="utf-8")))
            torch.set_rng_state(tensors.pop(RNG))
            if torch.cuda.is_available() and f"cuda_{RNG}" in tensors:
                torch.cuda.set_rng_state(tensors.pop(f"cuda_{RNG}"))
            for name, parameter in model.named_parameters():
                optimizer.state[parameter] = {
                    key: tensors[f"{key}.{name}"].to(parameter.device)
                    for key in ("step", "exp_avg", "exp_avg_sq")
                    if f"{key}.{name}" in tensors
                }
        except (OSError, ValueError, TypeError, KeyError, RuntimeError) as error:
            raise TransduceError(f"cannot resume from {path}: {error}") from None
        return progress


def step_of(path: Path) -> int:
    """Return the update that a checkpoint folder was written after."""
    return int(path.name.removeprefix("step-"))


def average_last(folder: Path, last: int) -> tuple[dict[str, Tensor], list[Path]]:
    """Return the mean of the last checkpoints of a run (§6.1), and which they are.

    Raises:
        TransduceError: if there are fewer, or they do not fit each other.
    """
    found = Checkpoints(folder, keep=-1).all()
    if len(found) < last:
        raise TransduceError(f"{folder} holds {len(found)} checkpoints, not {last}")
    chosen = found[-last:]
    return average(read_tensors(path / WEIGHTS) for path in chosen), chosen


def _optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    tensors = {RNG: torch.get_rng_state()}
    if torch.cuda.is_available():
        tensors[f"cuda_{RNG}"] = torch.cuda.get_rng_state()
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            tensors[f"{key}.{name}"] = value.detach().cpu().contiguous()
    return tensors
