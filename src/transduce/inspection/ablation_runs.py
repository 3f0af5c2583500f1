"""Runs of an ablation, several side by side: each a process of its own and an ordinary run folder.

DIR/ROW/seed-K/            a run: `transduce train --resume` goes on with it
DIR/ROW/seed-K/result.json what was measured when it was finished; it is not trained again
DIR/ROW/seed-K.log         what training said
"""

import hashlib
import json
import math
import os
import signal
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from transduce import fitting
from transduce.assembly import Say
from transduce.config import Config, Settings, merge, parse
from transduce.data.corpus import Corpus
from transduce.data.workers import end_with, without_interrupts
from transduce.decoding.translator import load
from transduce.errors import TransduceError, UsageError
from transduce.evaluating import Items, scored
from transduce.experiment import train
from transduce.model import Transformer
from transduce.model_folder import CONFIG, METRICS, load_config, write_file
from transduce.pricing import duration
from transduce.training.log import step_of
from transduce.training.trainer import stop_signals

RESULT = "result.json"
OWN = ("accumulation", "workers")
"""Of [training], what each run chooses for itself: it changes no result but by rounding."""


@dataclass(frozen=True)
class Result:
    """What a finished run came to."""

    perplexity: float
    """Of the validation pairs, from the plain loss per target token."""
    scores: dict[str, float]
    """The metrics of [evaluation] on the items."""
    parameters: int
    seconds: float
    """Of all updates."""
    tokens_per_second: float
    """Target tokens: the median over the lines of the log."""
    losses: list[tuple[float, int]]
    """Of each validation pair its plain loss in nats, and its target tokens."""
    outputs: list[str]
    """Of each item."""


@dataclass(frozen=True)
class Failure:
    """Why a run came to nothing."""

    reason: str


@dataclass(frozen=True)
class Job:
    """A row with one seed."""

    row: str
    seed: int
    run: Path
    config: Config
    given: Settings
    """What the user decided of `OWN`."""
    asked: Items
    """What is translated and scored."""
    origin: str
    """Of the corpus: its fingerprint."""

    @property
    def name(self) -> str:
        """What people call it."""
        return f"{self.row} seed {self.seed}"

    @property
    def fingerprint(self) -> str:
        """All that decides the result."""
        tables = self.config.model_dump_json(exclude={"data", "preset", "profile", "device"})
        items = json.dumps(asdict(self.asked))
        return hashlib.sha256("\n".join((tables, items, self.origin)).encode()).hexdigest()

    def result(self) -> Result | None:
        """Return what is known of the run already; None if it is to be trained, or scored."""
        try:
            found = json.loads((self.run / RESULT).read_text(encoding="utf-8"))
            if found.pop("fingerprint") != self.fingerprint:
                return None  # other items
            found["losses"] = [(float(loss), int(count)) for loss, count in found["losses"]]
            return Result(**found)
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def keep(self, result: Result) -> None:
        """Write down what the run came to."""
        record = {"fingerprint": self.fingerprint, **asdict(result)}
        write_file(self.run / RESULT, json.dumps(record, ensure_ascii=False).encode())

    def refuse_other(self) -> None:
        """Refuse to go on with a run of other settings.

        Raises:
            UsageError: naming them.
        """
        if not (self.run / CONFIG).exists():
            return
        there = load_config(self.run)
        for table in ("model", "training"):
            ours, theirs = (getattr(one, table).model_dump() for one in (self.config, there))
            for key in ours.keys() - {*OWN}:
                if ours[key] != theirs[key]:
                    raise UsageError(
                        f"{self.run} holds a run with {table}.{key} = {theirs[key]}, not "
                        f"{ours[key]}: give another --out, or remove it"
                    )

    def steps_done(self) -> int:
        """Return how many updates the log of the run has come to."""
        try:
            rows = (self.run / METRICS).read_bytes().splitlines()
        except OSError:
            return 0
        steps = [step for row in rows[-2:] if math.isfinite(step := step_of(row))]
        return int(max(steps, default=0))


# In a process of its own ------------------------------------------------------------------------


