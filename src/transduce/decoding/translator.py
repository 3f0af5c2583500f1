"""Lines in, lines out: the one place that knows both text and ids."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Literal, TypeVar, cast

import torch

from transduce.config import EOS, Config, DecodingConfig, Settings, merge, parse
from transduce.data.text import is_blank
from transduce.data.tokenizer import Tokenizer
from transduce.decoding.choosing import choose, known_to_torch
from transduce.decoding.ctranslate2 import CTranslate2Engine, converted, obstacles
from transduce.decoding.engines import Detail, Engine, Ensemble, Task, TorchEngine, Wanted
from transduce.decoding.outputs import EMPTY, Output, Scored, Translation
from transduce.decoding.requests import Request, Rules
from transduce.decoding.search import Hypothesis
from transduce.errors import TransduceError, UsageError
from transduce.model import Transformer
from transduce.model_folder import find_model, load_config, load_model, load_settings

T = TypeVar("T")
CHUNK = 2_000  # lines of a stream that are read, sorted by length and translated together


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
        detail: Detail = "tokens",
    ) -> list[Translation]:
        """Translate lines; each answer is the same whatever lines it is in company with.

        Args:
            lines: one text each, or a text with what its output must look like; blank ones, and
                those without a piece, come out empty without the model being asked.
            n_best: number of alternatives.
            beam_size: instead of the configured one.
            first: the number of the first line, from 0: of draws (`decoding.method`), each line has
                its own.
            tell: told how many more lines are done, now and then.
            detail: what is wanted: `text`, also the `score`, or also that of each of the `tokens`.
                Some engines are faster with less; scores that nobody wants may be NaN.

        Raises:
            UsageError: if the beam is narrower than the number of alternatives, or an output cannot
                be as it is asked for.
        """
        beam = self.check(n_best, beam_size)
        requests = [line if isinstance(line, Request) else Request(line) for line in lines]
        rules = Rules(self.target, self.decoding)
        full = [i for i, request in enumerate(requests) if not is_blank(request.source)]
        encoded = self.source.encode_lines([requests[i].source for i in full])
        # Of a line of control characters nothing is left: it is as good as blank.
        pieces = {i: ids for i, ids in zip(full, encoded, strict=True) if ids}
        results = {
            i: Translation(request.source, (EMPTY,), ("empty",))
            for i, request in enumerate(requests)
            if i not in pieces
        }
        tell(len(results))
        cut = {i for i, ids in pieces.items() if len(ids) > self.max_source}
        tasks = {
            i: self._task(ids[: self.max_source], requests[i], rules, first + i)
            for i, ids in pieces.items()
        }
        wanted = Wanted(self.decoding, beam, n_best, self._text, detail)

        def search(batch: list[int]) -> list[list[Hypothesis]]:
            return self.engine.search([tasks[i] for i in batch], wanted)

        for batch, outputs in self._batches({i: task.source for i, task in tasks.items()}, search):
            for i, found in zip(batch, outputs, strict=True):
                best = tuple(self._output(hypothesis) for hypothesis in found)
                problems = {
                    "cut": i in cut,
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
        detail: Detail = "tokens",
    ) -> Iterator[Translation]:
        """`translate` for any number of lines, so many at a time, in bounded memory."""
        lines = iter(lines)
        while some := list(islice(lines, chunk)):
            yield from self.translate(some, n_best, beam_size, first, tell, detail)
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

        def score(batch: list[int]) -> list[list[float]]:
            return self.engine.score([ids[i] for i in batch])

        for batch, scores in self._batches(lengths, score):
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

    def limit(self, pieces: int) -> int:
        """Return how many tokens the output of so many pieces may have, END included (P14)."""
        limit = pieces + 1 + self.decoding.max_extra
        return limit if self.max_positions is None else min(limit, self.max_positions)

    def _task(self, source: list[int], request: Request, rules: Rules, number: int) -> Task:
        limit = self.limit(len(source))
        return Task(source, limit, rules.of(request, limit, f"line {number + 1}"), number)

    def _batches(
        self, ids: dict[int, list[int]], do: Callable[[list[int]], T]
    ) -> Iterator[tuple[list[int], T]]:
        """Divide the keys of `ids` into batches; yield each with what becomes of it, in order."""
        tokens = self.decoding.batch_tokens or self.engine.batch_tokens
        batches = list(by_length(ids, tokens))
        yield from zip(batches, side_by_side(do, batches, self.engine.side_by_side), strict=True)

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


def side_by_side(
    do: Callable[[list[int]], T], batches: Sequence[list[int]], most: int
) -> Iterator[T]:
    """Yield what becomes of each batch, in their order; at most so many are done at a time."""
    workers = min(most, len(batches))
    if workers < 2:
        yield from map(do, batches)
        return
    each = max(1, torch.get_num_threads() // workers)
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


def load(
    *folders: str | Path,
    device: str = "auto",
    engine: Literal["auto", "torch", "ctranslate2"] = "torch",
) -> Translator:
    """Load a model folder, or the model of a run; several make an ensemble.

    Args:
        folders: the model, or several with one vocabulary.
        device: auto, cpu, cuda or mps.
        engine: torch knows everything; with auto, ctranslate2 translates where it can, faster.

    Raises:
        TransduceError: if one is no model folder or a file in it is broken.
        UsageError: if the vocabularies of an ensemble differ, or an engine cannot do it.
    """
    paths = [Path(folder) for folder in folders]
    settings: Settings = {"device": device, "decoding": {"engine": engine}}
    if engine != "torch" and paths:
        settings = merge(settings, choose(paths, settings).settings)
    _, translator = opened(paths, settings)
    return translator


def opened(folders: Sequence[Path], settings: Settings) -> tuple[Config, Translator]:
    """Load one model, or an ensemble, with settings laid over those of the (first) model.

    Where engine and precision are left open, it is torch in float32 (P16); `choosing.choose` says
    what is faster.

    Returns:
        The configuration, with nothing left open, and the translator.

    Raises:
        TransduceError: if one is no model folder or a file in it is broken.
        UsageError: if the settings are wrong, or the vocabularies of an ensemble differ.
    """
    if not folders:
        raise UsageError("no model was given")
    paths = [find_model(folder) for folder in folders]
    config = parse(merge(load_config(paths[0]).model_dump(), settings), "the settings")
    if config.decoding.engine == "ctranslate2":
        if len(paths) > 1:
            raise UsageError("decoding.engine = 'ctranslate2': only torch knows ensembles")
        if reasons := obstacles(config):
            raise UsageError(f"decoding.engine = 'ctranslate2': {reasons[0]}")
        config = _closed(config, "ctranslate2")
        _, tokenizers = load_settings(paths[0])
        place, positions = converted(paths[0], config, tokenizers)
        decoding = config.decoding
        fast = CTranslate2Engine(
            place,
            tokenizers,
            decoding.precision,
            positions,
            decoding.beam_size,
            decoding.shortlist,
        )
        return config, Translator(fast, tokenizers, decoding, config.model.position_limit)
    config = _closed(config, "torch")
    device = pick_device(config.device)
    loaded = [load_model(path) for path in paths]
    members = [translator_of(model.to(device), own, config.decoding) for _, model, own in loaded]
    first = members[0]
    for folder, member in zip(folders[1:], members[1:], strict=True):
        pairs = ((member.source, first.source), (member.target, first.target))
        if not all(own.spells_like(its) for own, its in pairs):
            raise UsageError(
                f"{folder} has another vocabulary than {folders[0]}: models of an ensemble must "
                "share theirs"
            )
    if len(members) == 1:
        return config, first
    limits = [member.max_positions for member in members if member.max_positions is not None]
    engine = Ensemble(cast(list[TorchEngine], [member.engine for member in members]))
    tokenizers = (first.source, first.target)
    return config, Translator(engine, tokenizers, config.decoding, min(limits, default=None))


def _closed(config: Config, engine: Literal["torch", "ctranslate2"]) -> Config:
    """Return a configuration that leaves neither engine nor precision open.

    Only ctranslate2 has a shortlist.
    """
    precision = config.decoding.precision
    if engine == "torch":
        precision = known_to_torch(precision)
    closed = {
        "engine": engine,
        "precision": "float32" if precision == "auto" else precision,
        "shortlist": config.decoding.shortlist and engine == "ctranslate2",
    }
    return parse(merge(config.model_dump(), {"decoding": closed}), "the settings")


def translator_of(
    model: Transformer, tokenizers: tuple[Tokenizer, Tokenizer], decoding: DecodingConfig
) -> Translator:
    """Return the translator of a model in memory; the torch engine computes."""
    engine = TorchEngine(model, known_to_torch(decoding.precision))
    return Translator(engine, tokenizers, decoding, model.config.position_limit)
