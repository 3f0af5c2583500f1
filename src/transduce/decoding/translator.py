"""Lines in, lines out: the one place that knows both text and ids."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch

from transduce.config import EOS, DecodingConfig
from transduce.data.text import is_blank
from transduce.data.tokenizer import Tokenizer
from transduce.decoding.engines import TorchEngine
from transduce.decoding.search import Hypothesis, Penalty, beam_search
from transduce.errors import TransduceError, UsageError
from transduce.model import Transformer
from transduce.model_folder import load_model

CHUNK = 2_000  # lines of a stream that are read, sorted by length and translated together


@dataclass(frozen=True)
class Output:
    """One hypothesis as text."""

    text: str
    tokens: tuple[str, ...]
    """Pieces as the vocabulary spells them, END included."""
    log_probabilities: tuple[float, ...]
    log_probability: float
    """The sum over the tokens."""
    score: float
    """That sum over the length penalty."""
    finished: bool


@dataclass(frozen=True)
class Translation:
    """What became of one line.

    Flags: `empty` (a blank line, passed through), `cut` (the source was longer than max_source),
    `unfinished` (the length limit came first), `fewer` (fewer alternatives exist than asked for).
    """

    source: str
    hypotheses: tuple[Output, ...]
    flags: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The best output."""
        return self.hypotheses[0].text


@dataclass(frozen=True)
class Scored:
    """A given pair and how probable the model finds its target."""

    source: str
    target: str
    tokens: tuple[str, ...]
    log_probabilities: tuple[float, ...]

    @property
    def log_probability(self) -> float:
        """The sum over the tokens, END included."""
        return math.fsum(self.log_probabilities)


