"""From pairs of text to a prepared corpus: cleaned, encoded once, read back memory-mapped.

A corpus is a folder:

    train.arrow valid.arrow   Arrow files with the columns src, tgt (ids without BEGIN and END)
                              and line; in both, pairs of at most max_length pieces
    joint.spm, or source.spm and target.spm
    manifest.json             sizes, counts, and what was left out and why, by line

The files are gone through from front to back and never held in memory.
"""

import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from transduce.config import Config, DataConfig, TokenizerConfig
from transduce.data.readers import Pair, is_blank, normalize, read_pairs
from transduce.data.tokenizer import Tokenizer, train_tokenizer
from transduce.errors import TransduceError

Ids = npt.NDArray[np.int32]
Row = tuple[list[int], list[int], int]
"""Source ids, target ids and the line number of a pair."""
MANIFEST = "manifest.json"
ROWS = 10_000  # pairs per Arrow record batch
SCHEMA = pa.schema(
    [("src", pa.list_(pa.int32())), ("tgt", pa.list_(pa.int32())), ("line", pa.int64())]
)
LISTED = 1_000  # line numbers kept per reason


@dataclass
class Dropped:
    """Pairs left out: how many for each reason, and the numbers of the first lines."""

    counts: Counter[str] = field(default_factory=Counter)
    lines: dict[str, list[int]] = field(default_factory=dict)

    def add(self, reason: str, line: int) -> None:
        """Record one pair."""
        self.counts[reason] += 1
        listed = self.lines.setdefault(reason, [])
        if len(listed) < LISTED:
            listed.append(line)

    def summary(self) -> list[str]:
        """Return one sentence per reason, with the first line numbers."""
        return [
            f"{count:,} {'pair' if count == 1 else 'pairs'} left out: {reason} "
            f"(line {', '.join(map(str, self.lines[reason][:5]))}{', ...' if count > 5 else ''})"
            for reason, count in self.counts.items()
        ]


def clean(files: str | Sequence[str], data: DataConfig, dropped: Dropped) -> Iterator[Pair]:
    """Yield the usable pairs, normalised; the others go to `dropped`, always as a pair.

    A side of more than 100 · max_length characters is not even tokenized.
    """
    too_many = 100 * data.max_length
    for src, tgt, line in read_pairs(files):
        if is_blank(src):
            dropped.add("empty source", line)
        elif is_blank(tgt):
            dropped.add("empty target", line)
        elif max(len(src), len(tgt)) > too_many:
            dropped.add(f"longer than {too_many:,} characters", line)
        else:
            yield Pair(normalize(src, data.normalization), normalize(tgt, data.normalization), line)


@dataclass
class SideSurvey:
    """What one side of a corpus looks like, as far as choices depend on it."""

    characters: Counter[str] = field(default_factory=Counter)
    words: set[str] = field(default_factory=set)
    lines: int = 0
    word_count: int = 0
    lines_with_space: int = 0

    MANY_WORDS = 20_000  # distinct words are counted up to here

    def add(self, text: str) -> None:
        """Take one line into account."""
        self.lines += 1
        self.characters.update(text)
        words = text.split()
        self.word_count += len(words)
        self.lines_with_space += len(words) > 1
        if len(self.words) < self.MANY_WORDS:
            self.words.update(words)


@dataclass
class Survey:
    """What a corpus looks like before anything is learnt from it."""

    pairs: int = 0
    source: SideSurvey = field(default_factory=SideSurvey)
    target: SideSurvey = field(default_factory=SideSurvey)


def survey(files: str | Sequence[str], data: DataConfig) -> Survey:
    """Go through the training pairs once and describe them.

    Raises:
        TransduceError: if no usable pair is found; says what was wrong with the lines.
    """
    found, dropped = Survey(), Dropped()
    for src, tgt, _ in clean(files, data, dropped):
        found.pairs += 1
        found.source.add(src)
        found.target.add(tgt)
    if not found.pairs:
        raise TransduceError(f"no usable pair in {_shown(files)}: {_why(dropped)}")
    return found


def _shown(files: str | Sequence[str]) -> str:
    return files if isinstance(files, str) else " and ".join(files)


