"""The training loop (§5): one flat loop from batches to updates, validations and checkpoints."""

import ctypes
import json
import math
import platform
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import FrameType
from typing import Literal, NamedTuple

import numpy as np
import torch

from transduce.config import PAD, DataConfig, TrainingConfig
from transduce.data.batches import Batch, Epochs, Place, Sample, collate, divide
from transduce.data.corpus import Corpus, Encoded
from transduce.errors import TransduceError
from transduce.model import Transformer
from transduce.model_folder import CHECKPOINTS, METRICS
from transduce.training.checkpoint import Checkpoints, Progress
from transduce.training.loss import label_smoothed
from transduce.training.optimizer import adam, learning_rate
from transduce.training.progress import Display

Validate = Callable[[Transformer], dict[str, float]]
Outcome = Literal["finished", "reached", "patience", "interrupted"]


class Trainer:
    """Trains a model on a corpus and leaves its traces in a run folder.

    Args:
        model: with its initial weights, on its device.
        corpus: the prepared pairs.
        config: the [training] table.
        run: the run's folder.
        validate: really translates with the model; gives scores by name.
        is_better: says whether a score of the first metric beats another.
        on_best: called with the model whenever the validation score is the best so far.
        data: the [data] table: shares of the origins, and how long a validation pair may be.
        sample: cuts training pairs into other pieces in each epoch, if that is wanted.
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
    ) -> None:
        self.model = model
        self.valid = corpus.valid
        self.config = config
        data = data or DataConfig()
        tokens = max(1, config.tokens // config.accumulation)
        self.epochs = Epochs(corpus.train, tokens, config.seed, data.temperature, sample)
        self.max_length = data.max_length
        self.run = run
        self.validate = validate
        self.is_better = is_better
        self.on_best = on_best
        self.device = model.output.weight.device
        self.optimizer = adam(model, config)
        self.checkpoints = Checkpoints(run / CHECKPOINTS, config.keep)
        self.progress = Progress()

    def resume(self) -> bool:
        """Go back to the newest checkpoint; False if there is none."""
        found = self.checkpoints.all()
        if not found:
            return False
        self.progress = self.checkpoints.restore(found[-1], self.model, self.optimizer)
        self._forget_later_metrics()
        return True

    def train(self) -> Outcome:
        """Run updates until the last one, a wanted score, lost patience or a signal.

        Raises:
            TransduceError: if the loss is no number any more, or nothing can be written.
        """
        config, progress = self.config, self.progress
        keep_pages()
        self.model.train()
        started = time.monotonic() - progress.seconds
        since = Since()
        with Display(config.steps, progress.step) as display, stop_signals() as stop:
            while progress.step < config.steps:
                for group, after in self.updates_of_epoch():
                    update = self.update(group)
                    since.add(update)
                    progress.step += 1
                    progress.window, progress.batch = after
                    progress.seconds = time.monotonic() - started
                    last = progress.step == config.steps
                    if progress.step % config.log_every == 0 or last:
                        row = since.metrics(progress, update)
                        self.log(row)
                        display.update(progress.step, row)
                        since = Since()
                    outcome: Outcome | None = "finished" if last else None
                    if progress.step % config.validate_every == 0 or last:
                        paused = time.monotonic()
                        outcome = self.validated(display) or outcome
                        progress.seconds = time.monotonic() - started
                        since.pause(time.monotonic() - paused)
                    if stop.is_set() and outcome is None:
                        outcome = "interrupted"
                    if outcome or progress.step % config.checkpoint_every == 0:
                        self.checkpoints.save(self.model, self.optimizer, progress)
                    if outcome:
                        return outcome
                progress.epoch += 1
                progress.window = progress.batch = 0
        return "finished"

    def updates_of_epoch(self) -> Iterator[tuple[list[Batch], Place]]:
        """Yield the micro-batches of each update left of this epoch, and the place after it."""
        start = Place(self.progress.window, self.progress.batch)
        for group in self.epochs.groups(self.progress.epoch, start, self.config.accumulation):
            yield [collate(pairs) for pairs in group.batches], group.after

    def update(self, group: Sequence[Batch]) -> "Update":
        """One update: the gradients of all micro-batches, divided once by their real tokens.

        Raises:
            TransduceError: if the loss or the gradient is not finite.
        """
        tokens = sum(int((batch.tgt_out != PAD).sum()) for batch in group)
        step = self.progress.step + 1
        rate = learning_rate(step, self.config, self.model.config.d_model)
        if tokens == 0:
            return Update(0.0, 0.0, 0, rate, 0.0)
        total = unsmoothed = 0.0
        for batch in group:
            batch = batch.to(self.device)
            with self.precision():
                logits = self.model(batch.src, batch.tgt_in)
            loss = label_smoothed(logits, batch.tgt_out, self.config.eps_ls)
            (loss.sum / tokens).backward()
            total += loss.sum.item()
            unsmoothed += loss.unsmoothed.item()
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients).item()
        if not (math.isfinite(total) and math.isfinite(norm)):
            raise TransduceError(
                f"update {step}: the {'loss' if not math.isfinite(total) else 'gradient'} is no "
                f"finite number any more (rate {rate:.2e}). The last checkpoint is good; try a "
                "lower rate (training.factor, training.learning_rate), a longer "
                'training.warmup_steps, or training.precision = "float32"'
            )
        for parameters in self.optimizer.param_groups:
            parameters["lr"] = rate
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return Update(total, unsmoothed, tokens, rate, norm)

    def validated(self, display: Display) -> Outcome | None:
        """Validate, keep the model if it is the best so far, and say whether to stop."""
        progress, config = self.progress, self.config
        self.model.eval()
        loss = self.validation_loss(self.valid)
        scores = self.validate(self.model)
        self.log(
            {
                "step": progress.step,
                "epoch": progress.epoch,
                "valid_loss": loss,
                "valid_perplexity": perplexity(loss),
                **scores,
            }
        )
        metric, score = next(iter(scores.items()))
        shown = "  ".join(f"{name} {value:.2f}" for name, value in scores.items())
        best = self.is_better(score, progress.best_score) or (
            score == progress.best_score and loss < progress.best_loss
        )
        display.show_score(metric, score)
        display.say(
            f"validation after {progress.step:,} updates: perplexity {perplexity(loss):.2f}  "
            f"{shown}{'  (best so far)' if best else ''}"
        )
        if best:
            progress.best_score, progress.best_loss = score, loss
            progress.best_step, progress.misses = progress.step, 0
            self.on_best(self.model)
        else:
            progress.misses += 1
        self.model.train()
        wanted = config.stop_at_score
        if wanted is not None and not self.is_better(wanted, score):
            display.say(f"{metric} {score:.2f} reaches training.stop_at_score = {wanted}")
            return "reached"
        if config.patience and progress.misses >= config.patience:
            display.say(f"no better {metric} in {progress.misses} validations: stopping")
            return "patience"
        return None

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
            with self.precision():
                logits = self.model(batch.src, batch.tgt_in)
            loss = label_smoothed(logits, batch.tgt_out, eps_ls=0.0)
            total += loss.unsmoothed.item()
            tokens += loss.tokens.item()
        return total / tokens

    def precision(self) -> AbstractContextManager[object]:
        """Return the context that matrix products are computed in."""
        if self.config.precision == "bfloat16":
            return torch.autocast(self.device.type, torch.bfloat16)
        return nullcontext()

    def log(self, row: Mapping[str, float | int]) -> None:
        """Append a line to `metrics.jsonl`."""
        try:
            with open(self.run / METRICS, "a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
        except OSError as error:
            raise TransduceError(f"cannot write {self.run / METRICS}: {error.strerror}") from None

    def _forget_later_metrics(self) -> None:
        """Remove the lines of updates that are about to be done again."""
        path = self.run / METRICS
        if path.exists():
            rows = path.read_text(encoding="utf-8").splitlines(keepends=True)
            kept = [row for row in rows if _step_of(row) <= self.progress.step]
            path.write_text("".join(kept), encoding="utf-8")


def _step_of(row: str) -> float:
    try:
        return float(json.loads(row)["step"])
    except (ValueError, KeyError, TypeError):
        return math.inf  # a line cut short by a kill


class Update(NamedTuple):
    """What one update did: sums over its tokens, the rate it used, the gradient's norm."""

    loss: float
    unsmoothed: float
    tokens: int
    rate: float
    gradient_norm: float


