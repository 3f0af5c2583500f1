"""What is done to one chunk of a corpus while it is prepared, in whatever process.

Each function leaves its result in files that appear in one go, the last of which says that the
chunk is done.
"""

import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from transduce.config import CleaningConfig, TokenizerConfig
from transduce.data.cleaning import Cleaner, Findings
from transduce.data.comparison import COLUMNS
from transduce.data.corpus import ROWS, SCHEMA, load_tokenizers
from transduce.data.files import fingerprint
from transduce.data.statistics import Survey
from transduce.data.text import Pair, Skipped, comparison_key
from transduce.data.tokenizer import (
    SentencePieceTokenizer,
    Tokenizer,
    grow_tokenizer,
    train_tokenizer,
)
from transduce.errors import TransduceError

CHUNK = 100_000  # pairs that are cleaned and encoded together, and become one shard
CHARACTERS = 32 << 20  # or so many characters, whatever comes first
FLAGS = "flags.npy"
TEXT_SCHEMA = pa.schema(
    [("src", pa.string()), ("tgt", pa.string()), ("line", pa.int64())]
    + [(column, pa.uint64()) for column in COLUMNS]
)


@contextmanager
def appearing(path: Path) -> Iterator[Path]:
    """Give the name of a file to write, which then takes the place of `path` in one go.

    Raises:
        TransduceError: if it cannot be written.
    """
    beside = path.with_name(f"{path.name}.tmp-{os.getpid()}")
    try:
        yield beside
        with open(beside, "rb") as file:
            os.fsync(file.fileno())
        os.replace(beside, path)
    except OSError as error:
        with suppress(OSError):
            beside.unlink(missing_ok=True)
        raise TransduceError(f"cannot write {path}: {error.strerror or error}") from None


def write(path: Path, content: bytes) -> None:
    """Put a file in its place in one go.

    Raises:
        TransduceError: if it cannot be written.
    """
    with appearing(path) as beside:
        beside.write_bytes(content)


def cut(stream: Iterator[Pair | Skipped]) -> Iterator[list[Pair | Skipped]]:
    """Cut a stream in chunks of at most so many pairs and characters."""
    chunk: list[Pair | Skipped] = []
    characters = 0
    for entry in stream:
        chunk.append(entry)
        if isinstance(entry, Pair):
            characters += len(entry.src) + len(entry.tgt)
        if len(chunk) == CHUNK or characters >= CHARACTERS:
            yield chunk
            chunk, characters = [], 0
    if chunk:
        yield chunk


@dataclass(frozen=True)
class CleanJob:
    """A chunk of entries to be cleaned."""

    work: Path
    name: str
    entries: list[Pair | Skipped]
    source: int
    file: str
    tag: str
    cleaning: CleaningConfig
    normalization: str
    languages: tuple[str, str] | None
    symbols: tuple[str, ...]
    acts: bool


def clean(job: CleanJob) -> str:
    """Clean a chunk: its pairs with their hashes to an Arrow file, the counts to a JSON."""
    cleaner = Cleaner(job.cleaning, job.normalization, job.languages, job.symbols, job.acts)
    findings, survey = Findings(), Survey()
    pairs: list[Pair] = []
    dropped: list[str] = []
    for entry in job.entries:
        pair = cleaner.clean(entry, job.file, findings)
        if pair is None:
            if isinstance(entry, Pair):
                dropped.append(dropped_line(findings.latest, job.file, entry))
            continue
        if job.tag:
            pair = Pair(f"{job.tag} {pair.src}", pair.tgt, pair.line)
        pairs.append(pair)
        survey.add(pair.src, pair.tgt)
    columns = [list(column) for column in zip(*pairs, strict=True)] or [[], [], []]
    src, tgt, lines = columns
    hashes = [
        [_hash(text) for text in src],
        [_hash(text) for text in tgt],
        [_hash(comparison_key(text)) for text in src],
        [_hash(comparison_key(text)) for text in tgt],
    ]
    table = pa.table([src, tgt, lines, *hashes], schema=TEXT_SCHEMA)
    _write_table(job.work / f"{job.name}.arrow", table)
    write(job.work / f"{job.name}.dropped", "".join(dropped).encode())
    found = {"findings": findings.to_json(), "survey": survey.to_json()}
    write(job.work / f"{job.name}.found", json.dumps(found, ensure_ascii=False).encode())
    counts = {
        "source": job.source,
        "read": sum(isinstance(entry, Pair) for entry in job.entries),
        "clean": len(pairs),
    }
    write(job.work / f"{job.name}.json", json.dumps(counts).encode())  # last: the chunk is done
    return job.name