def _why(dropped: Dropped) -> str:
    return "; ".join(dropped.summary()) or "the file is empty"


class _Texts:
    """A fresh pass over the normalised texts each time it is iterated (tokenizers need two)."""

    def __init__(self, pairs: Callable[[], Iterator[Pair]], sides: Sequence[int]) -> None:
        self.pairs, self.sides = pairs, sides

    def __iter__(self) -> Iterator[str]:
        return (str(pair[side]) for pair in self.pairs() for side in self.sides)


def train_tokenizers(
    config: TokenizerConfig, pairs: Callable[[], Iterator[Pair]], normalization: str
) -> tuple[Tokenizer, Tokenizer]:
    """Learn the source's and the target's tokenizer; twice the same object if joint."""

    def learn(name: str, sides: Sequence[int], kind: str, vocabulary: int) -> Tokenizer:
        texts = _Texts(pairs, sides)
        proto = train_tokenizer(texts, kind, vocabulary, config.byte_fallback, name)
        return Tokenizer(proto, normalization)

    if config.joint:
        joint = learn("joint vocabulary", (0, 1), config.kind, config.vocabulary)
        return joint, joint
    return (
        learn(
            "source vocabulary",
            (0,),
            config.source.kind or config.kind,
            config.source.vocabulary or config.vocabulary,
        ),
        learn(
            "target vocabulary",
            (1,),
            config.target.kind or config.kind,
            config.target.vocabulary or config.vocabulary,
        ),
    )


def save_tokenizers(folder: Path, source: Tokenizer, target: Tokenizer) -> None:
    """Write `joint.spm`, or `source.spm` and `target.spm`."""
    if source is target:
        (folder / "joint.spm").write_bytes(source.proto)
    else:
        (folder / "source.spm").write_bytes(source.proto)
        (folder / "target.spm").write_bytes(target.proto)


def load_tokenizers(folder: Path, config: Config) -> tuple[Tokenizer, Tokenizer]:
    """Read what `save_tokenizers` wrote.

    Raises:
        TransduceError: naming the file that is missing or broken.
    """

    def load(name: str) -> Tokenizer:
        path = folder / name
        try:
            return Tokenizer(path.read_bytes(), config.data.normalization)
        except OSError as error:
            raise TransduceError(f"cannot read {path}: {error.strerror}") from None
        except TransduceError as error:
            raise TransduceError(f"{path}: {error}") from None

    if config.tokenizer.joint:
        joint = load("joint.spm")
        return joint, joint
    return load("source.spm"), load("target.spm")


def prepare(config: Config, folder: Path) -> "Corpus":
    """Make the corpus of a recipe: learn the tokenizers, encode training and validation pairs.

    The folder appears only when it is complete; one that is there already is replaced.

    Raises:
        TransduceError: if a file cannot be read or no usable pair is left.
        UsageError: if the tokenizer asked for is impossible.
    """
    part = folder.with_name(folder.name + ".part")
    try:
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        manifest = _fill(part, config)
        (part / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
        shutil.rmtree(folder, ignore_errors=True)
        part.rename(folder)
    except OSError as error:
        raise TransduceError(f"cannot write {folder}: {error.strerror or error}") from None
    return Corpus(folder)


def _fill(folder: Path, config: Config) -> dict[str, Any]:
    """Write tokenizers and encoded pairs; return the manifest."""
    data = config.data
    source, target = train_tokenizers(
        config.tokenizer, lambda: clean(data.train, data, Dropped()), data.normalization
    )
    save_tokenizers(folder, source, target)

    def encode(files: str | Sequence[str], dropped: Dropped) -> Iterator[Row]:
        pairs = clean(files, data, dropped)
        while chunk := list(islice(pairs, ROWS)):
            sources = source.encode_all([pair.src for pair in chunk])
            targets = target.encode_all([pair.tgt for pair in chunk])
            for src, tgt, pair in zip(sources, targets, chunk, strict=True):
                if max(len(src), len(tgt)) > data.max_length:
                    dropped.add(f"more than {data.max_length} pieces", pair.line)
                else:
                    yield src, tgt, pair.line

    manifest: dict[str, Any] = {
        "source_vocabulary": len(source),
        "target_vocabulary": len(target),
    }
    for part, files in (("train", data.train), ("valid", data.valid)):
        dropped = Dropped()
        counts = _write(folder / f"{part}.arrow", encode(files, dropped))
        if not counts["pairs"]:
            raise TransduceError(f"no usable pair in {_shown(files)}: {_why(dropped)}")
        manifest[part] = counts | {
            "dropped": dropped.lines,
            "dropped_counts": dict(dropped.counts),
        }
    return manifest


def _write(path: Path, rows: Iterator[Row]) -> dict[str, int]:
    """Write encoded pairs in record batches of ROWS; return the counts."""
    counts = {"pairs": 0, "source_tokens": 0, "target_tokens": 0, "unknown_tokens": 0}
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, SCHEMA) as writer:
        while chunk := list(islice(rows, ROWS)):
            src, tgt, lines = zip(*chunk, strict=True)
            writer.write_batch(
                pa.record_batch(
                    [
                        pa.array(src, SCHEMA.field("src").type),
                        pa.array(tgt, SCHEMA.field("tgt").type),
                        pa.array(lines, pa.int64()),
                    ],
                    schema=SCHEMA,
                )
            )
            counts["pairs"] += len(chunk)
            counts["source_tokens"] += sum(map(len, src)) + len(src)
            counts["target_tokens"] += sum(map(len, tgt)) + len(tgt)
            counts["unknown_tokens"] += sum(ids.count(1) for ids in chain(src, tgt))
    return counts


