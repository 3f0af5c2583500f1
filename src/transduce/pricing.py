"""What a run will take, known before it starts: memory, time and disk."""

import copy
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from transduce.config import Config
from transduce.data.corpus import Corpus
from transduce.data.tokenizer import Tokenizer
from transduce.decoding.translator import Translator, translator_of
from transduce.fitting import Memory, gib
from transduce.model import Transformer
from transduce.training.checkpoint import Progress
from transduce.training.gradients import Gradients
from transduce.training.machine import keep_pages
from transduce.training.optimizer import adam
from transduce.training.trainer import Trainer

SECONDS = 5.0
"""How long the speed of updates is measured."""
MIB = 2**20

# Time -------------------------------------------------------------------------------------------


class Speed(NamedTuple):
    """How fast updates are here."""

    seconds: float
    """Of one update."""
    tokens: float
    """Real target tokens of one update."""
    first: float = 0.0
    """Seconds of the very first one, in which memory is touched and `training.compile` compiles."""


def speed_of(trainer: Trainer, least: int = 10, most: float | None = None) -> Speed:
    """Measure updates on a copy of the model, for some seconds and at least so many updates.

    The first one is measured for itself.
    """
    enough = SECONDS if most is None else min(most, SECONDS)
    keep_pages()  # as training does
    scratch = copy.copy(trainer)
    scratch.model = copy.deepcopy(trainer.model).train()
    scratch.gradients = Gradients(scratch.model, trainer.config)
    scratch.optimizer = adam(scratch.model, trainer.config)
    scratch.progress = Progress(trainer.progress.step)  # at the beginning of an epoch, to have one
    times: list[float] = []
    tokens: list[int] = []
    while sum(times[1:]) < enough or len(times) <= least:
        for group, _ in scratch.updates_of_epoch():
            before = time.monotonic()
            tokens.append(scratch.update(group).tokens)
            times.append(time.monotonic() - before)
            if sum(times[1:]) >= enough and len(times) > least:
                break
    settled = times[max(1, len(times) // 5) :]  # the early ones touch new memory
    return Speed(sum(settled) / len(settled), sum(tokens) / len(tokens), times[0])


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
        return self.training + self.validations * self.seconds_of_validation

    @property
    def training(self) -> float:
        """Seconds of all updates."""
        return self.updates * self.speed.seconds + (self.speed.first if self.updates else 0.0)

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
        first = self.speed.first
        compiled = f", {duration(first)} for the first" if first > 20 * self.speed.seconds else ""
        yield (
            f"time: {self.updates:,} updates of {duration(self.speed.seconds)}{compiled} "
            f"(measured: {self.speed.tokens / self.speed.seconds:,.0f} target tokens/s) "
            f"are {self.passes:.1f} passes over the pairs and take {duration(self.training)}; "
            f"{self.validations} validations of some "
            f"{duration(self.seconds_of_validation)} each make it "
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
