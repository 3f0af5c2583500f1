"""Translate lines with an exported model: standard input to standard output.

    python translate.py < lines.txt > translations.txt

This file and those beside it stand alone. Needed: onnxruntime, numpy, and sentencepiece where the
model has .spm files. `Model`, `Tokenizer` and `search` can also be imported.
"""

import argparse
import json
import math
import re
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime

PAD, UNK, BOS, EOS = range(4)
LINES = 2000  # are read, sorted by length and translated together
Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]


# The model --------------------------------------------------------------------------------------


class Model:
    """The graphs of a folder.

    Args:
        folder: where encoder.onnx and decoder.onnx are.
        threads: how many threads an operation may use; 0: as many as there are cores.
    """

    def __init__(self, folder: Path, threads: int = 0) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        self._encoder, self._decoder = (
            onnxruntime.InferenceSession(
                str(folder / name), options, providers=["CPUExecutionProvider"]
            )
            for name in ("encoder.onnx", "decoder.onnx")
        )

    def start(self, sources: Sequence[Sequence[int]]) -> "State":
        """Encode sources (pieces without END)."""
        src = np.full((len(sources), max(map(len, sources), default=0) + 1), PAD, dtype=np.int64)
        for row, pieces in zip(src, sources, strict=True):
            row[: len(pieces) + 1] = [*pieces, EOS]
        values = self._encoder.run_with_ort_values(None, {"src": on_cpu(src)})
        names = [output.name for output in self._encoder.get_outputs()]
        return State(self._decoder, dict(zip(names, values, strict=True)), src != PAD)


@dataclass
class State:
    """What the decoder remembers of a batch between steps."""

    decoder: Any
    values: dict[str, Any]
    src_mask: npt.NDArray[np.bool_]
    """True where a source token stands, [B, S]."""
    beam: int = 1

    def step(
        self, tokens: Ints, origin: Ints, wanted: Sequence[str], k: int = 1
    ) -> list[npt.NDArray[Any]]:
        """Feed each hypothesis its next token.

        Args:
            tokens: [B, beam].
            origin: the row (sentence · beam + hypothesis) that each had in the step before. The
                hypotheses of a sentence come from one sentence; sentences may be left out.
            wanted: which outputs of the decoder to return: log_probs [B, beam, vocab];
                best_log_probs and best_tokens [B, beam, k]; attention [B, beam, S].
            k: how many best tokens.
        """
        sentences = origin[:, 0] // self.beam
        if not np.array_equal(sentences, np.arange(len(self.src_mask))):
            self.src_mask = self.src_mask[sentences]
            for name in self.values:
                if name == "src_mask" or name.startswith("memory"):
                    self.values[name] = on_cpu(self.values[name].numpy()[sentences])
        self.beam = tokens.shape[1]
        most = np.array([k], dtype=np.int64)
        given = {"tokens": on_cpu(tokens), "origin": on_cpu(origin), "k": on_cpu(most)}
        own = [name for name in self.values if name.startswith(("K.", "V."))]
        names = [*wanted, *(f"next_{name}" for name in own)]
        said = self.decoder.run_with_ort_values(names, given | self.values)
        self.values |= zip(own, said[len(wanted) :], strict=True)
        return [value.numpy() for value in said[: len(wanted)]]


def on_cpu(array: npt.NDArray[Any]) -> Any:
    """Return an array as the runtime takes it."""
    return onnxruntime.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array))


# Search -----------------------------------------------------------------------------------------


Penalty = Callable[[int], float]
"""What a sum of log-probabilities is divided by, given the number of tokens, END included."""


@dataclass(frozen=True)
class Hypothesis:
    """The beginning of an output."""

    tokens: tuple[int, ...] = ()
    total: float = 0.0
    """The sum of the log-probabilities; -inf: nothing, it only fills a place."""
    parent: int = 0
    """Which hypothesis of its sentence it continues."""


@dataclass
class Beam:
    """The hypotheses of a sentence: those that live, best first, and the best that has ended."""

    limit: int
    live: list[Hypothesis] = field(default_factory=lambda: [Hypothesis()])
    best: Hypothesis | None = None
    best_score: float = -math.inf
    done: bool = False

    def grow(
        self, continuations: Iterable[tuple[float, int, int]], size: int, penalty: Penalty
    ) -> None:
        """Go on with the best continuations (sum, parent, token), best first."""
        length, lives = len(self.live[0].tokens) + 1, []
        for rank, (total, parent, token) in enumerate(continuations):
            longer = Hypothesis((*self.live[parent].tokens, token), total, parent)
            if token != EOS:
                lives.append(longer)
            elif rank < size and total / penalty(length) > self.best_score:
                self.best, self.best_score = longer, total / penalty(length)
        self.live = lives[:size] or self.live[:1]
        # A log-probability is never positive: this is the best that a live hypothesis can reach.
        reachable = self.live[0].total / penalty(self.limit)
        self.done = not lives or length == self.limit or self.best_score >= reachable

    def fill(self, width: int) -> None:
        """Fill up with nothing."""
        nothing = replace(self.live[0], total=-math.inf)
        self.live += [nothing] * (width - len(self.live))


