"""The training loop (§5): one flat loop from batches to updates, validations and checkpoints."""

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

from transduce.config import PAD, DataConfig, TrainingConfig
from transduce.data.batches import Batch, Epochs, Place, Sample, collate, divide
from transduce.data.corpus import Corpus, Encoded
from transduce.errors import TransduceError
from transduce.model import Transformer
from transduce.model_folder import CHECKPOINTS
from transduce.training.checkpoint import Best, Checkpoints, Progress
from transduce.training.distributed import ALONE, Ranks
from transduce.training.gradients import Gradients, Sums, products_in
from transduce.training.log import Log
from transduce.training.loss import projected_loss
from transduce.training.machine import keep_pages, only_deterministic
from transduce.training.optimizer import adam, learning_rate
from transduce.training.progress import Display
from transduce.training.watch import Watch

Outcome = Literal["finished", "reached", "patience", "interrupted"]
OUTCOMES: list[Outcome | None] = [None, "reached", "patience"]
"""Why a validation may end the training."""
Group = tuple[list[Batch], Place]
"""The micro-batches of an update, and the place after them."""


class Validation(NamedTuple):
    """What really translating with the model comes to."""

    scores: dict[str, float]
    """By name; the first decides which model is the best."""
    samples: Sequence[Mapping[str, Any]] = ()
    """Some of what was translated, always the same: lines of `samples.jsonl`."""


Validate = Callable[[Transformer], Validation]


