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
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime

PAD, UNK, BOS, EOS = range(4)
NEVER = [PAD, UNK, BOS]  # is never generated
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
        src = np.full((len(sources), max(map(len, sources)) + 1), PAD, dtype=np.int64)
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

    def step(self, tokens: Ints, origin: Ints) -> tuple[Floats, Floats]:
        """Feed each hypothesis its next token.

        Args:
            tokens: [B, beam].
            origin: the row (sentence · beam + hypothesis) that each had in the step before. The
                hypotheses of a sentence come from one sentence; sentences may be left out.

        Returns:
            The log-probabilities of the next tokens [B, beam, vocab], and the last layer's
            attention to the source [B, beam, S].
        """
        sentences = origin[:, 0] // self.beam
        if not np.array_equal(sentences, np.arange(len(self.src_mask))):
            self.src_mask = self.src_mask[sentences]
            for name in self.values:
                if name == "src_mask" or name.startswith("memory"):
                    self.values[name] = on_cpu(self.values[name].numpy()[sentences])
        self.beam = tokens.shape[1]
        given = {"tokens": on_cpu(tokens), "origin": on_cpu(origin), **self.values}
        log_probs, attention, *grown = self.decoder.run_with_ort_values(None, given)
        names = [output.name for output in self.decoder.get_outputs()][2:]
        for name, value in zip(names, grown, strict=True):
            self.values[name.removeprefix("next_")] = value
        return log_probs.numpy(), attention.numpy()


def on_cpu(array: npt.NDArray[Any]) -> Any:
    """Return an array as the runtime takes it."""
    return onnxruntime.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array))


# Search -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Hypothesis:
    """The beginning of an output."""

    tokens: tuple[int, ...] = ()
    total: float = 0.0
    """The sum of the log-probabilities; -inf: nothing, it only fills a place."""


def search(
    model: Model,
    sources: Sequence[Sequence[int]],
    limits: Sequence[int],
    beam_size: int,
    penalty: Callable[[int], float],
) -> list[tuple[int, ...]]:
    """Return the best output of each source; beam search, and greedy search for a beam of one.

    At every step the 2 · beam_size best continuations are looked at (of a beam of one the best
    alone): those that end are finished, and the beam_size best that do not end live on. A sentence
    is done at its limit, or when nothing that lives can beat its best finished output any more.

    Args:
        model: the graphs.
        sources: pieces without END.
        limits: the most tokens of each output, END included.
        beam_size: how many hypotheses of a sentence live on.
        penalty: what a sum of log-probabilities is divided by, given the number of tokens.
    """
    looked_at = 1 if beam_size == 1 else 2 * beam_size
    state = model.start(sources)
    beams = {sentence: [Hypothesis()] for sentence in range(len(sources))}
    best: dict[int, tuple[float, tuple[int, ...]]] = {}
    results: dict[int, tuple[int, ...]] = {}
    tokens = np.full((len(sources), 1), BOS)
    origin = np.arange(len(sources))[:, None]
    for n in range(1, max(limits) + 1):
        log_probs, _ = state.step(tokens, origin)
        candidates = continuations(log_probs, list(beams.values()), looked_at)
        beams_before, beams, parents = beams, {}, {}
        width = log_probs.shape[1]
        for row, (sentence, before) in enumerate(beams_before.items()):
            lives: list[tuple[int, Hypothesis]] = []
            for rank, (total, parent, token) in enumerate(candidates[row]):
                longer = Hypothesis((*before[parent].tokens, token), total)
                if token != EOS:
                    lives.append((row * width + parent, longer))
                elif rank < beam_size:
                    found = (total / penalty(n), longer.tokens)
                    best[sentence] = max(best.get(sentence, found), found, key=lambda x: x[0])
            lives = lives[:beam_size]
            most = max((one.total for _, one in lives), default=-math.inf) / penalty(
                limits[sentence]
            )
            if (
                lives
                and n < limits[sentence]
                and not (sentence in best and best[sentence][0] >= most)
            ):
                beams[sentence] = [one for _, one in lives]
                parents[sentence] = [place for place, _ in lives]
            else:
                unfinished = lives[0][1] if lives else before[0]
                results[sentence] = best[sentence][1] if sentence in best else unfinished.tokens
        if not beams:
            break
        width = max(map(len, beams.values()))
        for sentence, beam in beams.items():  # narrower beams are filled up with nothing
            filling = width - len(beam)
            beam += [Hypothesis(beam[0].tokens, -math.inf)] * filling
            parents[sentence] += parents[sentence][:1] * filling
        tokens = np.array([[one.tokens[-1] for one in beam] for beam in beams.values()])
        origin = np.array(list(parents.values()))
    return [results[sentence] for sentence in range(len(sources))]


def continuations(
    log_probs: Floats, beams: Sequence[Sequence[Hypothesis]], most: int
) -> list[list[tuple[float, int, int]]]:
    """Return the best continuations of each beam, best first: sum, hypothesis, token."""
    log_probs = log_probs.copy()
    log_probs[:, :, NEVER] = -math.inf
    k = min(most, log_probs.shape[2])
    ids = np.argpartition(-log_probs, k - 1, axis=2)[:, :, :k]
    gains = np.take_along_axis(log_probs, ids, axis=2).astype(np.float64)
    totals = np.array([[one.total for one in beam] for beam in beams])[:, :, None] + gains
    order = np.argsort(-totals.reshape(len(beams), -1), axis=1, kind="stable")[:, :most]
    return [
        [
            (float(sums.flat[place]), int(place) // k, int(tokens.flat[place]))
            for place in places
            if sums.flat[place] > -math.inf
        ]
        for places, sums, tokens in zip(order, totals, ids, strict=True)
    ]


def length_penalty(kind: str, alpha: float) -> Callable[[int], float]:
    """Return what a sum of log-probabilities is divided by for n tokens, END included."""
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
