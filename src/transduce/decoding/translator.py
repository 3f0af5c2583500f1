"""Lines in, lines out: the one place that knows both text and ids."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import NamedTuple, TypeVar

import torch

from transduce.config import EOS, Config, DecodingConfig, Settings, merge, parse
from transduce.data.text import is_blank
from transduce.data.tokenizer import Tokenizer
from transduce.decoding.constraints import Constraints
from transduce.decoding.engines import Engine, Ensemble, TorchEngine
from transduce.decoding.outputs import EMPTY, Output, Scored, Translation
from transduce.decoding.requests import Request, Rules
from transduce.decoding.search import (
    NEVER,
    Hypothesis,
    Penalty,
    Sampling,
    beam_search,
    sample,
)
from transduce.errors import TransduceError, UsageError
from transduce.model import Transformer
from transduce.model_folder import load_model

T = TypeVar("T")
MOST_SIDE_BY_SIDE = 4
"""Threads of Python that search at a time: they take turns between the operations."""
CHUNK = 2_000  # lines of a stream that are read, sorted by length and translated together


class _Task(NamedTuple):
    """A line on its way through the search."""

    number: int
    """From 0, in the whole file."""
    source: list[int]
    cut: bool
    limit: int
    """How many tokens the output may have, END included (P14)."""
    rules: Constraints


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
        engine: Engine,
        tokenizers: tuple[Tokenizer, Tokenizer],
        decoding: DecodingConfig,
        max_positions: int | None = None,
    ) -> None:
        self.engine = engine
        self.source, self.target = tokenizers
        self.decoding = decoding
        self.max_positions = max_positions

    def translate(
        self,
        lines: Sequence[str | Request],
        n_best: int = 1,
        beam_size: int | None = None,
        first: int = 0,
        tell: Callable[[int], None] = lambda lines: None,
    ) -> list[Translation]:
        """Translate lines; each answer is the same whatever lines it is in company with.

        Args:
            lines: one text each, or a text with what its output must look like; blank ones come out
                empty without the model being asked.
            n_best: number of alternatives.
            beam_size: instead of the configured one.
            first: the number of the first line, from 0: of draws (`decoding.method`), each line has
                its own.
            tell: told how many more lines are done, now and then.

        Raises:
            UsageError: if the beam is narrower than the number of alternatives, or an output cannot
                be as it is asked for.
        """
        beam = self.check(n_best, beam_size)
        requests = [line if isinstance(line, Request) else Request(line) for line in lines]
        rules = Rules(self.target, self.decoding)
        results: dict[int, Translation] = {}
        for i, request in enumerate(requests):
            if is_blank(request.source):
                results[i] = Translation(request.source, (EMPTY,), ("empty",))
        tell(len(results))
        full = [i for i in range(len(requests)) if i not in results]
        encoded = self.source.encode_lines([requests[i].source for i in full])
        tasks = {
            i: self._task(ids, requests[i], rules, first + i)
            for i, ids in zip(full, encoded, strict=True)
        }
        sources = {i: task.source for i, task in tasks.items()}
        batches = list(by_length(sources, self.decoding.batch_tokens))

        def search(batch: list[int]) -> list[list[Hypothesis]]:
            return self._search([tasks[i] for i in batch], beam, n_best)

        for batch, outputs in zip(batches, side_by_side(search, batches), strict=True):
            for i, found in zip(batch, outputs, strict=True):
                best = tuple(self._output(hypothesis) for hypothesis in found)
                problems = {
                    "cut": tasks[i].cut,
                    "unfinished": not best[0].finished,
                    "fewer": len(best) < n_best,
                    "unmet": not rules.met(requests[i], best[0].text),
                }
                flags = tuple(name for name, there in problems.items() if there)
                results[i] = Translation(requests[i].source, best, flags)
            tell(len(batch))
        return [results[i] for i in range(len(requests))]

    def translate_stream(
        self,
        lines: Iterable[str | Request],
        n_best: int = 1,
        beam_size: int | None = None,
        first: int = 0,
        chunk: int = CHUNK,
        tell: Callable[[int], None] = lambda lines: None,
    ) -> Iterator[Translation]:
        """`translate` for any number of lines, so many at a time, in bounded memory."""
        lines = iter(lines)
        while some := list(islice(lines, chunk)):
            yield from self.translate(some, n_best, beam_size, first, tell)
            first += len(some)

    def score(self, pairs: Sequence[tuple[str, str]]) -> list[Scored]:
        """Return the log-probability of each target given its source, token by token."""
        ids = []
        sources = self.source.encode_lines([src for src, _ in pairs])
        targets = self.target.encode_lines([tgt for _, tgt in pairs])
        for i, (src, tgt) in enumerate(zip(sources, targets, strict=True), start=1):
            ids.append((src[: self.max_source], tgt))
            if self.max_positions is not None and len(ids[-1][1]) >= self.max_positions:
                raise TransduceError(
                    f"pair {i}: the target has {len(ids[-1][1])} pieces, but the model has learned "
                    f"{self.max_positions} positions (model.max_positions)"
                )
        lengths = {i: src if len(src) > len(tgt) else tgt for i, (src, tgt) in enumerate(ids)}
        results: dict[int, Scored] = {}
        batches = list(by_length(lengths, self.decoding.batch_tokens))

        def score(batch: list[int]) -> list[list[float]]:
            return self.engine.score([ids[i] for i in batch])

        for batch, scores in zip(batches, side_by_side(score, batches), strict=True):
            for i, log_probabilities in zip(batch, scores, strict=True):
                tokens = tuple(self.target.pieces([*ids[i][1], EOS]))
                results[i] = Scored(*pairs[i], tokens, tuple(log_probabilities))
        return [results[i] for i in range(len(pairs))]

    @property
    def max_source(self) -> int:
        """The number of source pieces beyond which a line is cut (END comes on top)."""
        limit = self.decoding.max_source
        return limit if self.max_positions is None else min(limit, self.max_positions - 1)

    def check(self, n_best: int, beam_size: int | None = None) -> int:
        """Return the width of the beam.

        Raises:
            UsageError: if it is below one, or narrower than the number of alternatives.
        """
        beam = self.decoding.beam_size if beam_size is None else beam_size
        if beam < 1 or n_best < 1:
            raise UsageError(f"beam-size {beam} and n-best {n_best}: both must be at least 1")
        if self.decoding.method == "beam" and n_best > beam:
            raise UsageError(
                f"n-best {n_best}: {n_best} alternatives need a beam of at least {n_best}, it is "
                f"{beam} (beam-size)"
            )
        return beam

    def _task(self, ids: list[int], request: Request, rules: Rules, number: int) -> "_Task":
        source = ids[: self.max_source]
        limit = len(source) + 1 + self.decoding.max_extra
        if self.max_positions is not None:
            limit = min(limit, self.max_positions)
        constraints = rules.of(request, limit, f"line {number + 1}")
        return _Task(number, source, len(ids) > len(source), limit, constraints)

    def _search(
        self, tasks: Sequence["_Task"], beam_size: int, n_best: int
    ) -> list[list[Hypothesis]]:
        asked = self.decoding
        penalty = Penalty(asked.penalty, asked.alpha, asked.beta)
        step = self.engine.start([task.source for task in tasks], coverage=asked.beta > 0)
        limits, constraints = [task.limit for task in tasks], [task.rules for task in tasks]
        if asked.method == "sample":
            sampling = Sampling(asked.temperature, asked.top_k, asked.top_p, asked.seed)
            numbers = [task.number for task in tasks]
            return sample(
                step, limits, numbers, n_best, sampling, penalty, self._text, NEVER, constraints
            )
        return beam_search(step, limits, beam_size, n_best, penalty, self._text, NEVER, constraints)

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


def side_by_side(do: Callable[[list[int]], T], batches: Sequence[list[int]]) -> Iterator[T]:
    """Yield what becomes of each batch, in their order; as many at a time as there are threads.

    On CPUs a batch of sentences gains little from a second thread, since threads that share an
    operation wait for each other after it; two batches side by side gain nearly twice.
    """
    threads = torch.get_num_threads()
    workers = min(threads, len(batches), MOST_SIDE_BY_SIDE)
    if workers < 2:
        yield from map(do, batches)
        return
    each = max(1, threads // workers)
    with ThreadPoolExecutor(
        workers, "batch", initializer=torch.set_num_threads, initargs=(each,)
    ) as pool:
        yield from pool.map(do, batches)


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


def load(*folders: str | Path, device: str = "auto") -> Translator:
    """Load a model folder, or the model of a run; several make an ensemble.

    Raises:
        TransduceError: if one is no model folder or a file in it is broken.
        UsageError: if the vocabularies of an ensemble differ.
    """
    _, translator = opened([Path(folder) for folder in folders], {"device": device})
    return translator


def opened(folders: Sequence[Path], settings: Settings) -> tuple[Config, Translator]:
    """Load one model, or an ensemble, with settings laid over those of the (first) model.

    Raises:
        TransduceError: if one is no model folder or a file in it is broken.
        UsageError: if the settings are wrong, or the vocabularies of an ensemble differ.
    """
    if not folders:
        raise UsageError("no model was given")
    loaded = [load_model(folder) for folder in folders]
    config, _, tokenizers = loaded[0]
    config = parse(merge(config.model_dump(), settings), "the settings")
    device = pick_device(config.device)
    members = [translator_of(model.to(device), own, config.decoding) for _, model, own in loaded]
    for folder, (_, _, own) in zip(folders[1:], loaded[1:], strict=True):
        if not all(a.spells_like(b) for a, b in zip(own, tokenizers, strict=True)):
            raise UsageError(
                f"{folder} has another vocabulary than {folders[0]}: models of an ensemble must "
                "share theirs"
            )
    if len(members) == 1:
        return config, members[0]
    limits = [member.max_positions for member in members if member.max_positions is not None]
    engine = Ensemble([member.engine for member in members])
    return config, Translator(engine, tokenizers, config.decoding, min(limits, default=None))


def translator_of(
    model: Transformer, tokenizers: tuple[Tokenizer, Tokenizer], decoding: DecodingConfig
) -> Translator:
    """Return the translator of a model in memory."""
    learned = model.config.positions == "learned"
    limit = model.config.max_positions if learned else None
    return Translator(TorchEngine(model, decoding.precision), tokenizers, decoding, limit)
