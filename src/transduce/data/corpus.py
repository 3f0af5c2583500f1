"""A prepared corpus: a folder that stands alone and is read memory-mapped.

manifest.json             what it was made from and how: inputs, settings, counts, hashes.
                          Written last, so a folder that has it is whole
train-00000.arrow ...     Arrow files with the columns src, tgt (ids without BEGIN and END),
valid-00000.arrow ...     src_text, tgt_text (as the tokenizers saw them) and line
joint.spm, or source.spm and target.spm (none for bytes)
recipe.toml               what was asked for
report.json report.html   what was found
dropped.tsv               every pair that was left out, and why
"""

import json
from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from transduce.config import TokenizerConfig
from transduce.data.statistics import Survey
from transduce.data.tokenizer import ByteTokenizer, SentencePieceTokenizer, Tokenizer
from transduce.errors import TransduceError

Ids = npt.NDArray[np.int32]
MANIFEST, RECIPE, REPORT, PAGE, DROPPED = (
    "manifest.json", "recipe.toml", "report.json", "report.html", "dropped.tsv",
)  # fmt: skip
TOKENIZERS = ("joint.spm", "source.spm", "target.spm")
OWN_FILE = (
    r"manifest\.json|recipe\.toml|report\.(json|html)|dropped\.tsv"
    r"|(joint|source|target)\.spm|(train|valid)-\d+\.arrow"
)
"""What the names of a corpus's files look like."""
ROWS = 10_000  # pairs per Arrow record batch
SCHEMA = pa.schema(
    [
        ("src", pa.list_(pa.int32())),
        ("tgt", pa.list_(pa.int32())),
        ("src_text", pa.string()),
        ("tgt_text", pa.string()),
        ("line", pa.int64()),
    ]
)


class Origin(NamedTuple):
    """A run of neighbouring pairs that came from one source, and how often an epoch takes them."""

    first: int
    end: int
    weight: float


class Encoded:
    """The pairs of one part of a corpus, memory-mapped: `pairs[i]` reads only that pair.

    Args:
        folder: the corpus.
        shards: the part's files with their numbers of rows and sources, as the manifest has them.
        weights: of each source.
    """

    def __init__(
        self, folder: Path, shards: Sequence[dict[str, Any]], weights: Sequence[float]
    ) -> None:
        self.paths = [folder / shard["file"] for shard in shards]
        for path, shard in zip(self.paths, shards, strict=True):
            if path.name != shard["file"]:
                raise ValueError(f"{shard['file']} is not in it")
            size = path.stat().st_size
            if size != shard["bytes"]:
                raise ValueError(f"{path.name} has {size} bytes, not {shard['bytes']}")
        self.starts = [0]
        self.origins: list[Origin] = []
        before = None
        for shard in shards:
            first, end, source = self.starts[-1], self.starts[-1] + shard["rows"], shard["source"]
            self.starts.append(end)
            if source == before:
                first = self.origins.pop().first
            self.origins.append(Origin(first, end, weights[source]))
            before = source
        self._files: dict[int, Any] = {}
        self._rows: dict[tuple[int, int], _Rows] = {}

    def __len__(self) -> int:
        return self.starts[-1]

    def __getitem__(self, index: int) -> tuple[Ids, Ids]:
        """Return the source's and the target's ids of a pair, without BEGIN and END."""
        rows, row = self._find(index)
        return rows.src[row], rows.tgt[row]

    def text(self, index: int) -> tuple[str, str]:
        """Return the texts of a pair, as the tokenizers saw them."""
        rows, row = self._find(index)
        return rows.batch["src_text"][row].as_py(), rows.batch["tgt_text"][row].as_py()

    def lengths(self, first: int, end: int) -> tuple[Ids, Ids]:
        """Return the numbers of source and target pieces of the pairs `first` to `end` - 1."""
        src, tgt = [np.zeros(0, np.int32)], [np.zeros(0, np.int32)]
        while first < end:
            rows, row = self._find(first)
            last = min(row + end - first, len(rows.src))
            src.append(rows.src.lengths(row, last))
            tgt.append(rows.tgt.lengths(row, last))
            first += last - row
        return np.concatenate(src), np.concatenate(tgt)

    def close(self) -> None:
        """Let go of the files, so that what was read of them is no longer in memory."""
        self._rows.clear()
        self._files.clear()

    def _find(self, index: int) -> tuple["_Rows", int]:
        if not 0 <= index < len(self):
            raise IndexError(index)
        shard = bisect_right(self.starts, index) - 1
        batch, row = divmod(index - self.starts[shard], ROWS)
        rows = self._rows.get((shard, batch))
        if rows is None:
            rows = self._rows[shard, batch] = self._read(shard, batch)
        return rows, row

    def _read(self, shard: int, batch: int) -> "_Rows":
        path = self.paths[shard]
        try:
            if shard not in self._files:
                self._files[shard] = pa.ipc.open_file(pa.memory_map(str(path)))
            return _Rows(self._files[shard].get_batch(batch))
        except (OSError, KeyError, pa.ArrowException) as error:
            raise TransduceError(f"cannot read {path}: {error}; prepare the corpus anew") from None