class Trainer:
    """Trains a model on a corpus and leaves its traces in a run folder.

    Args:
        model: with its initial weights, on its device.
        corpus: the prepared pairs.
        config: the [training] table.
        run: the run's folder.
        validate: really translates with the model.
        is_better: says whether a score of the first metric beats another.
        on_best: called with the model whenever the validation score is the best so far.
        data: the [data] table: shares of the origins, and how long a validation pair may be.
        sample: cuts training pairs into other pieces in each epoch, if that is wanted.
        ranks: this process among the others that train the same model.
    """

    def __init__(
        self,
        model: Transformer,
        corpus: Corpus,
        config: TrainingConfig,
        run: Path,
        validate: Validate,
        is_better: Callable[[float, float | None], bool],
        on_best: Callable[[Transformer], None],
        data: DataConfig | None = None,
        sample: Sample | None = None,
        ranks: Ranks = ALONE,
    ) -> None:
        self.ranks = ranks
        self.model = model
        self.valid = corpus.valid
        self.config = config
        data = data or DataConfig()
        tokens = max(1, config.tokens // (config.accumulation * ranks.count))
        self.epochs = Epochs(corpus.train, tokens, config.seed, data.temperature, sample)
        self.max_length = data.max_length
        self.run = run
        self.validate = validate
        self.is_better = is_better
        self.on_best = on_best
        self.device = model.output.weight.device
        self.gradients = Gradients(model, config)
        self.optimizer = adam(model, config)
        self.checkpoints = Checkpoints(run / CHECKPOINTS, config.keep)
        self.progress = Progress()
        self.log = Log(run, config.tensorboard, silent=not ranks.first)
        self.watch = Watch(config)

    def resume(self) -> bool:
        """Go back to the newest checkpoint; False if there is none."""
        found = self.checkpoints.all()
        if not found:
            self.log.forget_after(0)  # what was done before the first checkpoint
            return False
        self.progress = self.checkpoints.restore(found[-1], self.model, self.optimizer)
        self.log.forget_after(self.progress.step)
        return True

    def train(self) -> Outcome:
        """Run updates until the last one, a wanted score, lost patience or a signal.

        Raises:
            TransduceError: if the loss is no number any more, or nothing can be written.
        """
        config, progress = self.config, self.progress
        keep_pages()
        if config.deterministic:
            only_deterministic()
        self.model.train()
        started = time.monotonic() - progress.seconds
        since, compiling = Since(), config.compile
        display = Display(config.steps, progress.step, silent=not self.ranks.first)
        with display, stop_signals() as stop:
            while progress.step < config.steps:
                for group, after, waited in timed(self.updates_of_epoch()):
                    before = time.monotonic()
                    update = self.update(group)
                    since.add(update, waited)
                    if compiling:
                        seconds, compiling = time.monotonic() - before, False
                        since.pause(seconds)  # tokens/s are those of the run, not of its beginning
                        display.say(
                            f"torch.compile: the first update took {seconds:.0f} s; other shapes "
                            "may be compiled once more"
                        )
                    progress.step += 1
                    progress.window, progress.batch = after
                    progress.seconds = time.monotonic() - started
                    last = progress.step == config.steps
                    loss = update.sums.loss / max(1, update.tokens)
                    notes = list(self.watch.update(progress.step, loss, update.rate))
                    if progress.step % config.log_every == 0 or last:
                        row = since.metrics(progress, update)
                        self.log.write(row)
                        display.update(progress.step, row)
                        notes += self.watch.waiting(since.share_waiting())
                        notes += self.watch.memory(since.sums.divided, since.sums.skipped)
                        since = Since()
                    outcome: Outcome | None = "finished" if last else None
                    entered = False
                    if progress.step % config.validate_every == 0 or last:
                        paused = time.monotonic()
                        stopped, entered = None, False
                        if self.ranks.first:
                            stopped, entered = self.validated(display)
                        (why,) = self.ranks.of_first(float(OUTCOMES.index(stopped)))
                        outcome = OUTCOMES[int(why)] or outcome
                        progress.seconds = time.monotonic() - started
                        since.pause(time.monotonic() - paused)
                    for note in notes:
                        display.say(note)
                    (stops,) = self.ranks.total(float(stop.is_set()))
                    if stops and outcome is None:
                        outcome = "interrupted"
                    due = outcome or entered or progress.step % config.checkpoint_every == 0
                    if due and self.ranks.first:
                        self.checkpoints.save(self.model, self.optimizer, progress)
                    if outcome:
                        return outcome
                progress.epoch += 1
                progress.window = progress.batch = 0
        return "finished"

    def updates_of_epoch(self) -> Iterator[Group]:
        """Yield the micro-batches of each update left of this epoch, and the place after it."""
        start = Place(self.progress.window, self.progress.batch)
        size, rank, ranks = self.config.accumulation, self.ranks.rank, self.ranks.count
        for group in self.epochs.groups(self.progress.epoch, start, size, rank, ranks):
            yield [collate(pairs) for pairs in group.batches], group.after

    def update(self, group: Sequence[Batch]) -> "Update":
        """One update: the gradients of all micro-batches, divided once by their real tokens.

        Raises:
            TransduceError: if the loss or the gradient is not finite.
        """
        own = sum(int((batch.tgt_out != PAD).sum()) for batch in group)
        tokens = int(self.ranks.total(own)[0])
        step = self.progress.step + 1
        rate = learning_rate(step, self.config, self.model.config.d_model)
        if tokens == 0:
            return Update(Sums(), 0, rate, 0.0)
        sums = self.gradients.compute(group, tokens, step, self.ranks)
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients).item()
        if not (math.isfinite(sums.loss) and math.isfinite(norm)):
            what = "gradient" if math.isfinite(sums.loss) else "loss"
            raise TransduceError(self.watch.not_finite(step, rate, what))
        for parameters in self.optimizer.param_groups:
            parameters["lr"] = rate
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return Update(sums, tokens, rate, norm)

    def validated(self, display: Display) -> tuple[Outcome | None, bool]:
        """Validate, and keep the model if it is the best so far.

        Returns:
            Why to stop, if so; and whether this validation is among the best.
        """
        progress, config = self.progress, self.config
        self.model.eval()
        loss = self.validation_loss(self.valid)
        scores, samples = self.validate(self.model)
        self.model.train()
        self.log.write(
            {
                "step": progress.step,
                "epoch": progress.epoch,
                "valid_loss": loss,
                "valid_perplexity": perplexity(loss),
                **scores,
            }
        )
        self.log.write_samples(progress.step, samples)
        metric, score = next(iter(scores.items()))
        place = progress.enter(Best(score, loss, progress.step), self.is_better, config.keep_best)
        display.show_score(metric, score)
        shown = "  ".join(f"{name} {value:.2f}" for name, value in scores.items())
        display.say(
            f"validation after {progress.step:,} updates: perplexity {perplexity(loss):.2f}  "
            f"{shown}{'  (best so far)' if place == 0 else ''}"
        )
        if place == 0:
            self.on_best(self.model)
        for note in self.watch.validation(loss, place == 0):
            display.say(note)
        wanted = config.stop_at_score
        if wanted is not None and not self.is_better(wanted, score):
            display.say(f"{metric} {score:.2f} reaches training.stop_at_score = {wanted}")
            return "reached", place is not None
        if config.patience and progress.misses >= config.patience:
            display.say(f"no better {metric} in {progress.misses} validations: stopping")
            return "patience", place is not None
        return None, place is not None

    @torch.inference_mode()
    def validation_loss(self, pairs: Encoded) -> float:
        """Return the plain loss per target token over all validation pairs of usual length.

        Raises:
            TransduceError: if there is none.
        """
        total = tokens = 0.0
        src, tgt = pairs.lengths(0, len(pairs))
        usual = np.flatnonzero(np.maximum(src, tgt) <= self.max_length)
        if not len(usual):
            raise TransduceError(
                f"no validation pair has at most {self.max_length} pieces (data.max_length)"
            )
        budget = max(4096, self.config.tokens)
        for places in divide(src[usual], tgt[usual], budget, np.random.default_rng(0)):
            batch = collate([pairs[int(usual[i])] for i in places]).to(self.device)
            with products_in(self.config.precision, self.device):
                states = self.model.states(batch.src, batch.tgt_in)
                W, b = self.model.output.weight, self.model.output.bias
                loss = projected_loss(states, W, batch.tgt_out, 0.0, b)
            total += loss.unsmoothed.item()
            tokens += loss.tokens.item()
        return total / tokens


