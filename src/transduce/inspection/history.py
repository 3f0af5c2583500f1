"""What a run wrote down of its training, read again: while it trains, after it, or after a kill."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transduce.assembly import is_training
from transduce.config import Config
from transduce.errors import TransduceError
from transduce.evaluation.metrics import is_better
from transduce.inspection.ablation import STATE
from transduce.model_folder import CONFIG, METRICS, SAMPLES, WEIGHTS, load_config
from transduce.training.checkpoint import Best, Progress

Row = dict[str, float]
"""A line of numbers: `step`, and others by name; they need not be finite."""
Point = tuple[float, float]


@dataclass(frozen=True)
class Sample:
    """What became of a sentence after so many updates."""

    step: int
    source: str
    references: list[str]
    output: str

    @property
    def right(self) -> bool:
        """Whether the output is one of the references."""
        return self.output in self.references


@dataclass(frozen=True)
class History:
    """The logs of a run."""

    run: Path
    config: Config
    updates: list[Row]
    """Lines about updates, in order."""
    validations: list[Row]
    samples: list[Sample]
    unreadable: int
    """Lines that were left out, but for one that is only half written."""

    @property
    def metric(self) -> str:
        """The score that decides which model is the best."""
        return self.config.evaluation.metrics[0]

    @property
    def steps(self) -> int:
        """How many updates the logs tell of."""
        return int(max(row["step"] for row in [*self.updates[-1:], *self.validations[-1:]]))

    @property
    def seconds(self) -> float:
        """How long they took, validations included."""
        times = [y for _, y in points(self.updates, "seconds")]
        return times[-1] if times else math.nan

    def standing(self) -> Progress:
        """Return the best validation, if there is any, and how many have been made since."""
        found = Progress()
        for row in self.validations:
            score, loss = row.get(self.metric, math.nan), row["valid_loss"]
            if math.isfinite(score):
                one = Best(score, loss, int(row["step"]))
                found.enter(one, lambda a, b: is_better(self.metric, a, b), 1)
        return found

    def reason(self) -> str | None:
        """Say why the training ended; None if it has not."""
        training, last = self.config.training, self.validations[-1:]
        if self.steps >= training.steps:
            return "all updates are done"
        wanted, score = training.stop_at_score, last[0].get(self.metric) if last else None
        if wanted is not None and score is not None and not is_better(self.metric, wanted, score):
            return f"{self.metric} reached {wanted:g} (training.stop_at_score)"
        if 0 < training.patience <= (misses := self.standing().misses):
            return f"no better {self.metric} in {misses} validations (training.patience)"
        return None

    def ending(self) -> str:
        """Say how the training ended, or what has become of it."""
        if (reason := self.reason()) is not None:
            return reason
        if is_training(self.run):
            return "not yet: it is training"
        return f"stopped before its end: transduce train --resume --out {self.run} goes on"

    def tokens(self) -> float:
        """Return about how many target tokens the updates had; NaN if that cannot be told.

        Speed times time, of the stretches without a validation, which would be in the time alone.
        """
        pauses = {row["step"] for row in self.validations}
        start: Row = {"step": 0.0, "seconds": 0.0}
        tokens = updates = 0.0
        for before, row in zip([start, *self.updates], self.updates, strict=False):
            took = row.get("seconds", math.nan) - before.get("seconds", math.nan)
            found = row.get("target_tokens_per_second", math.nan) * took
            if math.isfinite(found) and not any(before["step"] <= p < row["step"] for p in pauses):
                tokens += found
                updates += row["step"] - before["step"]
        return tokens / updates * self.steps if updates else math.nan


def points(rows: Sequence[Row], name: str) -> list[Point]:
    """Return the finite values of a name, over the updates."""
    return [(row["step"], row[name]) for row in rows if math.isfinite(row.get(name, math.nan))]


def read(run: Path) -> History:
    """Read what a run wrote down.

    Raises:
        TransduceError: if it is no run, or has written nothing down yet.
    """
    check_is_run(run)
    config = load_config(run)
    objects, unreadable = lines(run / METRICS)
    updates: list[Row] = []
    validations: list[Row] = []
    for one in objects:
        row = {
            name: number for name, value in one.items() if (number := as_number(value)) is not None
        }
        if not row.keys() & {"loss", "valid_loss"}:
            unreadable += 1
            continue
        own = validations if "valid_loss" in row else updates
        for rows in (updates, validations):  # what is done again counts no more
            while rows and (rows[-1]["step"] > row["step"] - (rows is own) / 2):
                rows.pop()
        own.append(row)
    if not updates and not validations:
        raise TransduceError(
            f"{run / METRICS} has no line yet: training writes one every "
            f"{config.training.log_every} updates (training.log_every)"
        )
    samples, damaged = read_samples(run / SAMPLES)
    return History(run, config, updates, validations, samples, unreadable + damaged)


def check_is_run(run: Path) -> None:
    """Refuse what is no run, saying what it is.

    Raises:
        TransduceError: always then.
    """
    if not run.exists():
        raise TransduceError(f"{run} does not exist")
    if (run / STATE).is_file():
        some = next(run.glob(f"*/*/{METRICS}"), None)
        which = f", such as {some.parent}" if some else ""
        raise TransduceError(f"{run} is an ablation: report on one of its runs{which}")
    if (run / METRICS).is_file() and (run / CONFIG).is_file():
        return
    if (run / WEIGHTS).is_file():
        above = run.resolve().parent
        whose = f": {above}" if (above / METRICS).is_file() else ""
        raise TransduceError(
            f"{run} is a model folder, which does not know its training: give the run{whose}"
        )
    if (run / CONFIG).is_file():
        raise TransduceError(f"{run} has no {METRICS}: no update of it was written down yet")
    raise TransduceError(f"{run} is no run: it holds no {CONFIG}")


def lines(path: Path) -> tuple[list[dict[str, Any]], int]:
    """Return the objects of a log that have a step, and how many other lines there are.

    A last line that is only half written is none.

    Raises:
        TransduceError: if the file cannot be read.
    """
    try:
        *whole, half = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return [], 0
    except OSError as error:
        raise TransduceError(f"cannot read {path}: {error.strerror}") from None
    found = [parsed(line) for line in whole if line.strip()]
    if (last := parsed(half)) is not None:
        found.append(last)
    return [one for one in found if one is not None], found.count(None)


def parsed(line: bytes) -> dict[str, Any] | None:
    """Return the object that a line holds, if it belongs to an update."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    step = as_number(found.get("step")) if isinstance(found, dict) else None
    return found if step is not None and math.isfinite(step) else None


def as_number(value: object) -> float | None:
    """Return a number of JSON as a float; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf


def read_samples(path: Path) -> tuple[list[Sample], int]:
    """Return the samples of a run, and how many lines of them cannot be read."""
    objects, unreadable = lines(path)
    found: list[Sample] = []
    for one in objects:
        texts = [one.get("source"), one.get("output")]
        references = one.get("references")
        if not isinstance(references, list) or not all(
            isinstance(text, str) for text in [*texts, *references]
        ):
            unreadable += 1
            continue
        sample = Sample(int(one["step"]), one["source"], references, one["output"])
        while found and found[-1].step > sample.step:
            found.pop()  # done again
        found.append(sample)
    return found, unreadable