def fitted(config: Config, corpus: Corpus, given: Settings, runs: int) -> Config:
    """Return a configuration with as many micro-batches and parts as suit one of several runs."""
    own = fitting.divided(config, corpus, {"training": given}, runs).settings
    return parse(merge(config.model_dump(), {"training": given}, own), "the recipe")


def trained(job: Job, side_by_side: int, say: Say) -> Result | None:
    """Train a run, or go on with it, and measure what it came to; None if it was interrupted.

    The model that is measured is the one after the last update (§6.2: no averaging).

    Raises:
        TransduceError: if training fails.
    """
    corpus = Corpus(Path(job.config.data.corpus))
    if not (job.run / CONFIG).exists():
        config = fitted(job.config, corpus, job.given, side_by_side)
        write_file(job.run / CONFIG, config.to_toml().encode())
    if train({}, job.run, resume=True, say=say) == "interrupted":
        return None
    translator = load(job.run, device=job.config.device)
    scores, outputs = scored(translator, job.asked, job.config)
    src, tgt = corpus.valid.lengths(0, len(corpus.valid))
    usual = np.flatnonzero(np.maximum(src, tgt) <= job.config.data.max_length)  # as in training
    pairs = translator.score([corpus.valid.text(int(i)) for i in usual])
    losses = [(-pair.log_probability, len(pair.tokens)) for pair in pairs]
    return Result(
        perplexity_of(losses),
        {name: score.score for name, score in scores.items()},
        parameters_of(job.config),
        *speed_of(job.run / METRICS),
        losses,
        outputs,
    )


def perplexity_of(losses: Sequence[tuple[float, int]]) -> float:
    """Return e to the mean loss per token."""
    total = math.fsum(loss for loss, _ in losses) / sum(count for _, count in losses)
    return math.exp(min(total, 700.0))


def parameters_of(config: Config) -> int:
    """Return the number of parameters of a model; tied matrices count once."""
    with torch.device("meta"):
        model = Transformer(config.model)
    return sum(parameter.numel() for parameter in model.parameters())


def speed_of(metrics: Path) -> tuple[float, float]:
    """Return the seconds that all updates of a run took, and its median target tokens per second.

    Raises:
        TransduceError: if the log has no line of an update.
    """
    rows = [json.loads(line) for line in metrics.read_bytes().splitlines()]
    rows = [row for row in rows if "seconds" in row]
    if not rows:
        raise TransduceError(f"{metrics} has no line of an update")
    median = statistics.median(row["target_tokens_per_second"] for row in rows)
    return float(rows[-1]["seconds"]), float(median)


