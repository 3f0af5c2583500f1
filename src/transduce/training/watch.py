"""Training that explains itself: what goes wrong, and its likely cause, in a sentence."""

import math
from collections.abc import Iterator
from itertools import pairwise

from transduce.config import TrainingConfig

SETTLED = 50
"""Updates that the running mean of the loss looks back on, and needs to mean anything."""
RISEN = 0.7
"""Nats per token above its lowest point that the loss must rise to be called diverging."""
SLOW_INPUT = 0.2
"""Share of the time spent waiting for batches that deserves a word."""
VALIDATIONS = 4
"""Validations without progress that make a plateau, or a trend."""


class Watch:
    """Looks at the numbers of a run and says, once for each kind of trouble, what they mean."""

    def __init__(self, config: TrainingConfig) -> None:
        self.config = config
        self.said: set[str] = set()
        self.mean: float | None = None
        self.seen = 0
        self.lowest = math.inf
        self.lowest_step = 0
        self.losses: list[float] = []

    def update(self, step: int, loss: float, rate: float) -> Iterator[str]:
        """Look at the training loss (nats per token) of an update."""
        if self.mean is None:
            self.mean = loss
        self.seen += 1
        self.mean += (loss - self.mean) / min(self.seen, SETTLED)
        if self.mean < self.lowest and self.seen > SETTLED:
            self.lowest, self.lowest_step = self.mean, step
        if self.mean > self.lowest + RISEN:
            yield from self.once(
                "divergence",
                f"the loss has risen from {self.lowest:.2f} (update {self.lowest_step:,}) to "
                f"{self.mean:.2f}: most often the rate ({rate:.1e}) is too high. Try half of it "
                f'({self.knob()}), a longer training.warmup_steps, or model.norm_place = "pre"',
            )

    def memory(self, divided: int, skipped: int) -> Iterator[str]:
        """Look at how often memory did not suffice."""
        if divided:
            yield from self.once(
                "divided",
                "memory did not suffice for a batch: it was computed in two halves. Should this "
                "happen often (metrics.jsonl counts it), a larger training.accumulation is faster",
            )
        if skipped:
            yield from self.once(
                "skipped",
                "memory did not suffice for a single pair: it was left out. A lower "
                "data.max_length leaves such pairs out from the start",
            )

    def waiting(self, share: float) -> Iterator[str]:
        """Look at the share of the time that went into waiting for batches."""
        if share > SLOW_INPUT:
            yield from self.once(
                "input",
                f"{share:.0%} of the time is spent waiting for pairs: the disk that holds the "
                "corpus is slow, or tokenizer.sampling cuts pairs slower than the model learns",
            )

    def validation(self, loss: float, best: bool) -> Iterator[str]:
        """Look at a validation: its plain loss per token, and whether it is the best so far."""
        if best:
            self.losses.clear()
        self.losses.append(loss)
        recent = self.losses[-VALIDATIONS - 1 :]
        if len(recent) <= VALIDATIONS:
            return
        if all(later > earlier for earlier, later in pairwise(recent)):
            yield from self.once(
                "overfitting",
                f"the loss on validation pairs has risen {VALIDATIONS} times in a row, from "
                f"{recent[0]:.2f} to {recent[-1]:.2f}, and the score was never better: the model "
                "learns its pairs by heart. Try a higher model.P_drop, a smaller preset, more "
                "pairs, or an end by training.patience",
            )
        elif self.config.schedule in ("constant", "paper", "inverse_sqrt"):
            yield from self.once(
                "plateau",
                f"no better validation for {VALIDATIONS} times, and the rate falls slowly or not "
                'at all: training.schedule = "linear" or "cosine" would bring the run to a good '
                "end; training.patience would end it",
            )

    def once(self, kind: str, sentence: str) -> Iterator[str]:
        """Yield a sentence, unless trouble of its kind was spoken of before."""
        if kind not in self.said:
            self.said.add(kind)
            yield f"note: {sentence}"

    def knob(self) -> str:
        """Return the knob that sets the rate."""
        return f"training.{'factor' if self.config.schedule == 'paper' else 'learning_rate'}"

    def not_finite(self, step: int, rate: float, what: str) -> str:
        """Return what to say when the loss or the gradient is no number any more."""
        causes = [f"a lower rate ({self.knob()}; it was {rate:.1e})"]
        if step <= self.config.warmup_steps:
            causes.append("a longer training.warmup_steps")
        if self.config.precision == "bfloat16":
            causes.append('training.precision = "float32"')
        before = "" if self.mean is None else f"; the loss was {self.mean:.2f} on average before"
        return (
            f"update {step}: the {what} is no finite number any more{before}. What is saved is "
            f"good. Likely remedies, in this order: {'; '.join(causes)}"
        )
