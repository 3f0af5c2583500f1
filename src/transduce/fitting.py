"""Batches that fit in memory, and what a run needs of it.

What a forward pass keeps for the backward pass is measured on a few small batches. It is a
polynomial in the numbers of sentences and positions, so that it is known for every batch then.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from transduce.choices import Choices
from transduce.config import EOS, Config, Settings, TrainingConfig, merge
from transduce.data.corpus import Corpus
from transduce.decoding.translator import pick_device
from transduce.errors import TransduceError
from transduce.model import Transformer
from transduce.model.transformer import dropout_from
from transduce.training.gradients import products_in
from transduce.training.loss import CHUNK, projected_loss
from transduce.training.machine import memory_of, pick_workers

SHARE = 0.6
"""Share of the device's memory that batches are cut for; the rest is for what comes and goes in
between, for translating in validation, and for other programs."""
BYTES = 16
"""Of each parameter: its weight, its gradient, and Adam's two moments, in float32."""
GIB = 2**30

Numbers = npt.NDArray[np.int64]


class Memory(NamedTuple):
    """Bytes that training needs."""

    model: int
    """The weights, their gradients, and Adam's two moments."""
    batch: int
    """What belongs to the largest batch that is computed at once."""
    machine: int
    """What the device has in all."""

    @property
    def total(self) -> int:
        """What is needed in all."""
        return self.model + self.batch


