"""What a run will take, known before it starts: memory, time and disk.

And batches that fit in memory by themselves: what a forward pass keeps for the backward pass is
measured on a few small batches. It is a polynomial in the numbers of sentences and positions, so
that it is known for every batch then.
"""

import copy
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
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
from transduce.data.tokenizer import Tokenizer
from transduce.decoding.translator import Translator, pick_device, translator_of
from transduce.errors import TransduceError
from transduce.model import Transformer
from transduce.model.transformer import dropout_from
from transduce.training.checkpoint import Progress
from transduce.training.gradients import Gradients, products_in
from transduce.training.loss import CHUNK, projected_loss
from transduce.training.machine import keep_pages, memory_of, pick_workers
from transduce.training.optimizer import adam
from transduce.training.trainer import Trainer

SHARE = 0.6
"""Share of the device's memory that batches are cut for; the rest is for what comes and goes in
between, for translating in validation, and for other programs."""
BYTES = 16
"""Of each parameter: its weight, its gradient, and Adam's two moments, in float32."""
SECONDS = 5.0
"""How long the speed of updates is measured."""
MIB, GIB = 2**20, 2**30

Numbers = npt.NDArray[np.int64]

# Memory -----------------------------------------------------------------------------------------


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
        loss = projected_loss(states, model.output.weight, tgt, training.eps_ls)
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


