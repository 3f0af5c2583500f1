"""Which training pairs repeat others, and which of them stand in validation or test pairs too.

Texts are compared by 64-bit hashes of themselves (exact) and of their comparison keys (normalised:
case, spaces and Unicode form do not count), a bounded number at a time.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from transduce.config import CleaningConfig
from transduce.data.cleaning import CUT, EXAMPLES, LISTED, Findings
from transduce.data.text import Pair

Hashes = npt.NDArray[np.uint64]
Flags = npt.NDArray[np.bool_]
BUCKET = 1 << 22  # hashes that are sorted at a time
COLUMNS = ("src_hash", "tgt_hash", "src_key", "tgt_key")


@dataclass(frozen=True)
class Chunk:
    """Cleaned pairs in a file, with their hashes; `first` is the place of the first of them."""

    path: Path
    first: int
    rows: int
    file: str
    """How the pairs' file is named in the report."""

    @cached_property
    def table(self) -> Any:
        """The pairs, memory-mapped."""
        return pa.ipc.open_file(pa.memory_map(str(self.path))).read_all()

    def hashes(self, what: str) -> Hashes:
        """Return the hashes of sources, targets or pairs, exact or normalised."""
        if what in ("pair", "pair_key"):
            suffix = "hash" if what == "pair" else "key"
            return mixed(self.hashes(f"src_{suffix}"), self.hashes(f"tgt_{suffix}"))
        column: Hashes = self.table[what].to_numpy()
        return column

    def pair(self, row: int) -> Pair:
        """Return one pair."""
        src, tgt, line = (self.table[name][row].as_py() for name in ("src", "tgt", "line"))
        return Pair(src, tgt, line)


def mixed(src: Hashes, tgt: Hashes) -> Hashes:
    """Return hashes of pairs, from those of their sides."""
    hashes: Hashes = (src ^ (src >> np.uint64(32))) * np.uint64(0x9E3779B97F4A7C15) + tgt
    return hashes


def repeated(chunks: Sequence[Chunk], what: str) -> Flags:
    """Say for each pair whether an earlier one is the same in `what`."""
    total = sum(chunk.rows for chunk in chunks)
    flags = np.zeros(total, bool)
    buckets = -(-total // BUCKET) or 1
    for bucket in range(buckets):
        hashes, places = [], []
        for chunk in chunks:
            own = chunk.hashes(what)
            chosen = np.flatnonzero(own % np.uint64(buckets) == bucket)
            hashes.append(own[chosen])
            places.append(chosen + chunk.first)
        found, place = np.concatenate(hashes), np.concatenate(places)
        order = np.argsort(found, kind="stable")
        again = found[order[1:]] == found[order[:-1]]
        flags[place[order[1:][again]]] = True
    return flags


@dataclass
class Comparison:
    """What was found, and which training pairs are left out for it."""

    findings: Findings
    duplicates: dict[str, int]
    """Pairs, nearly equal pairs, sources and targets that occurred before."""
    leaks: list[dict[str, Any]]
    """For each other part: how many of its sources, targets and pairs are also in training."""
    dropped: Flags


def compare(
    train: Sequence[Chunk],
    others: Mapping[str, Sequence[Chunk]],
    cleaning: CleaningConfig,
    note: Callable[[Chunk, str, Pair], None],
) -> Comparison:
    """Compare training pairs with each other and with the other parts.

    Args:
        train: the training pairs.
        others: validation and test pairs.
        cleaning: says what is to be left out.
        note: is told of each pair that is left out: its chunk, the reason and the pair.
    """
    exact = repeated(train, "pair")
    near = repeated(train, "pair_key")
    counts = {
        "pairs": int(exact.sum()),
        "near_pairs": int(near.sum()),
        "sources": int(repeated(train, "src_hash").sum()),
        "targets": int(repeated(train, "tgt_hash").sum()),
    }
    leaks, leaked = find_leaks(train, others)
    findings = Findings()
    dropped = np.zeros(len(exact), bool)
    for name, action, flags in (
        ("duplicates", cleaning.duplicates, exact),
        ("near_duplicates", cleaning.near_duplicates, near & ~exact),
        ("leaks", cleaning.leaks, leaked),
    ):
        if action == "off":
            continue
        flags = flags & ~dropped
        if flags.any():
            for chunk, row in islice(_flagged(train, flags), LISTED):
                findings.add(name, action, chunk.file, chunk.pair(row))
            findings.found[name, action].count = int(flags.sum())
        if action == "drop":
            for chunk, row in _flagged(train, flags):
                note(chunk, name, chunk.pair(row))
            dropped |= flags
    return Comparison(findings, counts, leaks, dropped)


def find_leaks(
    train: Sequence[Chunk], others: Mapping[str, Sequence[Chunk]]
) -> tuple[list[dict[str, Any]], Flags]:
    """Look up the other parts in the training pairs.

    Returns:
        For each other part what it shares with training; and which training pairs have a source
        that occurs, normalised, in one of them.
    """
    leaked = np.zeros(sum(chunk.rows for chunk in train), bool)
    leaks = []
    for part, chunks in others.items():
        kinds = {
            "source": ("src_hash", "src_key"),
            "target": ("tgt_hash", "tgt_key"),
            "pair": ("pair", "pair_key"),
        }
        wanted = {
            what: np.concatenate([chunk.hashes(what) for chunk in chunks])
            for whats in kinds.values()
            for what in whats
        }
        seen = {what: np.zeros(len(hashes), bool) for what, hashes in wanted.items()}
        for chunk in train:
            for what, hashes in wanted.items():
                own = chunk.hashes(what)
                seen[what] |= np.isin(hashes, own)
                if what == "src_key":
                    leaked[chunk.first : chunk.first + chunk.rows] |= np.isin(own, hashes)
        leaks.append(
            {
                "part": part,
                "pairs": len(seen["pair"]),
                **{
                    kind: {"exact": int(seen[exact].sum()), "normalised": int(seen[key].sum())}
                    for kind, (exact, key) in kinds.items()
                },
                "examples": _leaked_examples(chunks, seen),
            }
        )
    return leaks, leaked


def _leaked_examples(chunks: Sequence[Chunk], seen: dict[str, Flags]) -> list[dict[str, Any]]:
    examples = []
    for chunk, row in _flagged(chunks, seen["src_key"] | seen["tgt_key"]):
        place = chunk.first + row
        kind = "pair" if seen["pair_key"][place] else "target"
        kind = "source" if kind == "target" and seen["src_key"][place] else kind
        src, tgt, line = chunk.pair(row)
        examples.append({"src": src[:CUT], "tgt": tgt[:CUT], "kind": kind, "line": line})
        if len(examples) == EXAMPLES:
            break
    return examples


def _flagged(chunks: Sequence[Chunk], flags: Flags) -> Iterator[tuple[Chunk, int]]:
    for chunk in chunks:
        for row in np.flatnonzero(flags[chunk.first : chunk.first + chunk.rows]):
            yield chunk, int(row)
