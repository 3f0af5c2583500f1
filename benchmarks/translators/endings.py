"""For peers that cannot take our weights: theirs are random, and END comes when it does in ours."""

import math
from typing import Any

from peers import protocol as training
from torch import Tensor, nn

from translators.protocol import EOS, Job


class Ending(nn.Module):
    """Wraps an output layer: END is impossible before a step, and certain at it."""

    def __init__(self, output: nn.Module) -> None:
        super().__init__()
        self.output = output
        self.steps = self.last = 0

    def forward(self, x: Tensor) -> Tensor:
        """Return logits."""
        self.steps += 1
        logits: Tensor = self.output(x)
        logits[..., EOS] = 1e4 if self.steps >= self.last else -1e4
        return logits

    def after(self, job: Job, numbers: list[int]) -> None:
        """Have the outputs of some sentences end at the mean length of ours."""
        self.steps = 0
        self.last = math.ceil(sum(job.lengths[i] for i in numbers) / len(numbers))


def model_job(job: Job) -> Any:
    """Return the job of a training benchmark's peer with a model of the same sizes."""
    return training.Job(
        variant="", vocabulary=job.vocabulary, N=job.N, d_model=job.d_model, d_ff=job.d_ff,
        h=job.h, dropout=0.0, eps_ls=0.1, peak_rate=1e-3, warmup_steps=400, batches="", corpus="",
        config="", reference=job.reference,
    )  # fmt: skip