def search(
    model: Model,
    sources: Sequence[Sequence[int]],
    limits: Sequence[int],
    size: int,
    penalty: Penalty,
) -> list[tuple[int, ...]]:
    """Return the best output of each source; beam search, and greedy search for a beam of one.

    At every step the 2 · size best continuations are looked at (of a beam of one the best alone):
    those that end are finished, and the `size` best that do not end live on. A sentence is done at
    its limit, or when nothing that lives can beat its best finished output any more. If none
    ended, the best unfinished one is returned.

    Args:
        model: the graphs.
        sources: pieces without END.
        limits: the most tokens of each output, END included.
        size: how many hypotheses of a sentence live on.
        penalty: the length penalty.
    """
    most = 1 if size == 1 else 2 * size
    state, beams = model.start(sources), [Beam(limit) for limit in limits]
    live, tokens = beams, np.full((len(beams), 1), BOS, dtype=np.int64)
    origin = np.arange(len(beams), dtype=np.int64)[:, None]
    while live:
        log_probs, ids = state.step(tokens, origin, ["best_log_probs", "best_tokens"], most)
        found = continuations(live, log_probs, ids, most)
        for beam, some in zip(live, found, strict=True):
            beam.grow(some, size, penalty)
        rows = [(row * tokens.shape[1], beam) for row, beam in enumerate(live) if not beam.done]
        live = [beam for _, beam in rows]
        width = max((len(beam.live) for beam in live), default=0)
        for beam in live:
            beam.fill(width)
        last = [[one.tokens[-1] for one in beam.live] for beam in live]
        from_ = [[row + one.parent for one in beam.live] for row, beam in rows]
        tokens, origin = np.array(last, dtype=np.int64), np.array(from_, dtype=np.int64)
    return [(beam.best or beam.live[0]).tokens for beam in beams]


def continuations(
    beams: Sequence[Beam], log_probs: Floats, tokens: Ints, most: int
) -> Iterator[list[tuple[float, int, int]]]:
    """Yield the best continuations of each beam, best first: sum, hypothesis, token.

    Log-probabilities and tokens are [B, beam, k].
    """
    before = np.array([[one.total for one in beam.live] for beam in beams])
    totals = (before[:, :, None] + log_probs).reshape(len(beams), -1)
    order = np.argsort(-totals, axis=1, kind="stable")[:, :most]
    ids = np.take_along_axis(tokens.reshape(len(beams), -1), order, axis=1)
    totals = np.take_along_axis(totals, order, axis=1)
    parents = order // log_probs.shape[2]
    for columns in zip(totals.tolist(), parents.tolist(), ids.tolist(), strict=True):
        yield [one for one in zip(*columns, strict=True) if one[0] > -math.inf]


def length_penalty(kind: str, alpha: float) -> Penalty:
    """Return the penalty of that name."""
    match kind:
        case "none":
            return lambda n: 1.0
        case "average":
            return lambda n: float(n)
        case "gnmt":
            return lambda n: ((5 + n) / 6) ** alpha
    raise ValueError(f"unknown length penalty {kind!r}")


# Text -------------------------------------------------------------------------------------------


BREAKS = re.compile("[\t\n\x0b\x0c\r\x1c-\x1e\x85\u2028\u2029]+")
REPLACED = str.maketrans(
    {code: None for code in [*range(0x20), *range(0x7F, 0xA0)]}
    | {"\ufeff": None, "\u00a0": " ", "\u2581": "_"}
)


def normalize(text: str, form: str) -> str:
    """Bring text into the form that the tokenizer has learnt from."""
    text = BREAKS.sub(" ", text).translate(REPLACED)
    return text if form == "none" else unicodedata.normalize(form, text)  # type: ignore[arg-type]


