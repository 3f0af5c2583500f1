"""Lines in, lines out, for an exported model: text to pieces and back, batches, the command.

This file and those beside it stand alone. Needed beside the engine: sentencepiece, where the model
has .spm files.
"""

import argparse
import json
import re
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

PAD, UNK, BOS, EOS = range(4)
LINES = 2000  # are read, sorted by length and translated together


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
        self._spm: Any
        self._start, self._foreign, self._spm = "", {}, None
        if settings["file"] is None:
            self._bytes = {EOS + 1 + byte: byte for byte in range(256)}
            self._pieces = {id_: symbol for symbol, id_ in self._symbols.items()}
        else:
            import sentencepiece

            spm = self._spm = sentencepiece.SentencePieceProcessor(str(folder / settings["file"]))
            if not settings["rules"]:  # otherwise the file puts the space there itself
                self._start = " "  # the first word looks like all others
            pieces = {id_: spm.id_to_piece(id_) for id_ in range(EOS + 1, len(spm))}
            self._bytes = {id_: int(p[3:5], 16) for id_, p in pieces.items() if spm.is_byte(id_)}
            self._pieces = {id_: piece.replace("▁", " ") for id_, piece in pieces.items()}
            self._foreign = {piece: id_ for id_, piece in pieces.items() if spm.is_unused(id_)}

    def _encode(self, text: str) -> list[int]:
        """Return the ids of what stands between symbols."""
        if self._spm is None:
            return [EOS + 1 + byte for byte in text.encode()]
        ids: list[int] = self._spm.encode(text)
        if self._foreign and UNK in ids:  # the other side's pieces may spell what is unknown here
            pieces = self._spm.encode(text, out_type=str)
            ids = [self._foreign.get(p, id_) for p, id_ in zip(pieces, ids, strict=True)]
        return ids

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
        return text.decode("utf-8", errors="ignore").removeprefix(" " if self._spm else "")


Penalty = Callable[[int], float]
"""What a sum of log-probabilities is divided by, given the number of tokens, END included."""


class Task(NamedTuple):
    """A sentence to translate."""

    source: list[int]
    """Pieces without END."""
    limit: int
    """The most tokens of the output, END included."""


class Lines:
    """Lines in, lines out; an engine's script says how pieces are searched.

    Args:
        folder: the exported model.
        changes: settings instead of those under `decoding` in transduce.json.
    """

    def __init__(self, folder: Path, **changes: Any) -> None:
        config = json.loads((folder / "transduce.json").read_text(encoding="utf-8"))
        self.source = Tokenizer(folder, config["source"])
        self.target = Tokenizer(folder, config["target"])
        self.settings: dict[str, Any] = config["decoding"] | changes
        self.penalty = length_penalty(self.settings["penalty"], self.settings["alpha"])
        self.precision: str = config["precision"]

    def search(self, tasks: Sequence[Task]) -> Sequence[Sequence[int]]:
        """Return the best output of each sentence of a batch, END included if there is one."""
        raise NotImplementedError

    def translate(self, lines: Sequence[str], first: int = 1) -> list[str]:
        """Translate lines, the first of which has that number in messages; blank ones stay blank.

        What is too long is cut, with a warning.
        """
        results = [""] * len(lines)
        sources: dict[int, list[int]] = {}
        for i, line in enumerate(lines):
            if line and not line.isspace():
                ids = self.source.encode(line)
                if not ids:  # control characters alone: as good as blank
                    continue
                sources[i] = ids[: self.settings["max_source"]]
                if len(ids) > len(sources[i]):
                    kept = f"{len(ids)} pieces, cut to {len(sources[i])}"
                    print(f"line {first + i}: the source has {kept}", file=sys.stderr)
        for batch in by_length(sources, self.settings["batch_tokens"]):
            found = self.search([Task(sources[i], self.limit(sources[i])) for i in batch])
            for i, tokens in zip(batch, found, strict=True):
                results[i] = re.sub("[\r\n]", " ", self.target.decode(tokens))
        return results

    def limit(self, source: Sequence[int]) -> int:
        """Return the most tokens that the output of a source may have, END included."""
        limit: int = len(source) + 1 + self.settings["max_extra"]
        most = self.settings["max_output"]
        return limit if most is None else min(limit, most)


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


def run(build: Callable[[Path, int, dict[str, Any]], Lines]) -> None:
    """Translate standard input with what `build` makes of a folder, threads and changes."""
    parser = argparse.ArgumentParser(description="Translate lines from standard input.")
    parser.add_argument("--beam-size", type=int, help="1 is greedy search")
    parser.add_argument("--threads", type=int, default=0, help="0: as many as there are cores")
    arguments = parser.parse_args()
    changes = {} if arguments.beam_size is None else {"beam_size": arguments.beam_size}
    if changes and arguments.beam_size < 1:
        parser.error("--beam-size must be at least 1")
    translator = build(Path(__file__).resolve().parent, arguments.threads, changes)
    lines = read_lines(sys.stdin.buffer)
    first = 1
    while some := list(islice(lines, LINES)):
        for text in translator.translate(some, first):
            sys.stdout.buffer.write(text.encode() + b"\n")
        sys.stdout.buffer.flush()
        first += len(some)
