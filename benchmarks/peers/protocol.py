"""How a worker talks with the benchmark, and the plain loop that peers are trained in.

The benchmark starts `python -m peers.NAME` and writes one line at a time; to each the worker
answers with one line of JSON on standard output:

    {"variant": ..., ...}  the job           -> {"parameters": ..., ...} or {"skipped": why}
    block 3                train on block 3  -> {"seconds": [...], "loss": ..., "peak_mib": ...}
    held-out               evaluate          -> {"loss": ...}

Between lines a worker waits for input and computes nothing. Nothing but torch and numpy is needed.
"""

import ctypes
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

PAD, UNK, BOS, EOS = range(4)
Answer = dict[str, Any]


@dataclass(frozen=True)
class Job:
    """What all systems are to train, and on what."""

    variant: str
    vocabulary: int
    N: int
    d_model: int
    d_ff: int
    h: int
    dropout: float
    eps_ls: float
    peak_rate: float
    warmup_steps: int
    batches: str
    """The .npz file of all batches: `K/I/src`, `K/I/tgt_in`, `K/I/tgt_out` of batch I, block K."""
    corpus: str
    config: str
    """Corpus folder and configuration file of our own system."""
    reference: str
    """Checkout of the reference port."""

    def rate(self, step: int) -> float:
        """Up to the peak in `warmup_steps` updates, then constant; `step` from 1."""
        return self.peak_rate * min(1.0, step / self.warmup_steps)

    def block(self, name: str) -> Iterator["Batch"]:
        """Read the batches of one block."""
        with np.load(self.batches) as file:
            for number in range(sum(key.startswith(f"{name}/") for key in file.files) // 3):
                yield Batch(
                    *(torch.from_numpy(file[f"{name}/{number}/{part}"]) for part in Batch._fields)
                )


class Batch(NamedTuple):
    """Padded ids: source + END; BEGIN + target; target + END."""

    src: Tensor
    tgt_in: Tensor
    tgt_out: Tensor

    @property
    def tokens(self) -> int:
        """Number of real target tokens, END included."""
        return int((self.tgt_out != PAD).sum())

    @property
    def src_lengths(self) -> Tensor:
        """Number of real source tokens of each sentence, END included."""
        return (self.src != PAD).sum(1)

    @property
    def tgt(self) -> Tensor:
        """BEGIN + target + END, from which some peers cut their input and output themselves."""
        return torch.cat([self.tgt_in[:, :1], self.tgt_out], dim=1)


class System:
    """A model under training.

    Args:
        model: with its initial weights.
        logits: the model's logits [B, T, vocabulary] of a batch.
        loss: the sum of the smoothed loss over a batch's real tokens; torch's unless given.
    """

    def __init__(
        self,
        job: Job,
        model: nn.Module,
        logits: Callable[[Batch], Tensor],
        loss: Callable[[Batch], Tensor] | None = None,
    ) -> None:
        self.job = job
        self.model = model
        self.logits = logits
        self.loss = loss or self.cross_entropy
        self.step = 0
        self.optimizer = torch.optim.Adam(model.parameters(), betas=(0.9, 0.98), eps=1e-9)

    def cross_entropy(self, batch: Batch) -> Tensor:
        return functional.cross_entropy(
            self.logits(batch).flatten(0, 1).float(),
            batch.tgt_out.flatten(),
            ignore_index=PAD,
            reduction="sum",
            label_smoothing=self.job.eps_ls,
        )

    def update(self, batch: Batch) -> float:
        """One update: forward, loss per token, backward, Adam. Returns the loss's sum."""
        self.step += 1
        for parameters in self.optimizer.param_groups:
            parameters["lr"] = self.job.rate(self.step)
        loss = self.loss(batch)
        (loss / batch.tokens).backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.item()

    @torch.no_grad()
    def held_out(self) -> float:
        """Plain cross-entropy per token of the held-out block, without dropout or smoothing."""
        self.model.eval()
        total = tokens = 0.0
        for batch in self.job.block("held-out"):
            logits = self.logits(batch).flatten(0, 1).float()
            loss = functional.cross_entropy(
                logits, batch.tgt_out.flatten(), ignore_index=PAD, reduction="sum"
            )
            total += loss.item()
            tokens += batch.tokens
        self.model.train()
        return total / tokens


def serve(build: Callable[[Job], System], package: str) -> None:
    """Build a system, then train it as the benchmark asks.

    Args:
        build: makes the system of a job; any exception means that the system is skipped.
        package: the distribution whose version is reported.
    """

    def prepare(job: Job) -> tuple[Answer, Callable[[str], Answer]]:
        torch.manual_seed(1)
        system = build(job)
        system.model.train()

        def answer(line: str) -> Answer:
            if line == "held-out":
                return {"loss": system.held_out()}
            batches = list(job.block(line.removeprefix("block ")))
            seconds, loss = [], 0.0
            for batch in batches:
                before = time.perf_counter()
                loss += system.update(batch)
                seconds.append(time.perf_counter() - before)
            tokens = sum(batch.tokens for batch in batches)
            found = {"seconds": seconds, "loss": loss / tokens, "peak_mib": peak_mib()}
            give_memory_back()
            return found

        return {
            "parameters": sum(p.numel() for p in system.model.parameters() if p.requires_grad),
            "versions": {"torch": torch.__version__, package: version(package)},
            "threads": torch.get_num_threads(),
        }, answer

    converse(prepare)


def converse(prepare: Callable[[Job], tuple[Answer, Callable[[str], Answer]]]) -> None:
    """Read the job and then questions from standard input; answer each on standard output."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what packages print must not mix with answers
    job = Job(**json.loads(sys.stdin.readline()))
    try:
        first, answer = prepare(job)
    except Exception as error:
        traceback.print_exc()
        first, answer = {"skipped": f"{type(error).__name__}: {error}".splitlines()[0]}, None
    print(json.dumps(first), file=answers)
    while answer and (line := sys.stdin.readline()):
        print(json.dumps(answer(line.strip())), file=answers)


def version(package: str) -> str:
    """Return the version of an installed distribution."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "a checkout"


def peak_mib() -> float:
    """Return the most memory this process has held so far (of itself alone, not its parent)."""
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1]) / 1024 for line in file if line.startswith("VmHWM:"))


def give_memory_back() -> None:
    """Return freed pages to the system: all systems wait their turn on one machine."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)


def sinusoids(length: int, d_model: int) -> Tensor:
    """Return the position table of the paper, for peers that bring none."""
    pos = torch.arange(length)[:, None]
    angle = pos / 10000 ** (torch.arange(0, d_model, 2) / d_model)
    return torch.stack([angle.sin(), angle.cos()], dim=2).flatten(1)