@dataclass(frozen=True)
class Needs:
    """What the memory of a run depends on, apart from how a batch is divided."""

    parameters: int
    vocabulary: int
    """Columns of the logits."""
    source: int
    """Positions of the longest source, END included."""
    target: int
    """Positions of the longest target, likewise."""
    kept: npt.NDArray[np.float64]
    """Bytes kept for the backward pass, for each of `terms`."""
    machine: int
    """Bytes of the device's memory."""

    def memory(self, tokens: int, accumulation: int, workers: int) -> Memory:
        """Return what an update takes of `tokens` tokens, in so many micro-batches and parts."""
        each = max(1, tokens // accumulation)
        # The rows and the source's positions that `data.batches.divide` allows at each width.
        width = np.arange(1, self.width + 1)
        rows = np.maximum(1, each // width)
        source, target = np.minimum(2 * width, self.source), np.minimum(width, self.target)
        fixed, *growing = (terms(rows, source, target) * self.kept).T
        logits = 8.0 * CHUNK * self.vocabulary  # as they are, and as probabilities
        gradients = workers - 1 + (accumulation > 1)  # beside the one set of every training
        batch = (
            sum(growing).max()
            + workers * (fixed.max() + logits)
            + 4.0 * gradients * self.parameters
        )
        return Memory(BYTES * self.parameters, int(batch), self.machine)

    @property
    def width(self) -> int:
        """The least size of a batch that has room for the longest pair."""
        return max(self.target, -(-self.source // 2))

    def most_useful(self, tokens: int) -> int:
        """Return the number of micro-batches from which each is as small as the longest pair."""
        return max(1, tokens // self.width)


def needs(config: Config, corpus: Corpus, device: torch.device) -> Needs:
    """Measure what the memory of a run depends on.

    Of a model that is too large for the machine as it is, nothing is measured.
    """
    count = model_bytes(config) // BYTES
    source, target = longest_pair(config, corpus)
    machine = memory_of(device)
    kept = np.zeros(terms(*np.array(SHAPES).T).shape[1])
    if BYTES * count <= machine:
        with torch.device("meta"):  # learned positions end somewhere, and keep nothing
            model = Transformer(config.model.model_copy(update={"positions": "sinusoidal"}))
        model.to_empty(device=device).tie()
        kept = polynomial(model.train(), config.training)
    return Needs(count, config.model.target_vocabulary, source, target, kept, machine)


def model_bytes(config: Config) -> int:
    """Return the bytes of a model's weights, their gradients, and Adam's two moments."""
    with torch.device("meta"):
        model = Transformer(config.model)
    return BYTES * sum(parameter.numel() for parameter in model.parameters())


def longest_pair(config: Config, corpus: Corpus) -> tuple[int, int]:
    """Return the positions of the longest source and target of training, END included."""
    if config.tokenizer.sampling:  # may cut any pair as long as is allowed
        return config.data.max_length + 1, config.data.max_length + 1
    tokens = corpus.report()["parts"]["train"]["tokens"]
    return tokens["source"]["lengths"]["max"] + 1, tokens["target"]["lengths"]["max"] + 1


SHAPES = [
    (1, 16, 16), (2, 16, 16), (1, 32, 16), (1, 16, 32), (2, 32, 32), (1, 48, 16), (1, 16, 48),
    (2, 32, 48), (3, 48, 48),
]  # fmt: skip
"""Sentences, source and target positions of the batches that are measured."""


def terms(rows: Numbers, src: Numbers, tgt: Numbers) -> npt.NDArray[np.float64]:
    """Return what the bytes kept are a weighted sum of, a row for each batch.

    Something for the weights, for each position, for each weight of the three kinds of attention
    (quadratic in length, unless the kernel is fused), and for the causal mask.
    """
    found = [
        np.ones_like(src),
        rows * src,
        rows * tgt,
        rows * src * src,
        rows * tgt * tgt,
        rows * src * tgt,
        tgt * tgt,
    ]
    return np.stack(found, axis=-1).astype(np.float64)


def polynomial(model: Transformer, training: TrainingConfig) -> npt.NDArray[np.float64]:
    """Return the bytes that a forward pass keeps, for each of `terms`."""
    shapes = np.array(SHAPES)
    measured = [kept_bytes(model, training, *shape) for shape in SHAPES]
    found, *_ = np.linalg.lstsq(terms(*shapes.T), np.array(measured, np.float64), rcond=None)
    return np.maximum(0.0, found)


def kept_bytes(
    model: Transformer, training: TrainingConfig, rows: int, source: int, target: int
) -> int:
    """Measure the bytes that a forward pass keeps for the backward pass, weights apart.

    Args:
        model: in training mode, on its device; the values of its weights do not matter.
        training: the [training] table.
        rows: number of sentences.
        source: positions of each source.
        target: positions of each target.
    """
    device = model.output.weight.device
    weights = {StorageWeakRef(parameter.untyped_storage()) for parameter in model.parameters()}
    src, tgt = (torch.full((rows, length), EOS, device=device) for length in (source, target))
    with dropout_from(0), Witness() as witness, products_in(training.precision, device):
        states = model.states(src, tgt)
        output = model.output
        loss = projected_loss(states, output.weight, tgt, training.eps_ls, output.bias)
        del states
    kept = sum(size for one, size in witness.sizes.items() if one not in weights and alive(one))
    del loss  # until here it held whatever the backward pass would need
    return kept


class Witness(TorchDispatchMode):
    """Sees every piece of memory that operations fill, without holding it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.sizes: dict[StorageWeakRef, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                storage = tensor.untyped_storage()
                self.sizes[StorageWeakRef(storage)] = storage.nbytes()
        return result


def alive(storage: StorageWeakRef) -> bool:
    """Say whether something still holds a piece of memory."""
    return not storage.expired()


def divided(config: Config, corpus: Corpus, user: Settings, runs: int = 1) -> Choices:
    """Choose into how many micro-batches an update is divided, and each of these into parts.

    The fewest micro-batches of which each fits, with the model, in a fixed share of the device's
    memory, or of the part of it that each of several runs side by side has. What the user decided
    is left alone; only micro-batches deserve a word.
    """
    choices = Choices()
    given, device = user.get("training", {}), pick_device(config.device)
    tokens, accumulation = config.training.tokens, config.training.accumulation

    def parts(accumulation: int) -> int:
        asked: int | None = given.get("workers") if device.type == "cpu" else None
        if config.model.norm_kind == "batch":  # which is of whole batches
            return 1
        return pick_workers(device, tokens // accumulation) if asked is None else asked

    if "accumulation" not in given:
        found = needs(config, corpus, device)
        found = replace(found, machine=found.machine // runs)
        accumulation = fewest(found, tokens, parts)
        if accumulation > 1:
            whole = found.memory(tokens, 1, parts(1))
            choices.add(
                user,
                "training",
                f"at once, a batch of {tokens:,} tokens would need {gib(whole.batch)} GiB beside "
                f"the model's {gib(whole.model)}, of the {gib(whole.machine)} there are",
                accumulation=accumulation,
            )
    if "workers" not in given:
        workers = {"workers": parts(accumulation)}
        choices.settings = merge(choices.settings, {"training": workers})
    return choices


def fewest(found: Needs, tokens: int, parts: Callable[[int], int]) -> int:
    """Return the smallest number of micro-batches that fit, or the largest that is of use."""
    room, most = SHARE * found.machine, found.most_useful(tokens)
    if BYTES * found.parameters > found.machine:
        return 1  # it does not start anyway
    fitting = (n for n in range(1, most) if found.memory(tokens, n, parts(n)).total <= room)
    return next(fitting, most)


def gib(size: int) -> str:
    """Return a size in GiB, with two digits that count."""
    return f"{size / GIB:,.2f}" if size < 10 * GIB else f"{size / GIB:,.1f}"


def memory_needed(config: Config, corpus: Corpus) -> Memory:
    """Return what memory a run needs.

    Raises:
        TransduceError: if the machine has less, naming what to change.
    """
    device, training = pick_device(config.device), config.training
    found = needs(config, corpus, device)
    workers = training.workers if device.type == "cpu" else 1
    memory = found.memory(training.tokens, training.accumulation, workers)
    if memory.model > memory.machine:
        raise TransduceError(
            f"the model needs {gib(memory.model)} GiB of memory, this machine has "
            f"{gib(memory.machine)}: make [model] smaller, or take a smaller preset"
        )
    if memory.total > memory.machine:
        count = fewest(found, training.tokens, lambda _: workers)
        divided = found.memory(training.tokens, count, workers)
        remedy = (
            f"set training.accumulation = {count}, or leave it open"
            if divided.total <= memory.machine
            else "make [model] smaller, or leave long pairs out with a lower data.max_length"
        )
        raise TransduceError(
            f"the model needs {gib(memory.model)} GiB of memory and the largest batch "
            f"{gib(memory.batch)}, this machine has {gib(memory.machine)}: {remedy}"
        )
    return memory
