"""What a run writes down as it goes: `metrics.jsonl`, and TensorBoard's files where wanted."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transduce.errors import TransduceError, UsageError
from transduce.model_folder import METRICS, write_file

TENSORBOARD = "tensorboard"


class Log:
    """The log of one run.

    Args:
        run: the run's folder.
        tensorboard: whether to write for TensorBoard, too.
        silent: whether to write nothing at all: another process does.

    Raises:
        UsageError: if TensorBoard is wanted but not installed.
    """

    def __init__(self, run: Path, tensorboard: bool = False, silent: bool = False) -> None:
        self.silent = silent
        self.path = run / METRICS
        self.folder = run / TENSORBOARD
        self.purge_step: int | None = None
        self.writer: Any = None
        self.tensorboard = summary_writer() if tensorboard else None

    def forget_after(self, step: int) -> None:
        """Remove the lines of updates after `step`, which are about to be done again."""
        self.purge_step = step + 1
        if self.path.exists() and not self.silent:
            rows = self.path.read_bytes().splitlines(keepends=True)
            write_file(self.path, b"".join(row for row in rows if step_of(row) <= step))

    def write(self, row: Mapping[str, float | int]) -> None:
        """Append a line.

        Raises:
            TransduceError: if it cannot be written.
        """
        if self.silent:
            return
        try:
            with open(self.path, "a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
            if self.tensorboard:
                if self.writer is None:
                    self.writer = self.tensorboard(str(self.folder), purge_step=self.purge_step)
                for name in row.keys() - {"step"}:
                    self.writer.add_scalar(name, row[name], row["step"])
                self.writer.flush()
        except OSError as error:
            raise TransduceError(f"cannot write {self.path}: {error.strerror}") from None


def step_of(row: bytes) -> float:
    """Return the update that a line belongs to; infinity for one cut short by a kill."""
    try:
        return float(json.loads(row)["step"])
    except (ValueError, KeyError, TypeError):
        return math.inf


def summary_writer() -> Any:
    """Return the class that writes TensorBoard's files.

    Raises:
        UsageError: if it is not installed.
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise UsageError(
            "training.tensorboard needs TensorBoard: pip install 'transduce[tensorboard]'"
        ) from None
    return SummaryWriter