def dropped_line(reason: str, file: str, pair: Pair) -> str:
    """Return the line of dropped.tsv (without the part's name) for a pair that is left out."""
    shown = [re.sub(r"[\t\n\r]", " ", text[:1000]) for text in (pair.src, pair.tgt)]
    return f"{reason}\t{file}\t{pair.line}\t{shown[0]}\t{shown[1]}\n"


def _hash(text: str) -> int:
    digest = hashlib.blake2b(text.encode("utf-8"), digest_size=8).digest()
    return int.from_bytes(digest, "little")


@dataclass(frozen=True)
class EncodeJob:
    """A cleaned chunk to be encoded."""

    part: Path
    name: str
    dropped: npt.NDArray[np.bool_]
    tokenizer: TokenizerConfig
    normalization: str
    max_length: int | None
    file: str


def encode(job: EncodeJob) -> str:
    """Encode a chunk: its pairs to a shard of the corpus, the counts to a JSON."""
    work = job.part / "work"
    tokenizers = load_tokenizers(work, job.tokenizer, job.normalization)
    table = pa.ipc.open_file(str(work / f"{job.name}.arrow")).read_all()
    table = table.filter(pa.array(~job.dropped)).select(["src", "tgt", "line"])
    src_texts, tgt_texts = table["src"].to_pylist(), table["tgt"].to_pylist()
    src, tgt = (
        tokenizer.encode_all(texts)
        for tokenizer, texts in zip(tokenizers, (src_texts, tgt_texts), strict=True)
    )
    findings = Findings()
    dropped: list[str] = []
    kept = list(range(len(src)))
    if job.max_length is not None:
        lines = table["line"].to_pylist()
        reason = f"more than {job.max_length:,} pieces"
        kept = []
        for i, lengths in enumerate(zip(map(len, src), map(len, tgt), strict=True)):
            if max(lengths) <= job.max_length:
                kept.append(i)
                continue
            pair = Pair(src_texts[i], tgt_texts[i], lines[i])
            findings.add(reason, "drop", job.file, pair)
            dropped.append(dropped_line(reason, job.file, pair))
    src, tgt = [src[i] for i in kept], [tgt[i] for i in kept]
    shard = pa.table(
        [_list_array(src), _list_array(tgt)]
        + [table[name].take(pa.array(kept, pa.int64())) for name in ("src", "tgt", "line")],
        schema=SCHEMA,
    ).combine_chunks()
    path = job.part / f"{job.name}.arrow"
    _write_table(path, shard, ROWS)
    write(work / f"{job.name}.long", "".join(dropped).encode())
    pieces = {
        "findings": findings.to_json(),
        "source": _piece_counts(src, shard["src_text"], tokenizers[0]),
        "target": _piece_counts(tgt, shard["tgt_text"], tokenizers[1]),
        "longest_surplus": max((len(t) - len(s) for s, t in zip(src, tgt, strict=True)), default=0),
    }
    write(work / f"{job.name}.pieces", json.dumps(pieces, ensure_ascii=False).encode())
    description = {
        "file": path.name,
        "rows": len(kept),
        "bytes": path.stat().st_size,
        "sha256": fingerprint(str(path)),
    }
    write(work / f"{job.name}.shard.json", json.dumps(description).encode())  # last
    return job.name


def _write_table(path: Path, table: Any, rows: int | None = None) -> None:
    with (
        appearing(path) as beside,
        pa.OSFile(str(beside), "wb") as sink,
        pa.ipc.new_file(sink, table.schema) as writer,
    ):
        writer.write_table(table, max_chunksize=rows)