class Encoded:
    """The encoded pairs of one Arrow file, memory-mapped: `pairs[i]` reads only that pair."""

    def __init__(self, path: Path) -> None:
        file = pa.ipc.open_file(pa.memory_map(str(path)))
        batches = [file.get_batch(i) for i in range(file.num_record_batches)]
        self._src = [_ListColumn(batch.column("src")) for batch in batches]
        self._tgt = [_ListColumn(batch.column("tgt")) for batch in batches]
        self.src_lengths: Ids = _lengths(self._src)
        self.tgt_lengths: Ids = _lengths(self._tgt)

    def __len__(self) -> int:
        return len(self.src_lengths)

    def __getitem__(self, index: int) -> tuple[Ids, Ids]:
        """Return the source's and the target's ids of a pair, without BEGIN and END."""
        batch, row = divmod(index, ROWS)
        return self._src[batch][row], self._tgt[batch][row]


class _ListColumn:
    """Zero-copy access to the rows of an Arrow list column."""

    def __init__(self, column: Any) -> None:
        self.offsets = column.offsets.to_numpy()
        self.values = column.values.to_numpy()

    def __getitem__(self, row: int) -> Ids:
        ids: Ids = self.values[self.offsets[row] : self.offsets[row + 1]]
        return ids


def _lengths(columns: Iterable[_ListColumn]) -> Ids:
    parts = [np.diff(column.offsets).astype(np.int32) for column in columns]
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int32)


class Corpus:
    """A prepared corpus on disk.

    Raises:
        TransduceError: if the folder is not one.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            self.manifest: dict[str, Any] = json.loads(
                (folder / MANIFEST).read_text(encoding="utf-8")
            )
            self.train = Encoded(folder / "train.arrow")
            self.valid = Encoded(folder / "valid.arrow")
        except (OSError, ValueError, pa.ArrowInvalid) as error:
            raise TransduceError(f"{folder} is not a prepared corpus: {error}") from None

    def report(self) -> list[str]:
        """Say in a few lines what the corpus holds and what was left out."""
        lines = []
        for part in ("train", "valid"):
            m = self.manifest[part]
            dropped = Dropped(Counter(m["dropped_counts"]), m["dropped"])
            lines.append(
                f"{part}: {m['pairs']:,} pairs, {m['source_tokens']:,} source and "
                f"{m['target_tokens']:,} target tokens"
                + (f", {m['unknown_tokens']:,} unknown" if m["unknown_tokens"] else "")
            )
            lines += [f"{part}: {sentence}" for sentence in dropped.summary()]
        return lines
