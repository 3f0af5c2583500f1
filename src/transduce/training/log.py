"""What a run writes down as it goes: numbers, some outputs, and TensorBoard's files if wanted.

`metrics.jsonl` has a line for every few updates and for each validation, `samples.jsonl` a line for
each sentence whose output is kept at each validation. Either begins with the number of updates.
"""

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from transduce.errors import TransduceError, UsageError
from transduce.model_folder import METRICS, SAMPLES, write_file

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
        self.path, self.samples = run / METRICS, run / SAMPLES
        self.folder = run / TENSORBOARD
        self.purge_step: int | None = None
        self.writer: Any = None
        self.tensorboard = summary_writer() if tensorboard else None

    def forget_after(self, step: int) -> None:
        """Remove the lines of updates after `step`, which are about to be done again."""
        self.purge_step = step + 1
        for path in (self.path, self.samples):
            if path.exists() and not self.silent:
                rows = path.read_bytes().splitlines(keepends=True)
                write_file(path, b"".join(row for row in rows if step_of(row) <= step))

    def write(self, row: Mapping[str, float | int]) -> None:
        """Append a line of numbers.

        Raises:
            TransduceError: if it cannot be written.
        """
        if self.silent:
            return
        append(self.path, [row])
        try:
            if self.tensorboard:
                if self.writer is None:
                    self.writer = self.tensorboard(str(self.folder), purge_step=self.purge_step)
                for name in row.keys() - {"step"}:
                    self.writer.add_scalar(name, row[name], row["step"])
                self.writer.flush()
        except OSError as error:
            raise TransduceError(f"cannot write {self.folder}: {error.strerror}") from None

    def write_samples(self, step: int, samples: Iterable[Mapping[str, Any]]) -> None:
        """Append what became of some sentences.

        Raises:
            TransduceError: if it cannot be written.
        """
        if not self.silent:
            append(self.samples, [{"step": step, **sample} for sample in samples])


def append(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Append lines of JSON to a file, all at once.

    Raises:
        TransduceError: if it cannot be written.
    """
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    try:
        with open(path, "a", encoding="utf-8") as file:
            file.write(lines)
    except OSError as error:
        raise TransduceError(f"cannot write {path}: {error.strerror}") from None


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
