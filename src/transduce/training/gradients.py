"""The gradients of one update: the parts of a batch side by side, each in a thread of its own.

One thread alone multiplies matrices near the limit of its core. What lies between the products
(dropout, norms, softmax, casts) gains little from a second thread: all of them wait for each other
after every operation. So a batch is divided by its sentences, each worker goes through the whole
model with its part, and they meet once, to add up the gradients in a fixed order.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from transduce.config import EOS, PAD, UNK, TrainingConfig
from transduce.data.batches import Batch
from transduce.errors import TransduceError
from transduce.model import Transformer
from transduce.model.transformer import dropout_from
from transduce.training.distributed import ALONE, Ranks
from transduce.training.loss import projected_loss


class Sums(NamedTuple):
    """Sums over the target tokens of a batch, or of an update."""

    loss: float = 0.0
    """The smoothed loss."""
    unsmoothed: float = 0.0
    """The plain one."""
    divided: int = 0
    """How often a part had to be divided, because memory did not suffice for it."""
    skipped: int = 0
    """Sentences left out, because memory did not even suffice for one alone."""

    def plus(self, other: "Sums") -> "Sums":
        """Return the sums over both."""
        return Sums(
            self.loss + other.loss,
            self.unsmoothed + other.unsmoothed,
            self.divided + other.divided,
            self.skipped + other.skipped,
        )


class Gradients:
    """Computes gradients and puts them into the parameters' `grad`.

    Dropout masks are drawn from (seed, update, micro-batch, part), so they are the same whenever an
    update is computed again.

    Args:
        model: on its device. Parameters that need no gradient get none.
        config: the [training] table, with nothing left on `auto`.
    """

    def __init__(self, model: Transformer, config: TrainingConfig) -> None:
        self.model = model
        self.config = config
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.device = model.output.weight.device
        self.workers = config.workers if self.device.type == "cpu" else 1
        self.compiled = torch.compile(model.states, dynamic=True) if config.compile else None
        self.pool = None
        if self.workers > 1:
            threads = max(1, torch.get_num_threads() // self.workers)
            self.pool = ThreadPoolExecutor(
                self.workers, "part", initializer=torch.set_num_threads, initargs=(threads,)
            )

    def compute(self, group: Sequence[Batch], tokens: int, step: int, ranks: Ranks = ALONE) -> Sums:
        """Set the gradients of the loss per token of all micro-batches of update `step`.

        Args:
            group: the micro-batches; those of this process, if there are several.
            tokens: the target tokens of the whole update: what the sum is divided by, once.
            step: number of the update.
            ranks: this process among the others.

        Returns:
            The sums over all processes.
        """
        sums = Sums()
        total: list[Tensor] | None = None
        for number, batch in enumerate(group):
            place = number * ranks.count + ranks.rank  # among the micro-batches of all processes
            seeds = [(self.config.seed, step, place, part) for part in range(self.workers)]
            arguments = (divided(batch, self.workers), [tokens] * self.workers, seeds)
            side_by_side = map if self.pool is None else self.pool.map
            for part_sums, gradients in side_by_side(self.of_part, *arguments):
                sums, total = sums.plus(part_sums), added(total, gradients)
        for parameter, gradient in zip(self.parameters, total or [], strict=total is not None):
            parameter.grad = gradient
        ranks.add_up(self.parameters)
        loss, unsmoothed, halved, skipped = ranks.total(*sums)
        return Sums(loss, unsmoothed, int(halved), int(skipped))

    def of_part(
        self, batch: Batch, tokens: int, seed: tuple[int, ...]
    ) -> tuple[Sums, list[Tensor] | None]:
        """Return sums and gradients of a part; halve it where memory does not suffice."""
        try:
            return self.forward_and_backward(batch, tokens, seed)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
        if len(batch.src) == 1:
            return Sums(skipped=1), None
        sums, total = Sums(divided=1), None
        for half, rows in enumerate(divided(batch, 2)):
            half_sums, gradients = self.of_part(rows, tokens, (*seed, half))
            sums, total = sums.plus(half_sums), added(total, gradients)
        return sums, total

    def forward_and_backward(
        self, batch: Batch, tokens: int, seed: tuple[int, ...]
    ) -> tuple[Sums, list[Tensor]]:
        """Go through the model once, and back.

        Raises:
            TransduceError: if the model cannot be compiled here.
        """
        if self.device.type != "cpu" or self.config.compile:  # there, the library draws the masks
            torch.manual_seed(
                int(np.random.SeedSequence(seed).generate_state(1, np.uint64)[0] >> 1)
            )
        with dropout_from(*seed):
            batch = with_unknown_words(batch, self.config.word_dropout, seed).to(self.device)
            with products_in(self.config.precision, self.device):
                states = self.states_of(batch)
                W, b = self.model.output.weight, self.model.output.bias
                loss = projected_loss(states, W, batch.tgt_out, self.config.eps_ls, b)
            gradients = torch.autograd.grad(loss.sum / tokens, self.parameters)
        return Sums(loss.sum.item(), loss.unsmoothed.item()), list(gradients)

    def states_of(self, batch: Batch) -> Float[Tensor, "B T d_model"]:
        """Run the model, compiled or not.

        Raises:
            TransduceError: if it cannot be compiled here.
        """
        if self.compiled is None:
            return self.model.states(batch.src, batch.tgt_in)
        try:
            return self.compiled(batch.src, batch.tgt_in)
        except torch._dynamo.exc.TorchDynamoException as error:
            reason = " ".join(str(error).split("\n\n")[0].split())
            raise TransduceError(
                f"training.compile: torch.compile fails here ({reason}); on CPUs it needs a C++ "
                "compiler. Set training.compile = false"
            ) from error


def added(total: list[Tensor] | None, gradients: list[Tensor] | None) -> list[Tensor] | None:
    """Add gradients to what there is of them, in its place; None stands for none at all."""
    if total is None or gradients is None:
        return total or gradients
    torch._foreach_add_(total, gradients)
    return total


def products_in(precision: str, device: torch.device) -> AbstractContextManager[object]:
    """Return the context in which matrix products are computed in a precision."""
    if precision == "bfloat16":
        return torch.autocast(device.type, torch.bfloat16)
    return nullcontext()


def divided(batch: Batch, parts: int) -> list[Batch]:
    """Divide a batch by sentences into parts of like shape; fewer, if it has fewer sentences."""
    return [
        Batch(
            *(without_padding(ids[part::parts]) for ids in (batch.src, batch.tgt_in, batch.tgt_out))
        )
        for part in range(min(parts, len(batch.src)))
    ]


def without_padding(ids: Int[Tensor, "B k"]) -> Int[Tensor, "B shorter"]:
    """Cut off the columns that hold nothing but padding (which stands at the end)."""
    return ids[:, : int((ids != PAD).any(dim=0).sum())]


def with_unknown_words(batch: Batch, rate: float, seed: tuple[int, ...]) -> Batch:
    """Replace input tokens by UNKNOWN with probability `rate`: what is to be said stays whole.

    BEGIN, END and padding are never replaced.
    """
    if rate == 0.0:
        return batch
    draw = np.random.default_rng([*seed, 1])

    def replaced(ids: Int[Tensor, "B k"]) -> Int[Tensor, "B k"]:
        chosen = torch.from_numpy(draw.random(ids.shape) < rate)
        return ids.masked_fill(chosen & (ids > EOS), UNK)

    return Batch(replaced(batch.src), replaced(batch.tgt_in), batch.tgt_out)


def is_out_of_memory(error: Exception) -> bool:
    """Say whether an error means that memory does not suffice."""
    known = isinstance(error, MemoryError | torch.OutOfMemoryError)
    return known or "can't allocate memory" in str(error)
