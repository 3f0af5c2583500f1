"""The fast engine: CTranslate2 over a converted model, with our rules around its own search.

What differs there is put right here. Its length penalty is a power of the length: all outputs of
a beam are taken and put in order by P9. Its limit holds for a whole batch: a sentence that went
beyond its own is searched again. PAD, UNKNOWN and BEGIN may come out of it: outputs that hold one
are dropped, and a sentence that has no others is searched again with those tokens forbidden. Its
search is ours but for one thing: it ends as soon as a beam's worth of outputs are finished, ours
when no better one can follow (docs/results.md has how often that matters).
"""

import hashlib
import json
import math
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from transduce import __version__
from transduce.config import EOS, Config, DecodingConfig
from transduce.data.files import fingerprint
from transduce.data.tokenizer import RESERVED, Tokenizer
from transduce.decoding.constraints import FREE
from transduce.decoding.engines import Pairs, Task, Wanted
from transduce.decoding.search import NEVER, Hypothesis, Penalty
from transduce.errors import TransduceError, UsageError
from transduce.exporting.ctranslate2 import (
    SHORTLIST,
    convert,
    library,
    positions_needed,
    refused,
)
from transduce.exporting.shortlist import FILE, load_shortlist
from transduce.model_folder import load_model, weights_digest, write_file
from transduce.training.machine import processor

FOLDER, MADE_FROM, MEASURED = "ctranslate2", "made-from.json", "measured.json"
"""The converted model beside the weights, and what is noted in it."""
Never = list[list[str]] | None
RESERVED_IDS = frozenset(NEVER)
TINY = 1e-9
"""A length penalty that is none. With 0, CTranslate2 would end with the first output."""


@dataclass(frozen=True)
class Setting:
    """How the machine's processors are put to work."""

    workers: int
    """Batches that are translated at the same time."""
    threads: int
    """Threads of each of them."""
    batch_tokens: int = 1024
    """Source tokens translated together, at most."""
    threads_alone: int = 1
    """Threads for a sentence that comes alone."""

    def __str__(self) -> str:
        threads = "1 thread" if self.threads == 1 else f"{self.threads} threads"
        return f"{self.workers} × {threads}, batches of {self.batch_tokens:,} tokens"