class Translator:
    """A trained model, ready for text.

    Args:
        engine: runs the model.
        tokenizers: the source's and the target's.
        decoding: the settings of training's validation; `settings` changes them.
        max_positions: the longest source that the model has positions for, END included.
    """

    def __init__(
        self,
        engine: TorchEngine,
        tokenizers: tuple[Tokenizer, Tokenizer],
        decoding: DecodingConfig,
        max_positions: int | None = None,
    ) -> None:
        self.engine = engine
        self.source, self.target = tokenizers
        self.decoding = decoding
        self.max_positions = max_positions

    def translate(
        self, lines: Sequence[str], n_best: int = 1, beam_size: int | None = None
    ) -> list[Translation]:
        """Translate lines; each answer is the same whatever lines it is in company with.

        Args:
            lines: one text each; blank ones come out empty without the model being asked.
            n_best: number of alternatives.
            beam_size: instead of the configured one.

        Raises:
            UsageError: if the beam is narrower than the number of alternatives.
        """
        beam = self.decoding.beam_size if beam_size is None else beam_size
        if beam < 1 or n_best < 1:
            raise UsageError(f"beam size ({beam}) and n-best ({n_best}) must be at least 1")
        if n_best > beam:
            raise UsageError(
                f"{n_best} alternatives need a beam of at least {n_best}, it is {beam}"
            )
        results: list[Translation | None] = [None] * len(lines)
        sources: dict[int, list[int]] = {}
        for i, line in enumerate(lines):
            if is_blank(line):
                results[i] = Translation(line, (EMPTY,), ("empty",))
            else:
                sources[i] = self.source.encode(line)
        for batch in by_length(sources, self.decoding.batch_tokens):
            cut = [sources[i][: self.max_source] for i in batch]
            for i, found in zip(batch, self._search(cut, beam, n_best), strict=True):
                flags = []
                if len(sources[i]) > self.max_source:
                    flags.append("cut")
                if not found[0].finished:
                    flags.append("unfinished")
                if len(found) < n_best:
                    flags.append("fewer")
                outputs = tuple(self._output(hypothesis) for hypothesis in found)
                results[i] = Translation(lines[i], outputs, tuple(flags))
        return [result for result in results if result is not None]

    def translate_stream(
        self, lines: Iterable[str], n_best: int = 1, beam_size: int | None = None
    ) -> Iterator[Translation]:
        """`translate` for any number of lines, in bounded memory."""
        lines = iter(lines)
        while chunk := list(islice(lines, CHUNK)):
            yield from self.translate(chunk, n_best, beam_size)

    def score(self, pairs: Sequence[tuple[str, str]]) -> list[Scored]:
        """Return the log-probability of each target given its source, token by token."""
        ids = []
        for i, (src, tgt) in enumerate(pairs, start=1):
            ids.append((self.source.encode(src)[: self.max_source], self.target.encode(tgt)))
            if self.max_positions is not None and len(ids[-1][1]) >= self.max_positions:
                raise TransduceError(
                    f"pair {i}: the target has {len(ids[-1][1])} pieces, but the model has learned "
                    f"{self.max_positions} positions (model.max_positions)"
                )
        lengths = {i: src if len(src) > len(tgt) else tgt for i, (src, tgt) in enumerate(ids)}
        results: dict[int, Scored] = {}
        for batch in by_length(lengths, self.decoding.batch_tokens):
            scores = self.engine.score([ids[i] for i in batch])
            for i, log_probabilities in zip(batch, scores, strict=True):
                tokens = tuple(self.target.pieces([*ids[i][1], EOS]))
                results[i] = Scored(*pairs[i], tokens, tuple(log_probabilities))
        return [results[i] for i in range(len(pairs))]

    @property
    def max_source(self) -> int:
        """The number of source pieces beyond which a line is cut (END comes on top)."""
        limit = self.decoding.max_source
        return limit if self.max_positions is None else min(limit, self.max_positions - 1)

    def _search(
        self, sources: Sequence[Sequence[int]], beam_size: int, n_best: int
    ) -> list[list[Hypothesis]]:
        limits = [len(src) + 1 + self.decoding.max_extra for src in sources]
        if self.max_positions is not None:
            limits = [min(limit, self.max_positions) for limit in limits]
        return beam_search(
            self.engine.start(sources),
            limits,
            beam_size,
            n_best,
            Penalty(self.decoding.penalty, self.decoding.alpha),
            same=self._text,
        )

    def _text(self, tokens: Sequence[int]) -> str:
        return self.target.decode(tokens).replace("\r", " ").replace("\n", " ")

    def _output(self, hypothesis: Hypothesis) -> Output:
        return Output(
            text=self._text(hypothesis.tokens),
            tokens=tuple(self.target.pieces(hypothesis.tokens)),
            log_probabilities=hypothesis.log_probabilities,
            log_probability=hypothesis.log_probability,
            score=hypothesis.score,
            finished=hypothesis.finished,
        )


EMPTY = Output("", (), (), 0.0, 0.0, finished=True)


def by_length(ids: dict[int, list[int]], tokens: int) -> Iterator[list[int]]:
    """Divide the keys of `ids` into batches of like length, of at most `tokens` padded tokens."""
    batch: list[int] = []
    for key in sorted(ids, key=lambda key: (-len(ids[key]), key)):
        if batch and (len(batch) + 1) * (len(ids[batch[0]]) + 1) > tokens:
            yield batch
            batch = []
        batch.append(key)
    if batch:
        yield batch


def pick_device(name: str) -> torch.device:
    """Return the device that `auto`, `cpu`, `cuda` or `mps` means on this machine.

    Raises:
        UsageError: if there is no such device.
    """
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if name == "auto":
        return torch.device(next((kind for kind, there in available.items() if there), "cpu"))
    if not available.get(name, True):
        raise UsageError(f"device = {name!r}: there is none on this machine")
    return torch.device(name)


def load(folder: str | Path, device: str = "auto") -> Translator:
    """Load a model folder, or the model of a run.

    Raises:
        TransduceError: if it is no model folder or a file in it is broken.
    """
    config, model, tokenizers = load_model(Path(folder))
    return translator_of(model.to(pick_device(device)), tokenizers, config.decoding)


def translator_of(
    model: Transformer, tokenizers: tuple[Tokenizer, Tokenizer], decoding: DecodingConfig
) -> Translator:
    """Return the translator of a model in memory."""
    learned = model.config.positions == "learned"
    limit = model.config.max_positions if learned else None
    return Translator(TorchEngine(model), tokenizers, decoding, limit)
