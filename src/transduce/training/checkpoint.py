"""Checkpoints: all that resuming needs, as tensors and JSON, never pickle.

    checkpoints/step-N/model.safetensors      the weights
                       optimizer.safetensors  Adam's moments
                       state.json             where the run stands

A checkpoint is written into a hidden folder that gets its name when it is complete; what a killed
process left behind is removed at the next start.
"""

import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

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
    best: list["Best"] = field(default_factory=list)
    """The best validations so far, best first; as many as `training.keep_best`."""
    misses: int = 0
    """Validations since the best one."""

    def enter(
        self, new: "Best", is_better: Callable[[float, float | None], bool], most: int
    ) -> int | None:
        """Put a validation in its place among the best; return the place, None if it has none.

        Of equal scores the one of lower loss is the better, and of equal losses the earlier one.
        """
        place = sum(
            not is_better(new.score, old.score)
            and not (new.score == old.score and new.loss < old.loss)
            for old in self.best
        )
        self.best.insert(place, new)
        del self.best[most:]
        self.misses = 0 if place == 0 else self.misses + 1
        return place if place < most else None


@dataclass
class Best:
    """One of the best validations."""

    score: float
    loss: float
    step: int


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
        """Write a checkpoint, then remove those that are too many (never one of the best).

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
        self.rotate({best.step for best in progress.best})
        return final

    def rotate(self, best: set[int]) -> None:
        """Remove all but the newest `keep` checkpoints and those of the best steps."""
        if self.keep > 0:
            for path in self.all()[: -self.keep]:
                if step_of(path) not in best:
                    shutil.rmtree(path, ignore_errors=True)

    def restore(self, path: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> Progress:
        """Put model and optimizer into the state of a checkpoint.

        Raises:
            TransduceError: naming the file that is broken or does not fit.
        """
        set_weights(model, read_tensors(path / WEIGHTS), path / WEIGHTS)
        tensors = read_tensors(path / OPTIMIZER)
        try:
            progress = read_progress(path)
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


def read_progress(path: Path) -> Progress:
    """Read where a run stood at a checkpoint.

    Raises:
        TransduceError: naming the file that is broken.
    """
    try:
        state = json.loads((path / STATE).read_text(encoding="utf-8"))
        return Progress(**(state | {"best": [Best(**best) for best in state["best"]]}))
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise TransduceError(f"cannot read {path / STATE}: {error}") from None


def average_of(
    folder: Path, count: int, which: Literal["last", "best"]
) -> tuple[dict[str, Tensor], list[Path]]:
    """Return the mean of the last (§6.1) or the best checkpoints of a run, and which they are.

    Raises:
        TransduceError: if there are fewer, or they do not fit each other.
    """
    found = Checkpoints(folder, keep=-1).all()
    if which == "best" and found:
        steps = [best.step for best in read_progress(found[-1]).best[:count]]
        chosen = [path for path in found if step_of(path) in steps]
    else:
        chosen = found[-count:]
    if len(chosen) < count:
        kind = "best " if which == "best" else ""
        raise TransduceError(f"{folder} holds {len(chosen)} {kind}checkpoints, not {count}")
    return average(read_tensors(path / WEIGHTS) for path in chosen), chosen


def _optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    tensors = {}
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            tensors[f"{key}.{name}"] = value.detach().cpu().contiguous()
    return tensors