class CTranslate2Engine:
    """A converted model.

    Args:
        folder: with the converted model; how it works fastest is remembered there.
        tokenizers: the source's and the target's.
        precision: type of the matrix products.
        positions: rows of its tables of positions.
        beam_size: of most searches: how they are fastest is remembered for each.
        shortlist: whether outputs are of the pieces that the folder's shortlist allows.

    Raises:
        UsageError: if this machine has no such precision.
        TransduceError: if the model cannot be loaded.
    """

    def __init__(
        self,
        folder: Path,
        tokenizers: tuple[Tokenizer, Tokenizer],
        precision: str = "float32",
        positions: int = 2**31,
        beam_size: int = 1,
        shortlist: bool = False,
    ) -> None:
        offered = sorted(library().get_supported_compute_types("cpu"))
        if precision not in offered:
            raise UsageError(
                f"decoding.precision = {precision!r}: ctranslate2 has {', '.join(offered)} here"
            )
        self.folder, self.precision, self.positions = folder, precision, positions
        self.beam_size, self.shortlist = beam_size, shortlist
        self.source, self.target = (
            tokenizer.pieces(range(len(tokenizer))) for tokenizer in tokenizers
        )
        self.ids = {piece: id_ for id_, piece in enumerate(self.target)}
        self.setting = self._remembered()
        self._lock = threading.Lock()
        self._running: dict[tuple[int, int], Any] = {}

    @property
    def batch_tokens(self) -> int:
        """See `Engine.batch_tokens`."""
        return self.setting.batch_tokens

    @property
    def side_by_side(self) -> int:
        """See `Engine.side_by_side`."""
        return self.setting.workers

    def search(self, tasks: Sequence[Task], wanted: Wanted) -> list[list[Hypothesis]]:
        """See `Engine.search`.

        Raises:
            UsageError: if a line asks for something that only the torch engine knows.
        """
        for task in tasks:
            if task.rules != FREE:
                raise UsageError(
                    f"line {task.number + 1}: only the torch engine knows prefixes, required and "
                    "forbidden text (decoding.engine)"
                )
        everything, running = range(len(tasks)), self._translator_for(len(tasks))
        beam, longest = wanted.beam_size, max(len(task.source) for task in tasks) + 1
        power = 0.0 if beam == 1 else nearest_power(wanted.penalty, longest)
        most = max(task.limit for task in tasks)
        found = self._outputs(running, tasks, most, wanted, power)

        def again(which: list[int], power: float, never: Never = None) -> None:
            """Search some sentences once more, each within its own limit."""
            for limit in {tasks[i].limit for i in which}:
                some = [i for i in which if tasks[i].limit == limit]
                texts = [tasks[i] for i in some]
                outputs = self._outputs(running, texts, limit, wanted, power, never)
                for i, instead in zip(some, outputs, strict=True):
                    found[i] = instead or found[i]

        beyond = [i for i in everything if any(len(o.tokens) > tasks[i].limit for o in found[i])]
        if beam == 1 and wanted.detail != "score":  # with a limit, it is greedy search cut there
            for i in beyond:
                found[i] = [cut(found[i][0], tasks[i].limit)]
        else:
            again(beyond, power)
        if beam > 1:
            # At the limit as many unfinished outputs come as the beam is wide, and may have driven
            # out a finished one. By their sums alone the short ones come first.
            again([i for i in everything if not any(o.finished for o in found[i])], TINY)
        again([i for i in everything if not found[i]], power, [[RESERVED[id_]] for id_ in NEVER])
        found = [_best(outputs, wanted) for outputs in found]
        # What a shortlist gives shares to are few pieces: they say the order alone.
        if wanted.detail == "tokens" or (self.shortlist and wanted.detail == "score"):
            found = self._with_each_token(tasks, found, wanted)
        return found

    def score(self, pairs: Pairs) -> list[list[float]]:
        """See `Engine.score`.

        Raises:
            TransduceError: if a pair has more positions than the converted model.
        """
        longest = max(max(len(src), len(tgt)) + 1 for src, tgt in pairs)
        if longest > self.positions:
            raise TransduceError(
                f"a pair has {longest:,} positions, the converted model {self.positions:,}: raise "
                "decoding.max_source or decoding.max_extra, or take the torch engine"
            )
        sources = [[self.source[id_] for id_ in src] for src, _ in pairs]
        targets = [[self.target[id_] for id_ in tgt] for _, tgt in pairs]
        said = self._translator_for(len(pairs)).score_batch(sources, targets, max_input_length=0)
        return [list(one.log_probs) for one in said]

    def measure(self, say: Callable[[str], None], seconds: float = 0.3) -> None:
        """Find out which setting translates fastest here, and remember it.

        The work is made up: random pieces, outputs as long as their sources; so it is the same for
        every text. What was measured before on this kind of machine is left alone.
        """
        if self._key() in self._notes():
            return
        say("measuring once how this machine translates fastest")
        cores = torch.get_num_threads()
        draw = np.random.default_rng(0)
        lengths = draw.integers(8, 33, size=4096)
        made_up = [
            [self.source[id_] for id_ in draw.integers(EOS + 1, len(self.source), length)]
            for length in lengths
        ]

        def rate(workers: int, threads: int, size: int) -> float:
            """Return the sentences per second in batches of so many."""
            self._running = {
                key: it for key, it in self._running.items() if key == (workers, threads)
            }
            running, done, begin = self._translator(workers, threads), 0, time.monotonic()
            while (spent := time.monotonic() - begin) < seconds or done == 0:
                running.translate_batch(
                    made_up[: 2 * size * workers] if size > 1 else made_up[done % 64 :][:1],
                    max_batch_size=size, beam_size=self.beam_size, max_input_length=0,
                    min_decoding_length=20, max_decoding_length=20,
                    use_vmap=self.shortlist,
                )  # fmt: skip
                done += 2 * size * workers if size > 1 else 1
            return done / spent

        divided = [(n, cores // n) for n in range(1, cores + 1) if cores % n == 0]
        rates = {way: rate(*way, size=32) for way in divided}
        workers, threads = max(rates, key=lambda way: rates[way])
        sizes = {size: rate(workers, threads, size) for size in (16, 32, 64, 128)}
        size = max(sizes, key=lambda size: sizes[size])
        alone = {n: rate(1, n, 1) for n in {1, cores}}
        # Two of them in memory must pay.
        best = cores if alone[cores] > 1.1 * alone[1] else 1
        self.setting = Setting(workers, threads, 32 * size, best)
        self._running = {}
        notes = self._notes() | {self._key(): asdict(self.setting)}
        write_file(self.folder / MEASURED, json.dumps(notes, indent=1).encode())

    def _outputs(
        self,
        running: Any,
        tasks: Sequence[Task],
        limit: int,
        wanted: Wanted,
        power: float,
        never: Never = None,
    ) -> list[list[Hypothesis]]:
        """Return the outputs of a batch that hold none of the reserved tokens.

        Args:
            running: CTranslate2's translator.
            tasks: sentences.
            limit: the most tokens of all outputs.
            wanted: of them.
            power: by n^power CTranslate2 divides sums of log-probabilities.
            never: tokens that it must not generate.
        """
        sources = [[self.source[id_] for id_ in task.source] for task in tasks]
        beam = wanted.beam_size
        said = running.translate_batch(
            sources,
            beam_size=beam,
            num_hypotheses=beam,
            length_penalty=power,
            max_input_length=0,
            max_decoding_length=limit,
            min_decoding_length=0,
            return_end_token=True,
            return_scores=beam > 1 or wanted.detail != "text",  # else it need not normalise
            suppress_sequences=never,
            use_vmap=self.shortlist,
        )
        penalty, found = wanted.penalty, []
        for one in said:
            outputs = []
            for pieces, score in zip(one.hypotheses, one.scores or [math.nan], strict=True):
                tokens = tuple([self.ids[piece] for piece in pieces])
                if RESERVED_IDS.isdisjoint(tokens):
                    total = score * len(tokens) ** power
                    finished, score = tokens[-1:] == (EOS,), penalty.score(total, len(tokens))
                    outputs.append(Hypothesis(tokens, (), total, score, finished))
            found.append(outputs)
        return found

    def _with_each_token(
        self, tasks: Sequence[Task], found: list[list[Hypothesis]], wanted: Wanted
    ) -> list[list[Hypothesis]]:
        """Return the same outputs with the log-probability of each token."""
        pairs = [
            (task.source, [id_ for id_ in one.tokens if id_ != EOS][: self.positions - 1])
            for task, outputs in zip(tasks, found, strict=True)
            for one in outputs
        ]
        scores = iter(self.score(pairs))

        def scored(one: Hypothesis) -> Hypothesis:
            log_probs = next(scores)[: len(one.tokens)]
            if len(one.tokens) == self.positions and not one.finished:  # no position left for END
                log_probs[-1] = one.log_probability - math.fsum(log_probs[:-1])
            total = float(np.sum(log_probs, dtype=np.float64))
            score = wanted.penalty.score(total, len(one.tokens))
            return Hypothesis(one.tokens, tuple(log_probs), total, score, one.finished)

        return [[scored(one) for one in outputs] for outputs in found]

    def _translator_for(self, sentences: int) -> Any:
        """Return CTranslate2's translator for a batch, or for a sentence that comes alone."""
        workers, threads = self.setting.workers, self.setting.threads
        if sentences == 1 and self.setting.threads_alone != threads:
            workers, threads = 1, self.setting.threads_alone
        return self._translator(workers, threads)

    def _translator(self, workers: int, threads: int) -> Any:
        """Return CTranslate2's translator with so many workers and threads; loaded once."""
        with self._lock:
            if (workers, threads) not in self._running:
                # OpenMP's threads go with the thread that asked for them: those that load would
                # be too many beside those that translate (`load_apart`).
                with ThreadPoolExecutor(1) as loading:
                    asked = loading.submit(
                        library().Translator,
                        str(self.folder),
                        compute_type=self.precision,
                        inter_threads=workers,
                        intra_threads=threads,
                    )
                try:
                    self._running[workers, threads] = asked.result()
                except (RuntimeError, ValueError) as error:
                    raise TransduceError(f"cannot load {self.folder}: {error}") from None
            return self._running[workers, threads]

    def _key(self) -> str:
        return (
            f"{processor()}, {torch.get_num_threads()} threads, {self.precision}, "
            f"beam {self.beam_size}" + (", shortlist" if self.shortlist else "")
        )

    def _notes(self) -> dict[str, Any]:
        path = self.folder / MEASURED
        notes: dict[str, Any] = json.loads(path.read_bytes()) if path.exists() else {}
        return notes

    def _remembered(self) -> Setting:
        """Return what was measured, or what is mostly best: as many workers as processors."""
        known = self._notes().get(self._key())
        return Setting(**known) if known else Setting(torch.get_num_threads(), 1)


def cut(output: Hypothesis, limit: int) -> Hypothesis:
    """Return the beginning of an output, unfinished; what it scores is not known."""
    return Hypothesis(output.tokens[:limit], (), math.nan, math.nan, False)


def nearest_power(penalty: Penalty, n: int) -> float:
    """Return the p for which n^p grows as the penalty does, for outputs of about n tokens.

    With it CTranslate2 chooses among the outputs of a beam if there are more than the beam is wide.
    """
    match penalty.kind:
        case "none":
            return TINY
        case "average":
            return 1.0
        case "gnmt":
            return max(TINY, penalty.alpha * n / (n + 5))


def _best(outputs: Sequence[Hypothesis], wanted: Wanted) -> list[Hypothesis]:
    """Return the best outputs, distinct, best first; an unfinished one if there is no other."""
    if len(outputs) == 1:
        return list(outputs)
    order = sorted(outputs, key=lambda one: -one.score)
    finished = [one for one in order if one.finished]
    if wanted.n_best == 1:
        return (finished or order)[:1]
    distinct: dict[Any, Hypothesis] = {}
    for one in finished or order[:1]:
        distinct.setdefault(wanted.same(one.tokens), one)
    return list(distinct.values())[: wanted.n_best]


def obstacles(config: Config) -> list[str]:
    """Return what only the torch engine can do, of what a configuration asks for."""
    decoding, plain = config.decoding, DecodingConfig()
    found = [f"ctranslate2 has no {name}" for name in refused(config.model)]
    for key in ("method", "beta", "min_length", "no_repeat", "placeholders"):
        value = getattr(decoding, key)
        if value != getattr(plain, key):
            found.append(f"only torch knows decoding.{key} = {value}")
    return found


def converted(
    folder: Path, config: Config, tokenizers: tuple[Tokenizer, Tokenizer]
) -> tuple[Path, int]:
    """Return the converted model of a model folder and its number of positions.

    It is kept beside the weights, or where that cannot be written, among the user's cached files;
    and made anew when the model or its shortlist is another one, or when the search may come to
    further positions.

    Raises:
        UsageError: if a shortlist is asked for and there is none.
        TransduceError: if the model cannot be converted.
    """
    listed = (folder / FILE).exists()
    if config.decoding.shortlist and not listed:
        raise UsageError(
            f"decoding.shortlist: {folder} has none; learn one with "
            f"`transduce shortlist {folder} --pairs PAIRS`"
        )
    source, target = pieces = [it.pieces(range(len(it))) for it in tokenizers]
    made_from = {
        "weights": weights_digest(folder),
        "model": config.model.model_dump(),
        "pieces": hashlib.sha256(repr(pieces).encode()).hexdigest(),
        "ctranslate2": library().__version__,
        "shortlist": fingerprint(str(folder / FILE)) if listed else None,
        "transduce": __version__,
    }
    positions = positions_needed(config)
    home = folder if os.access(folder, os.W_OK) else _cache() / str(made_from["weights"])[:32]
    place = home / FOLDER
    noted = place / MADE_FROM
    if noted.exists():
        said = json.loads(noted.read_bytes())
        if said.pop("positions", 0) >= positions and said == made_from:
            return place, json.loads(noted.read_bytes())["positions"]
    _, model, _ = load_model(folder)
    home.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(prefix=f".{FOLDER}.", dir=home))
    try:
        convert(model, tokenizers, positions, beside)
        if listed:
            shortlist = load_shortlist(folder, source, target)
            write_file(beside / SHORTLIST, shortlist.mapping(source, target).encode())
        write_file(beside / MADE_FROM, json.dumps(made_from | {"positions": positions}).encode())
        shutil.rmtree(place, ignore_errors=True)
        try:
            beside.rename(place)
        except OSError:  # another process was quicker, with the same model
            if not noted.exists():
                raise
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return place, positions


def _cache() -> Path:
    """Return the folder of the user's cached files."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "transduce"