class Tokenizer:
    """Text to ids and back.

    Args:
        folder: where the .spm file is, if there is one; otherwise pieces are bytes.
        settings: of one side, from config.json.
    """

    def __init__(self, folder: Path, settings: dict[str, Any]) -> None:
        self._form: str = settings["normalization"]
        self._symbols: dict[str, int] = settings["symbols"]
        longest_first = sorted(self._symbols, key=len, reverse=True)
        self._cut = re.compile(f"({'|'.join(map(re.escape, longest_first)) or '(?!)'})")
        self._bytes: dict[int, int]
        if settings["file"] is None:
            self._start = ""
            self._bytes = {EOS + 1 + byte: byte for byte in range(256)}
            self._pieces = {id_: symbol for symbol, id_ in self._symbols.items()}
            self._encode: Callable[[str], list[int]] = lambda text: [
                EOS + 1 + byte for byte in text.encode()
            ]
        else:
            import sentencepiece

            spm: Any = sentencepiece.SentencePieceProcessor(str(folder / settings["file"]))
            self._start = " "  # the first word looks like all others
            pieces = {id_: spm.id_to_piece(id_) for id_ in range(EOS + 1, len(spm))}
            self._bytes = {id_: int(p[3:5], 16) for id_, p in pieces.items() if spm.is_byte(id_)}
            self._pieces = {id_: piece.replace("▁", " ") for id_, piece in pieces.items()}
            self._encode = spm.encode

    def encode(self, text: str) -> list[int]:
        """Return the ids of the text's pieces."""
        text = normalize(text, self._form)
        ids: list[int] = []
        for i, part in enumerate(self._cut.split(self._start + text if text else "")):
            ids += [self._symbols[part]] if i % 2 else self._encode(part)
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of ids; reserved ids and broken byte sequences leave no trace."""
        text = b"".join(
            bytes([self._bytes[id_]]) if id_ in self._bytes else self._pieces[id_].encode()
            for id_ in ids
            if id_ > EOS
        )
        return text.decode("utf-8", errors="ignore").removeprefix(self._start)


class Translator:
    """Lines in, lines out.

    Args:
        folder: the exported model.
        threads: see `Model`.
        changes: settings instead of those under `decoding` in config.json.
    """

    def __init__(self, folder: Path, threads: int = 0, **changes: Any) -> None:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        self.model = Model(folder, threads)
        self.source = Tokenizer(folder, config["source"])
        self.target = Tokenizer(folder, config["target"])
        self.settings: dict[str, Any] = config["decoding"] | changes
        self._penalty = length_penalty(self.settings["penalty"], self.settings["alpha"])

    def translate(self, lines: Sequence[str], first: int = 1) -> list[str]:
        """Translate lines, the first of which has that number in messages; blank ones stay blank.

        What is too long is cut, with a warning.
        """
        results = [""] * len(lines)
        sources: dict[int, list[int]] = {}
        for i, line in enumerate(lines):
            if line and not line.isspace():
                ids = self.source.encode(line)
                sources[i] = ids[: self.settings["max_source"]]
                if len(ids) > len(sources[i]):
                    kept = f"{len(ids)} pieces, cut to {len(sources[i])}"
                    print(f"line {first + i}: the source has {kept}", file=sys.stderr)
        for batch in by_length(sources, self.settings["batch_tokens"]):
            found = search(
                self.model,
                [sources[i] for i in batch],
                [self.limit(sources[i]) for i in batch],
                self.settings["beam_size"],
                self._penalty,
            )
            for i, tokens in zip(batch, found, strict=True):
                results[i] = re.sub("[\r\n]", " ", self.target.decode(tokens))
        return results

    def limit(self, source: Sequence[int]) -> int:
        """Return the most tokens that the output of a source may have, END included."""
        limit: int = len(source) + 1 + self.settings["max_extra"]
        most = self.settings["max_output"]
        return limit if most is None else min(limit, most)


def by_length(sources: dict[int, list[int]], tokens: int) -> Iterator[list[int]]:
    """Divide the keys into batches of like length, of at most so many padded tokens."""
    batch: list[int] = []
    for key in sorted(sources, key=lambda key: -len(sources[key])):
        if batch and (len(batch) + 1) * (len(sources[batch[0]]) + 1) > tokens:
            yield batch
            batch = []
        batch.append(key)
    if batch:
        yield batch


def read_lines(file: Iterable[bytes]) -> Iterator[str]:
    """Yield the lines of UTF-8 text; LF and CRLF end a line, and nothing else does."""
    for number, line in enumerate(file, start=1):
        if number == 1:
            line = line.removeprefix(b"\xef\xbb\xbf")
        if line.endswith(b"\n"):
            line = line[:-1].removesuffix(b"\r")
        try:
            yield line.decode("utf-8")
        except UnicodeDecodeError:
            sys.exit(f"line {number} is not UTF-8 text")


def main() -> None:
    """Translate standard input."""
    parser = argparse.ArgumentParser(description="Translate lines from standard input.")
    parser.add_argument("--beam-size", type=int, help="1 is greedy search")
    parser.add_argument("--threads", type=int, default=0, help="0: as many as there are cores")
    arguments = parser.parse_args()
    changes = {} if arguments.beam_size is None else {"beam_size": arguments.beam_size}
    if changes and arguments.beam_size < 1:
        parser.error("--beam-size must be at least 1")
    translator = Translator(Path(__file__).resolve().parent, arguments.threads, **changes)
    lines = read_lines(sys.stdin.buffer)
    first = 1
    while some := list(islice(lines, LINES)):
        for text in translator.translate(some, first):
            sys.stdout.buffer.write(text.encode() + b"\n")
        sys.stdout.buffer.flush()
        first += len(some)


if __name__ == "__main__":
    main()
