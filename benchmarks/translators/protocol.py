"""How a worker talks with the benchmark.

The benchmark starts `python -m translators.NAME VARIANT JOB` and writes one line at a time, to each
of which the worker answers with one line of JSON on standard output:

    batches 64 4    sentences by length, 64 together, beam 4   -> {"seconds": ..., "outputs": [...]}
    alone 100 1     the first 100, one by one, greedy          -> {"milliseconds": [...]}

The first answer says what was built, or {"skipped": why}. Between lines a worker waits for input
and computes nothing. Nothing but torch and numpy is needed.
"""

import json
import os
import resource
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any

import numpy as np
import torch
from peers import protocol as training
from peers.protocol import BOS, EOS, PAD
from torch import Tensor

__all__ = [
    "BEAMS", "BOS", "EOS", "PAD", "Ids", "InBatches", "Job", "Output", "Translate", "cut", "padded",
    "serve",
]  # fmt: skip

Ids = list[int]
Output = Ids | str
"""Pieces, or text from those systems that make it themselves."""
BEAMS = (1, 4)


@dataclass(frozen=True)
class Job:
    """The model, as the paper names its parts, and what to translate."""

    model: str
    """Our model folder."""
    weights: str
    """The .npz file of its weights."""
    sources: list[Ids]
    """Pieces of each sentence, without END."""
    lines: list[str]
    """The same as text."""
    lengths: list[int]
    """Pieces of our greedy outputs, END included: for systems that cannot take the weights."""
    vocabulary: int
    N: int
    d_model: int
    d_ff: int
    h: int
    alpha: float
    max_extra: int
    reference: str
    """Checkout of the reference port."""
    arrays: dict[str, Any] = field(default_factory=dict, repr=False)

    def tensor(self, name: str) -> Tensor:
        """Return a weight by our name."""
        return torch.from_numpy(self.arrays[name])

    def of_training(self) -> training.Job:
        """Return the job of the training benchmark's peers with a model of the same sizes."""
        return training.Job(
            variant="", vocabulary=self.vocabulary, N=self.N, d_model=self.d_model, d_ff=self.d_ff,
            h=self.h, dropout=0.0, eps_ls=0.1, peak_rate=1e-3, warmup_steps=400, batches="",
            corpus="", config="", reference=self.reference,
        )  # fmt: skip


def padded(sources: Sequence[Ids]) -> Tensor:
    """Return sources with END, padded at the end."""
    width = max(map(len, sources)) + 1
    return torch.tensor([[*ids, EOS] + [PAD] * (width - 1 - len(ids)) for ids in sources])


def cut(ids: Sequence[int]) -> Ids:
    """Return the pieces of an output up to END, without reserved ones."""
    found = list(ids)
    if EOS in found:
        found = found[: found.index(EOS)]
    return [id_ for id_ in found if id_ > EOS]


Translate = Callable[[list[int], int], Sequence[Output]]
"""Translates the sentences of some numbers, with a beam."""


@dataclass(frozen=True)
class InBatches:
    """A system that divides sentences into batches itself, and may work on several at a time."""

    translate: Callable[[list[int], int, int], Sequence[Output]]
    """Translates the sentences of some numbers, with a beam, so many together."""

    def __call__(self, numbers: list[int], beam: int) -> Sequence[Output]:
        """Translate one batch."""
        return self.translate(numbers, beam, len(numbers))


def serve(build: Callable[[str, Job], Translate | InBatches], package: str) -> None:
    """Answer the benchmark until it goes."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # some peers print on standard output

    def answer(what: dict[str, Any]) -> None:
        print(json.dumps(what), file=out, flush=True)

    _, variant, path = sys.argv
    with open(path, encoding="utf-8") as file:
        job = Job(**json.load(file))
    with np.load(job.weights) as weights:
        job.arrays.update({name: weights[name] for name in weights.files})
    try:
        translate = build(variant, job)
        version = metadata.version(package) if package else ""
        answer({"versions": {package: version, "torch": torch.__version__}})
    except Exception as error:  # a peer that is not there, whatever the reason
        traceback.print_exc()
        answer({"skipped": f"{type(error).__name__}: {error}"})
        return
    for line in sys.stdin:
        answer(respond(translate, job, *line.split()))


def respond(
    translate: Translate | InBatches, job: Job, command: str, size: str, beam: str, count: str = ""
) -> dict[str, Any]:
    """Do what a line says."""
    if command == "alone":
        milliseconds = []
        for i in range(int(size)):
            before = time.perf_counter()
            translate([i], int(beam))
            milliseconds.append(1000 * (time.perf_counter() - before))
        return {"milliseconds": milliseconds}
    numbers = list(range(int(count or len(job.sources))))
    before = time.perf_counter()
    outputs: dict[int, Output] = {}
    if isinstance(translate, InBatches):
        outputs.update(
            zip(numbers, translate.translate(numbers, int(beam), int(size)), strict=True)
        )
    for batch in [] if outputs else by_length(job, numbers, int(size)):
        outputs.update(zip(batch, translate(batch, int(beam)), strict=True))
    seconds = time.perf_counter() - before
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"seconds": seconds, "outputs": [outputs[i] for i in numbers], "peak_mib": peak}


def by_length(job: Job, numbers: list[int], size: int) -> Iterator[list[int]]:
    """Divide sentences into batches of like length."""
    ordered = sorted(numbers, key=lambda i: -len(job.sources[i]))
    for start in range(0, len(ordered), size):
        yield ordered[start : start + size]
