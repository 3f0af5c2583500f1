"""Dividing pairs into training, validation and test, and drawing some of them: without leaks.

Pairs whose sources are equal, but for case, spaces and Unicode form, always fall on one side.
"""

import hashlib
import heapq
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt

from transduce.config import STDIN, Source
from transduce.data.files import BUFFER, open_bytes
from transduce.data.progress import Counting
from transduce.data.readers import from_copy, paths_of, read_pairs
from transduce.data.text import Pair, comparison_key
from transduce.errors import TransduceError, UsageError

BUCKETS = 1 << 20  # of sources, by hash; each falls to one part as a whole


def as_tsv(pair: Pair) -> str:
    """Return a pair as a line of a TSV file."""
    return f"{pair.src}\t{pair.tgt}\n"


def split(sources: Sequence[Source], out: Path, valid: str, test: str, seed: int) -> dict[str, int]:
    """Write `train.tsv`, `valid.tsv` and `test.tsv`; equal sources stay together.

    Args:
        sources: where the pairs are; gone through twice, never held in memory.
        out: folder to write to.
        valid: size of the part, a number of pairs or a share such as "10%"; "0" for none.
        test: likewise.
        seed: another one divides otherwise.

    Returns:
        How many pairs each part has: as near to what was asked for as whole groups allow.

    Raises:
        UsageError: if a size is wrong, too large, or the files are there already.
        TransduceError: if pairs cannot be read or files not written.
    """
    wanted = {"test": Size("test", test), "valid": Size("valid", valid)}
    wanted = {name: size for name, size in wanted.items() if size.number}
    paths = {name: out / f"{name}.tsv" for name in [*wanted, "train"]}
    for path in paths.values():
        if path.exists():
            raise UsageError(f"{path} is there already: give another --out")
    with rereadable(sources) as found, Counting("dividing", "pairs") as counting:
        buckets = np.zeros(BUCKETS, np.int64)
        for number, pair in enumerate(read_pairs(found), start=1):
            buckets[bucket_of(pair.src, seed)] += 1
            if number % 10_000 == 0:
                counting.advance(10_000)
        owners = _owners(wanted, buckets)
        counts = dict.fromkeys(paths, 0)
        with _appearing(paths) as files:
            for pair in read_pairs(found):
                bucket = bucket_of(pair.src, seed)
                name = next((name for name, own in owners.items() if own[bucket]), "train")
                files[name].write(as_tsv(pair))
                counts[name] += 1
    return counts


def bucket_of(source: str, seed: int) -> int:
    """Return the bucket of a source: the same for sources that count as equal."""
    key = comparison_key(source).encode("utf-8")
    digest = hashlib.blake2b(key, digest_size=8, salt=str(seed).encode()[:16]).digest()
    return int.from_bytes(digest, "little") % BUCKETS


class Size:
    """How large a part is to be: a number of pairs, or a share of all.

    Raises:
        UsageError: if it is neither.
    """

    def __init__(self, name: str, text: str) -> None:
        found = re.fullmatch(r"(\d{1,15}(?:\.\d{1,15})?)(%?)", text.strip())
        if not found or (not found[2] and "." in found[1]):
            raise UsageError(f'--{name} {text}: must be a number of pairs or a share such as "10%"')
        self.number, self.is_share = float(found[1]), bool(found[2])

    def of(self, total: int) -> int:
        """Return the number of pairs that is meant, at least one."""
        return max(1, round(self.number / 100 * total if self.is_share else self.number))


def _owners(
    wanted: dict[str, Size], buckets: npt.NDArray[np.int64]
) -> dict[str, npt.NDArray[np.bool_]]:
    """Say which buckets each part takes: the first that fit in, until its size is reached.

    Raises:
        UsageError: if there is too little to divide.
    """
    total = int(buckets.sum())
    sizes = {name: size.of(total) for name, size in wanted.items()}
    parts = " and ".join(f"{size:,} in {name}" for name, size in sizes.items())
    if sum(sizes.values()) >= total:
        raise UsageError(f"there are {total:,} pairs, too few for {parts} and some to train on")
    free = buckets.copy()
    owners = {name: np.zeros(len(buckets), bool) for name in sizes}
    for name, missing in sizes.items():
        for bucket in np.flatnonzero(free):
            if free[bucket] <= missing:
                owners[name][bucket] = True
                missing -= int(free[bucket])
                if not missing:
                    break
        free[owners[name]] = 0
        left = np.flatnonzero(free)
        if missing and len(left):
            smallest = left[np.argmin(free[left])]
            nearer = len(left) > 1 and free[smallest] < 2 * missing
            if nearer or not owners[name].any():
                owners[name][smallest] = True
                free[smallest] = 0
        if not free.any():
            raise UsageError(
                f"the {total:,} pairs have {np.count_nonzero(buckets):,} different sources, too "
                f"few for {parts} and some to train on"
            )
    return owners


def sample(sources: Sequence[Source], count: int, seed: int) -> list[Pair]:
    """Return so many pairs drawn at random, in the order of the files."""
    draw = np.random.default_rng(seed)
    chosen: list[tuple[float, int, Pair]] = []
    for number, pair in enumerate(read_pairs(sources)):
        rank = -float(draw.random())
        if len(chosen) < count:
            heapq.heappush(chosen, (rank, number, pair))
        elif chosen and rank > chosen[0][0]:
            heapq.heapreplace(chosen, (rank, number, pair))
    return [pair for _, _, pair in sorted(chosen, key=lambda entry: entry[1])]


@contextmanager
def rereadable(sources: Sequence[Source]) -> Iterator[list[Source]]:
    """Give sources that can be read more than once: standard input is copied to disk.

    Raises:
        UsageError: if more than one file is to come from there.
    """
    piped = [path for source in sources for path in paths_of(source)].count(STDIN)
    if piped > 1:
        raise UsageError("only one file can come from standard input")
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "stdin"
        if piped:
            with open_bytes(STDIN) as file, open(copy, "wb") as target:
                shutil.copyfileobj(file, target, BUFFER)
        yield [from_copy(source, copy) for source in sources]


@contextmanager
def _appearing(paths: Mapping[str, Path]) -> Iterator[dict[str, IO[str]]]:
    """Open text files that appear at their places together, when all are complete."""
    beside = {name: path.with_name(f".{path.name}.part") for name, path in paths.items()}
    placed: list[Path] = []
    try:
        with ExitStack() as stack:
            files: dict[str, IO[str]] = {}
            for name, path in beside.items():
                path.parent.mkdir(parents=True, exist_ok=True)
                files[name] = stack.enter_context(open(path, "w", encoding="utf-8", newline="\n"))
            yield files
        for name, path in paths.items():
            os.replace(beside[name], path)
            placed.append(path)
    except OSError as error:
        for path in placed:
            path.unlink(missing_ok=True)
        folder = next(iter(paths.values())).parent
        raise TransduceError(f"cannot write to {folder}: {error.strerror}") from None
    finally:
        for path in beside.values():
            with suppress(OSError):
                path.unlink(missing_ok=True)