class Update(NamedTuple):
    """What one update did."""

    sums: Sums
    tokens: int
    rate: float
    gradient_norm: float


class Since:
    """Sums over the updates since the last line of the log."""

    def __init__(self) -> None:
        self.sums = Sums()
        self.tokens = 0
        self.waiting = 0.0
        self.start = time.monotonic()

    def add(self, update: Update, waited: float = 0.0) -> None:
        """Count one update, and the seconds that were spent waiting for its batches."""
        self.sums = self.sums.plus(update.sums)
        self.tokens += update.tokens
        self.waiting += waited

    def share_waiting(self) -> float:
        """Return the share of the time that was spent waiting for batches."""
        return self.waiting / max(1e-9, time.monotonic() - self.start)

    def pause(self, seconds: float) -> None:
        """Leave time out that was not spent on updates."""
        self.start += seconds

    def metrics(self, progress: Progress, last: Update) -> dict[str, float | int]:
        """Return the line of the log."""
        tokens = max(1, self.tokens)
        return {
            "step": progress.step,
            "epoch": progress.epoch,
            "loss": self.sums.loss / tokens,
            "perplexity": perplexity(self.sums.unsmoothed / tokens),
            "learning_rate": last.rate,
            "target_tokens_per_second": self.tokens / max(1e-9, time.monotonic() - self.start),
            "gradient_norm": last.gradient_norm,
            "seconds": round(progress.seconds, 3),
            **({"divided_batches": self.sums.divided} if self.sums.divided else {}),
            **({"skipped_pairs": self.sums.skipped} if self.sums.skipped else {}),
        }


def timed(groups: Iterator[Group]) -> Iterator[tuple[list[Batch], Place, float]]:
    """Pass groups on, with the seconds that each took to come."""
    before = time.monotonic()
    for group, after in groups:
        yield group, after, time.monotonic() - before
        before = time.monotonic()


def perplexity(loss: float) -> float:
    """Return e^loss, capped where a float ends."""
    return math.exp(min(loss, 700.0))


@contextmanager
def stop_signals() -> Iterator[threading.Event]:
    """Turn Ctrl-C and a polite kill into an event, so that the update at hand is finished."""
    stop = threading.Event()

    def ask_to_stop(number: int, frame: FrameType | None) -> None:
        if stop.is_set():  # asked twice: at once
            raise KeyboardInterrupt
        stop.set()

    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {s: signal.signal(s, ask_to_stop) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