def divided(config: Config, corpus: Corpus, user: Settings) -> Choices:
    """Choose into how many micro-batches an update is divided, and each of these into parts.

    The fewest micro-batches of which each fits, with the model, in a fixed share of the device's
    memory. What the user decided is left alone; only micro-batches deserve a word.
    """
    choices = Choices()
    given, device = user.get("training", {}), pick_device(config.device)
    tokens, accumulation = config.training.tokens, config.training.accumulation

    def parts(accumulation: int) -> int:
        asked: int | None = given.get("workers") if device.type == "cpu" else None
        return pick_workers(device, tokens // accumulation) if asked is None else asked

    if "accumulation" not in given:
        found = needs(config, corpus, device)
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


# Time -------------------------------------------------------------------------------------------


class Speed(NamedTuple):
    """How fast updates are here."""

    seconds: float
    """Of one update."""
    tokens: float
    """Real target tokens of one update."""


def speed_of(trainer: Trainer, least: int = 10) -> Speed:
    """Measure updates on a copy of the model, for some seconds and at least so many updates."""
    keep_pages()  # as training does
    scratch = copy.copy(trainer)
    scratch.model = copy.deepcopy(trainer.model).train()
    scratch.gradients = Gradients(scratch.model, trainer.config)
    scratch.optimizer = adam(scratch.model, trainer.config)
    scratch.progress = Progress(trainer.progress.step)  # at the beginning of an epoch, to have one
    times: list[float] = []
    tokens: list[int] = []
    started = time.monotonic()
    while time.monotonic() - started < SECONDS or len(times) < least:
        for group, _ in scratch.updates_of_epoch():
            before = time.monotonic()
            tokens.append(scratch.update(group).tokens)
            times.append(time.monotonic() - before)
            if time.monotonic() - started >= SECONDS and len(times) >= least:
                break
    settled = times[len(times) // 5 :]  # the first ones touch new memory
    return Speed(sum(settled) / len(settled), sum(tokens) / len(tokens))


def seconds_of_translation(
    translator: Translator, sources: Sequence[str], enough: float = 1.0
) -> float:
    """Measure how long it takes to translate sources: on some of them, spread evenly."""
    for most in (16, 128):
        count = min(len(sources), most)
        some = [sources[i * len(sources) // count] for i in range(count)]
        before = time.monotonic()
        translator.translate(some)
        seconds = time.monotonic() - before
        if seconds > enough or count == len(sources):
            break
    return seconds * len(sources) / count


def seconds_of_validation(
    model: Transformer,
    tokenizers: tuple[Tokenizer, Tokenizer],
    config: Config,
    corpus: Corpus,
    sources: Sequence[str],
    speed: Speed,
) -> float:
    """Estimate the duration of one validation: its loss, and its translations.

    An untrained model hardly ever ends a translation, a trained one ends where the target does. So
    outputs are limited to their source's length here, and brought to the targets' by the lengths.
    """
    counts = corpus.manifest["valid"]
    decoding = config.decoding.model_copy(update={"max_extra": 0})
    translator = translator_of(model.eval(), tokenizers, decoding)
    ratio = counts["target_tokens"] / counts["source_tokens"]
    forward = counts["target_tokens"] / speed.tokens * speed.seconds / 3  # a third of an update
    return forward + ratio * seconds_of_translation(translator, sources)


def duration(seconds: float) -> str:
    """Return a duration as people say it."""
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60:,} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min"


# The price --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Price:
    """What is left of a run will take so much (to its end: it may stop earlier)."""

    parameters: dict[str, int]
    """By part of the model; tied matrices once."""
    memory: Memory
    speed: Speed
    updates: int
    passes: float
    """How often the training pairs are gone through."""
    validations: int
    seconds_of_validation: float
    checkpoints: int
    """How many stay on disk, at most."""

    @property
    def seconds(self) -> float:
        """Of updates and validations."""
        return self.updates * self.speed.seconds + self.validations * self.seconds_of_validation

    @property
    def disk(self) -> int:
        """Bytes of the checkpoints (weights and two moments each) and of the model."""
        return 4 * sum(self.parameters.values()) * (3 * self.checkpoints + 1)

    def sentences(self) -> Iterator[str]:
        """Yield what a person wants to know."""
        parts = ", ".join(f"{part} {count:,}" for part, count in self.parameters.items())
        yield f"parameters: {sum(self.parameters.values()):,} ({parts})"
        yield (
            f"memory: {gib(self.memory.model)} GiB for weights, gradients and Adam's moments, "
            f"{gib(self.memory.batch)} for the largest batch that may come; this machine has "
            f"{gib(self.memory.machine)}"
        )
        training = self.updates * self.speed.seconds
        yield (
            f"time: {self.updates:,} updates of {duration(self.speed.seconds)} (measured: "
            f"{self.speed.tokens / self.speed.seconds:,.0f} target tokens/s) are {self.passes:.1f} "
            f"passes over the pairs and take {duration(training)}; {self.validations} validations "
            f"of some {duration(self.seconds_of_validation)} each make it "
            f"about {duration(self.seconds)}"
        )
        yield (
            f"disk: {self.disk / MIB:,.0f} MiB for at most {self.checkpoints} checkpoints, and the "
            "model"
        )

    def lines(self) -> Iterator[str]:
        """Yield the same as data: a key and a value."""
        yield f"parameters {sum(self.parameters.values())}"
        for part, count in self.parameters.items():
            yield f"parameters_{part} {count}"
        yield f"memory_MiB {self.memory.total / MIB:.0f}"
        yield f"memory_model_MiB {self.memory.model / MIB:.0f}"
        yield f"memory_batch_MiB {self.memory.batch / MIB:.0f}"
        yield f"memory_machine_MiB {self.memory.machine / MIB:.0f}"
        yield f"updates {self.updates}"
        yield f"passes {self.passes:.1f}"
        yield f"tokens_per_second {self.speed.tokens / self.speed.seconds:.0f}"
        yield f"validations {self.validations}"
        yield f"hours {self.seconds / 3600:.2f}"
        yield f"disk_MiB {self.disk / MIB:.0f}"


def parts_of(model: Transformer) -> dict[str, int]:
    """Return the number of parameters of each part of a model; tied matrices count once."""
    counts = {"embeddings": 0, "encoder": 0, "decoder": 0, "output": 0}
    for name, parameter in model.named_parameters():
        part = name.partition(".")[0]
        counts[part if part in counts else "embeddings"] += parameter.numel()
    return {part: count for part, count in counts.items() if count}


def price(
    config: Config,
    corpus: Corpus,
    memory: Memory,
    trainer: Trainer,
    tokenizers: tuple[Tokenizer, Tokenizer],
    sources: Sequence[str],
) -> Price:
    """Measure what the rest of a run will take, from where its trainer stands.

    Args:
        config: of the run.
        corpus: of the run.
        memory: what it needs (`memory_needed`).
        trainer: as far as the run has come; none of its weights change.
        tokenizers: of the corpus.
        sources: what each validation translates.
    """
    training, done = config.training, trainer.progress.step
    speed = speed_of(trainer, least=3)
    updates = max(0, training.steps - done)
    every = training.validate_every
    ends_without = training.steps % every != 0  # then one more, after the last update
    validations = training.steps // every - done // every + ends_without if updates else 0
    saved = -(-training.steps // min(every, training.checkpoint_every))
    kept = training.keep + training.keep_best if training.keep > 0 else saved
    return Price(
        parts_of(trainer.model),
        memory,
        speed,
        updates,
        updates * speed.tokens / corpus.manifest["train"]["target_tokens"],
        validations,
        seconds_of_validation(trainer.model, tokenizers, config, corpus, sources, speed),
        min(kept, saved),
    )