def _list_array(rows: Sequence[npt.NDArray[np.int32]]) -> Any:
    offsets = np.zeros(len(rows) + 1, np.int32)
    np.cumsum([len(row) for row in rows], out=offsets[1:])
    values = np.concatenate(rows) if rows else np.zeros(0, np.int32)
    return pa.ListArray.from_arrays(offsets, values.astype(np.int32, copy=False))


def _piece_counts(
    rows: Sequence[npt.NDArray[np.int32]], texts: Any, tokenizer: Tokenizer
) -> dict[str, Any]:
    ids = np.concatenate(rows) if rows else np.zeros(0, np.int32)
    lengths = Counter(map(len, rows))
    return {
        "lengths": sorted(lengths.items()),
        "words": sum(len(text.split()) for text in texts.to_pylist()),
        "pieces": np.bincount(ids, minlength=len(tokenizer)).tolist(),
    }


@dataclass(frozen=True)
class LearnJob:
    """What a vocabulary is learnt from."""

    work: Path
    file: str
    chunks: tuple[str, ...]
    sides: tuple[str, ...]
    fraction: float
    tokenizer: TokenizerConfig
    kind: str
    vocabulary: int
    coverage: float | None
    normalization: str
    name: str
    old: bytes | None = None
    """The vocabulary that is to grow, if it is not a new one."""
    most: int | None = None
    """How many pieces it may grow by, see `grow_tokenizer`."""


def learn(job: LearnJob) -> None:
    """Learn a vocabulary, or new pieces of an old one, from a sample of the cleaned text."""

    class Texts:
        """A fresh pass over the sample each time it is iterated."""

        def __iter__(self) -> Iterator[str]:
            start = 0
            for name in job.chunks:
                table = pa.ipc.open_file(str(job.work / f"{name}.arrow")).read_all()
                drop = drop_flags(job.work, start, table.num_rows)
                chosen = _sampled(start, table.num_rows, job.fraction) & ~drop
                start += table.num_rows
                sample = table.select(list(job.sides)).filter(pa.array(chosen))
                columns = [sample[side].to_pylist() for side in job.sides]
                for texts in zip(*columns, strict=True):
                    yield from texts

    tokenizer: Tokenizer
    if job.old is not None:
        tokenizer = grow_tokenizer(
            SentencePieceTokenizer(job.old, job.normalization),
            Texts(),
            job.most,
            name=job.name,
            character_coverage=job.coverage,
            symbols=job.tokenizer.symbols,
        )
    else:
        tokenizer = train_tokenizer(
            Texts(),
            job.kind,
            job.vocabulary,
            normalization=job.normalization,
            name=job.name,
            byte_fallback=job.tokenizer.byte_fallback,
            character_coverage=job.coverage,
            symbols=job.tokenizer.symbols,
        )
    if isinstance(tokenizer, SentencePieceTokenizer):
        write(job.work / job.file, tokenizer.proto)


def _sampled(start: int, rows: int, fraction: float) -> npt.NDArray[np.bool_]:
    """Say for each pair whether it is in a sample: by its place, and as if at random."""
    place = np.arange(start, start + rows, dtype=np.uint64)
    mixed = (place + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (mixed >> np.uint64(11)).astype(np.float64) / 2.0**53 < fraction


def drop_flags(work: Path, first: int, rows: int) -> npt.NDArray[np.bool_]:
    """Return which pairs of a stretch of the training text are left out as duplicates or leaks."""
    flags = np.load(work / FLAGS, mmap_mode="r")
    return np.array(flags[first : first + rows])


def clean_unless_done(job: CleanJob | str) -> str:
    """Clean a chunk, or pass on the name of one that is clean already."""
    return job if isinstance(job, str) else clean(job)


def encode_unless_done(job: EncodeJob | str) -> str:
    """Encode a chunk, or pass on the name of one that is encoded already."""
    return job if isinstance(job, str) else encode(job)