def work(job: Job, side_by_side: int, threads: int, parent: int, answers: Connection) -> None:
    """Do a job and answer with what came of it; None if it was asked to stop.

    The process stands apart from the terminal's Ctrl-C: the one that started it passes it on, once.
    """
    end_with(parent)
    os.setpgrp()
    log = os.open(job.run.with_suffix(".log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    os.dup2(log, 1)
    os.dup2(log, 2)
    torch.set_num_threads(threads)
    found: Result | Failure | None
    try:
        found = trained(job, side_by_side, lambda line: print(line, flush=True))
        if found is not None:
            job.keep(found)
    except KeyboardInterrupt:
        found = None
    except TransduceError as error:
        found = Failure(str(error))
    except Exception as error:  # whatever a row dies of, the others go on
        traceback.print_exc()
        found = Failure(f"{type(error).__name__}: {error}".splitlines()[0])
    if isinstance(found, Failure):
        print(found.reason, flush=True)
    answers.send(found)


# In the process that the user started -----------------------------------------------------------

Tell = Callable[[Job, Result | Failure], None]


def conduct(jobs: Sequence[Job], count: int, threads: int, tell: Callable[["Board"], Tell]) -> bool:
    """Do jobs in processes of their own, `count` at a time, in their order.

    Args:
        jobs: what is to be done.
        count: how many are done side by side.
        threads: of each process.
        tell: given what shows the progress, returns what is told of each job that is done.

    Returns:
        Whether all were done; not so if somebody asked to stop. What was trained is saved then.
    """
    waiting = list(jobs)
    running: dict[Connection, tuple[Job, SpawnProcess]] = {}
    asked = False
    with Board(jobs) as board, stop_signals() as stop, ended(running):
        told = tell(board)
        while running or (waiting and not stop.is_set()):
            while waiting and len(running) < count and not stop.is_set():
                job = waiting.pop(0)
                connection, process = started(job, count, threads)
                running[connection] = job, process
            if stop.is_set() and not asked:
                board.say("stopping: each run saves what it has come to")
                for _, process in running.values():
                    process.terminate()
                asked = True
            for ready in wait([*running], timeout=0.5):
                assert isinstance(ready, Connection)
                job, process = running.pop(ready)
                found = answer(ready, process)
                if found is not None and not (asked and isinstance(found, Failure)):
                    board.finish(job)
                    told(job, found)
            board.show([job for job, _ in running.values()])
        return not board.left


def started(job: Job, side_by_side: int, threads: int) -> tuple[Connection, SpawnProcess]:
    """Start a process for a job; return where its answer comes from, and the process."""
    try:
        job.run.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TransduceError(f"cannot write {job.run}: {error.strerror}") from None
    context = get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    arguments = (job, side_by_side, threads, os.getpid(), theirs)
    process = context.Process(target=work, args=arguments, name=job.name)
    with without_interrupts():
        process.start()
    theirs.close()  # so that the end of the process is the end of its answers
    return ours, process


def answer(connection: Connection, process: SpawnProcess) -> Result | Failure | None:
    """Return what came of a job."""
    try:
        found: Result | Failure | None = connection.recv()
    except EOFError:
        process.join()
        code = process.exitcode or 0
        how = f"with status {code}" if code >= 0 else f"by {signal.Signals(-code).name}"
        found = Failure(
            f"its process was ended {how}"
            + (": was memory full?" if code == -signal.SIGKILL else "")
        )
    connection.close()
    process.join()
    return found


@contextmanager
def ended(running: Mapping[Connection, tuple[Job, SpawnProcess]]) -> Iterator[None]:
    """Leave no process behind, whatever happens."""
    try:
        yield
    finally:
        for _, process in running.values():
            process.kill()
            process.join()


class Board:
    """Shows on stderr which rows are trained, how far they are, and how long all will take.

    Args:
        jobs: all that are to be done.
        quiet_seconds: where no terminal is, at most one line in so many seconds.
    """

    def __init__(self, jobs: Iterable[Job], quiet_seconds: float = 15.0) -> None:
        self.jobs = list(jobs)
        self.left = {job.name: job for job in self.jobs}
        self.total = sum(job.config.training.steps for job in self.jobs)
        self.before = self.done()
        self.start = self.last_line = time.monotonic()
        self.quiet_seconds = quiet_seconds
        self.console = Console(stderr=True, highlight=False, emoji=False)
        self.bar = Progress(
            TextColumn("ablation"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[text]}", markup=False),
            TimeElapsedColumn(),
            console=self.console,
            disable=not sys.stderr.isatty(),
        )
        self.task = self.bar.add_task("ablation", total=self.total, text="")

    def __enter__(self) -> "Board":
        self.bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.bar.stop()

    def done(self) -> int:
        """Return how many updates are done, of all jobs."""
        rest = sum(job.config.training.steps - job.steps_done() for job in self.left.values())
        return self.total - rest

    def finish(self, job: Job) -> None:
        """Count a job as done, whatever came of it."""
        del self.left[job.name]

    def show(self, running: Sequence[Job]) -> None:
        """Show how far the running jobs are."""
        done = self.done()
        speed = (done - self.before) / (time.monotonic() - self.start)
        parts = [
            f"{job.name}: {job.steps_done():,} of {job.config.training.steps:,} updates"
            for job in running
        ]
        parts.append(f"{len(self.jobs) - len(self.left)} of {len(self.jobs)} runs done")
        if speed > 0 and done < self.total:
            parts.append(f"about {duration((self.total - done) / speed)} left")
        text = "; ".join(parts)
        self.bar.update(self.task, completed=done, text=text)
        if self.bar.disable and time.monotonic() - self.last_line >= self.quiet_seconds:
            self.last_line = time.monotonic()
            self.say(text)

    def say(self, line: str) -> None:
        """Print a line above the bar."""
        self.console.print(line, markup=False, soft_wrap=True)
