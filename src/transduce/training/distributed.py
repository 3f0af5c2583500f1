"""Several processes, one run: what they compute is added up over all of them.

Started by torchrun, each process gets its share of the batches of every update (`data.batches`)
and computes their gradients, divided by the tokens of the *whole* update (P6). Added up, they are
the gradients of one process that has all the batches, and all processes take the same step from
the same weights. The first one alone validates, writes and speaks.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
from torch import Tensor, distributed, nn

BUCKET = 25_000_000
"""Numbers that travel together."""


@dataclass(frozen=True)
class Ranks:
    """This process among `count`; alone, nothing travels.

    Args:
        rank: number of this process, from 0.
        count: how many there are.
    """

    rank: int = 0
    count: int = 1

    @property
    def first(self) -> bool:
        """Whether this is the process that validates, writes and speaks."""
        return self.rank == 0

    def total(self, *numbers: int | float) -> list[int | float]:
        """Return each number added up over all processes."""
        if self.count == 1:
            return list(numbers)
        sums = torch.tensor(numbers, dtype=torch.float64)
        distributed.all_reduce(sums)
        return sums.tolist()

    def of_first(self, *numbers: int | float) -> list[int | float]:
        """Return the numbers that the first process has, in all of them."""
        return self.total(*(number if self.first else 0.0 for number in numbers))

    def add_up(self, parameters: Sequence[nn.Parameter]) -> None:
        """Add up the gradients over all processes; one without batches has gradients of zero."""
        if self.count == 1:
            return
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        bucket: list[Tensor] = []
        for number, parameter in enumerate(parameters):
            assert parameter.grad is not None
            bucket.append(parameter.grad)
            if sum(map(Tensor.numel, bucket)) >= BUCKET or number == len(parameters) - 1:
                flat = torch.cat([gradient.flatten() for gradient in bucket])
                distributed.all_reduce(flat)
                for gradient, sums in zip(
                    bucket, flat.split([gradient.numel() for gradient in bucket]), strict=True
                ):
                    gradient.copy_(sums.view_as(gradient))
                bucket = []

    def wait(self) -> None:
        """Wait until all processes are here."""
        if self.count > 1:
            distributed.barrier()


ALONE = Ranks()


@contextmanager
def together() -> Iterator[Ranks]:
    """Join the other processes that torchrun started, for a while; alone, if it did not.

    Each process takes the GPU of its local rank, if there are GPUs.
    """
    count = int(os.environ.get("WORLD_SIZE", "1"))
    if count == 1:
        yield ALONE
        return
    backends = "cpu:gloo"
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        backends += ",cuda:nccl"
    # Long enough for the first process to prepare a corpus while the others wait.
    distributed.init_process_group(backends, timeout=timedelta(days=1))
    try:
        yield Ranks(distributed.get_rank(), count)
    finally:
        distributed.destroy_process_group()