class Since:
    """Sums over the updates since the last line of the log."""

    def __init__(self) -> None:
        self.loss = self.unsmoothed = 0.0
        self.tokens = 0
        self.start = time.monotonic()

    def add(self, update: Update) -> None:
        """Count one update."""
        self.loss += update.loss
        self.unsmoothed += update.unsmoothed
        self.tokens += update.tokens

    def pause(self, seconds: float) -> None:
        """Leave time out that was not spent on updates."""
        self.start += seconds

    def metrics(self, progress: Progress, last: Update) -> dict[str, float | int]:
        """Return the line of the log."""
        tokens = max(1, self.tokens)
        return {
            "step": progress.step,
            "epoch": progress.epoch,
            "loss": self.loss / tokens,
            "perplexity": perplexity(self.unsmoothed / tokens),
            "learning_rate": last.rate,
            "target_tokens_per_second": self.tokens / max(1e-9, time.monotonic() - self.start),
            "gradient_norm": last.gradient_norm,
            "seconds": round(progress.seconds, 3),
        }


def perplexity(loss: float) -> float:
    """Return e^loss, capped where a float ends."""
    return math.exp(min(loss, 700.0))


def pick_precision(precision: str, device: torch.device) -> Literal["float32", "bfloat16"]:
    """Return what `auto` means: bfloat16 where the processor has instructions for it."""
    if precision == "auto":
        if device.type == "cuda":
            fast = torch.cuda.is_bf16_supported()
        elif device.type == "cpu":
            fast = bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())
        else:
            fast = False
        return "bfloat16" if fast else "float32"
    return "bfloat16" if precision == "bfloat16" else "float32"


def keep_pages() -> None:
    """Have glibc keep freed memory instead of unmapping it: each update needs the same again."""
    if platform.system() == "Linux" and platform.libc_ver()[0] == "glibc":
        M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8
        libc = ctypes.CDLL(None)
        libc.mallopt(M_MMAP_THRESHOLD, 32 << 20)  # the largest that glibc takes
        libc.mallopt(M_TRIM_THRESHOLD, (1 << 31) - 1)
        libc.mallopt(M_ARENA_MAX, 1)


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