class _Rows:
    """One record batch: zero-copy access to its rows."""

    def __init__(self, batch: Any) -> None:
        self.batch = batch
        self.src = _ListColumn(batch.column("src"))
        self.tgt = _ListColumn(batch.column("tgt"))


class _ListColumn:
    def __init__(self, column: Any) -> None:
        self.offsets = column.offsets.to_numpy()
        self.values = column.values.to_numpy()

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> Ids:
        ids: Ids = self.values[self.offsets[row] : self.offsets[row + 1]]
        return ids

    def lengths(self, first: int, end: int) -> Ids:
        lengths: Ids = np.diff(self.offsets[first : end + 1]).astype(np.int32)
        return lengths


class Corpus:
    """A prepared corpus on disk.

    Raises:
        TransduceError: if the folder is not one, or a file in it is cut short.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            self.manifest: dict[str, Any] = json.loads(
                (folder / MANIFEST).read_text(encoding="utf-8")
            )
            if self.manifest["format"] != FORMAT:
                raise ValueError(f"it has format {self.manifest['format']}, expected {FORMAT}")
            parts = {
                name: Encoded(
                    folder, part["shards"], [source["weight"] for source in part["inputs"]]
                )
                for name in ("train", "valid")
                if (part := self.manifest.get(name, {"shards": [], "inputs": []}))
            }
        except KeyError as error:
            raise TransduceError(
                f"{folder} is not a prepared corpus: {MANIFEST} lacks {error}"
            ) from None
        except (
            OSError,
            ValueError,
            TypeError,
            LookupError,
            RecursionError,
            AttributeError,
        ) as error:
            raise TransduceError(f"{folder} is not a prepared corpus: {error}") from None
        self.train, self.valid = parts["train"], parts["valid"]

    def survey(self) -> Survey:
        """Return what the training text looked like."""
        return Survey.from_json(self.manifest["survey"])

    def tokenizer(self) -> TokenizerConfig:
        """Return the [tokenizer] table it was made with, nothing left open (sampling apart)."""
        try:
            return TokenizerConfig.model_validate(self.manifest["tokenizer"])
        except (KeyError, ValueError):
            raise TransduceError(
                f"{self.folder / MANIFEST}: the [tokenizer] table is damaged; prepare it anew"
            ) from None

    def report(self) -> dict[str, Any]:
        """Return the report that was made with it."""
        try:
            report: dict[str, Any] = json.loads((self.folder / REPORT).read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise TransduceError(f"cannot read {self.folder / REPORT}: {error}") from None
        return report


FORMAT = 2


def save_tokenizers(folder: Path, source: Tokenizer, target: Tokenizer) -> None:
    """Write `joint.spm`, or `source.spm` and `target.spm`; byte tokenizers need no file."""
    names = (
        {"joint.spm": source} if source is target else {"source.spm": source, "target.spm": target}
    )
    for name, tokenizer in names.items():
        if isinstance(tokenizer, SentencePieceTokenizer):
            (folder / name).write_bytes(tokenizer.proto)


def load_tokenizers(
    folder: Path, tokenizer: TokenizerConfig, normalization: str
) -> tuple[Tokenizer, Tokenizer]:
    """Read what `save_tokenizers` wrote.

    Raises:
        TransduceError: naming the file that is missing or broken.
    """

    def load(name: str, kind: str) -> Tokenizer:
        if kind == "byte":
            return ByteTokenizer(tokenizer.symbols, normalization)
        path = folder / name
        try:
            return SentencePieceTokenizer(path.read_bytes(), normalization)
        except OSError as error:
            raise TransduceError(f"cannot read {path}: {error.strerror}") from None
        except TransduceError as error:
            raise TransduceError(f"{path}: {error}") from None

    if tokenizer.joint:
        joint = load("joint.spm", tokenizer.kind)
        return joint, joint
    return (
        load("source.spm", tokenizer.source.kind or tokenizer.kind),
        load("target.spm", tokenizer.target.kind or tokenizer.kind),
    )
