"""Files of any origin in, lines and pairs of text out.

A line ends at LF; CRLF counts as one LF; nothing else ends a line. A byte-order mark at the start
of a file is dropped. This rule is written here and nowhere else.
"""

import gzip
import sys
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from io import BufferedIOBase
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple, cast

from transduce.errors import TransduceError, UsageError

BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class Pair(NamedTuple):
    """A source and its target, and the line they stand on (from 1)."""

    src: str
    tgt: str
    line: int


def split_lines(raw: Iterable[bytes]) -> Iterator[bytes]:
    """Strip line ends and the byte-order mark from raw lines as a binary file yields them."""
    for number, line in enumerate(raw):
        if number == 0:
            line = line.removeprefix(BYTE_ORDER_MARK)
        yield line.removesuffix(b"\n").removesuffix(b"\r") if line.endswith(b"\n") else line


def read_lines(path: str | Path) -> Iterator[str]:
    """Yield the lines of a UTF-8 text file (gzip where the name ends in .gz; `-` is stdin).

    Raises:
        TransduceError: if the file cannot be read, or a line (named) is not UTF-8.
    """
    try:
        with _open(path) as file:
            for number, line in enumerate(split_lines(file), start=1):
                try:
                    yield line.decode("utf-8")
                except UnicodeDecodeError as error:
                    raise TransduceError(
                        f"{path}, line {number}: not UTF-8 (byte {error.start + 1} of the line); "
                        "convert the file to UTF-8"
                    ) from None
    except (gzip.BadGzipFile, EOFError, OSError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise TransduceError(f"cannot read {path}: {reason}") from None


def _open(path: str | Path) -> BufferedIOBase:
    if str(path) == "-":
        return cast(BufferedIOBase, sys.stdin.buffer)
    if str(path).endswith(".gz"):
        return gzip.GzipFile(path, "rb")
    return open(path, "rb")


def read_pairs(files: str | Sequence[str]) -> Iterator[Pair]:
    """Yield the pairs of one TSV file, or of two aligned text files.

    In a TSV the first two columns count; a line without a tab has an empty target.

    Raises:
        TransduceError: if a file cannot be read, or the two files have not equally many lines
            (both names and counts are in the message).
        UsageError: for any other number of files.
    """
    names = [files] if isinstance(files, str) else list(files)
    match names:
        case [tsv] if tsv:
            for number, line in enumerate(read_lines(tsv), start=1):
                src, _, rest = line.partition("\t")
                yield Pair(src, rest.partition("\t")[0], number)
        case [src_file, tgt_file]:
            yield from _read_aligned(src_file, tgt_file)
        case _:
            raise UsageError(
                "pairs are one TSV file (source, tab, target) or two aligned text files"
                + (f", not {len(names)} files" if len(names) > 2 else "")
            )


def _read_aligned(src_file: str, tgt_file: str) -> Iterator[Pair]:
    missing = object()
    sides = zip_longest(read_lines(src_file), read_lines(tgt_file), fillvalue=missing)
    for number, (src, tgt) in enumerate(sides, start=1):
        if src is missing or tgt is missing:
            longer = number + sum(1 for _ in sides)
            counts = (number - 1, longer) if src is missing else (longer, number - 1)
            raise TransduceError(
                f"{src_file} has {counts[0]} lines but {tgt_file} has {counts[1]}: "
                "line n of one must belong to line n of the other"
            )
        yield Pair(str(src), str(tgt), number)


def normalize(text: str, form: str) -> str:
    """Bring text into the one form that tokenizers see, in training and in use.

    The Unicode form (NFC, NFKC or none); no-break spaces, tabs and line breaks as spaces; NUL and
    byte-order marks removed; ▁ (U+2581), which marks spaces inside pieces, as an underscore.
    """
    if form != "none":
        text = unicodedata.normalize(form, text)  # type: ignore[arg-type]
    return text.translate(_REPLACED)


_REPLACED = str.maketrans(
    {"\u00a0": " ", "\t": " ", "\n": " ", "\r": " ", "\0": "", "\ufeff": "", "\u2581": "_"}
)


def is_blank(text: str) -> bool:
    """Say whether a line holds nothing but space."""
    return not text or text.isspace()
