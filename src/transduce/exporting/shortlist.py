"""A shortlist: which target pieces may come out, given the pieces of a source.

At every step of a search the output layer has a row to multiply for each piece of the vocabulary,
of which nearly all have nothing to do with the source. A shortlist allows, for each source piece,
the target pieces that stand for it most often, and those that come everywhere. Which ones they are
is learnt from pairs by the oldest of the statistical models: IBM model 1, "The Mathematics of
Statistical Machine Translation" (Brown et al., 1993, section 4.3).
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from transduce.config import EOS, PAD
from transduce.data.corpus import Ids
from transduce.errors import TransduceError, UsageError
from transduce.model_folder import read_tensors, write_tensors

FILE = "shortlist.safetensors"
"""Its name in a model folder."""
LINKS = 20_000_000
"""Pairs of a source and a target piece in one sentence pair, of all that are learnt from at once:
about a GiB. More pairs are taken in parts, whose counts are added up."""
ITERATIONS = 5
RARE = 1e-3
"""A target piece that stands for a source piece less often than this is not among its own."""
Keys = npt.NDArray[np.int64]
Counts = npt.NDArray[np.float64]
Pair = tuple[Sequence[int], Sequence[int]]


@dataclass(frozen=True)
class Shortlist:
    """Target pieces by source piece, as ids."""

    always: Ids
    """Those that are always allowed."""
    candidates: Ids
    """[source vocabulary, most]: those that each source piece allows, filled up with PAD."""

    def allowed(self, source: Sequence[int]) -> frozenset[int]:
        """Return the target pieces that a source allows."""
        own = self.candidates[list(source)].ravel()
        return frozenset(self.always.tolist()) | frozenset(own[own != PAD].tolist())

    def mapping(self, source: Sequence[str], target: Sequence[str]) -> str:
        """Return it as CTranslate2 reads it: a line for each source piece, the first for any."""
        lines = ["\t" + " ".join(target[id_] for id_ in self.always)]
        for piece, own in zip(source, self.candidates, strict=True):
            if some := [target[id_] for id_ in own if id_ != PAD]:
                lines.append(f"{piece}\t{' '.join(some)}")
        return "\n".join(lines) + "\n"

    def save(self, folder: Path) -> None:
        """Write it into a model folder."""
        tensors = {
            "always": torch.from_numpy(self.always),
            "candidates": torch.from_numpy(self.candidates),
        }
        write_tensors(folder / FILE, tensors)


def load_shortlist(folder: Path, source: Sequence[str], target: Sequence[str]) -> Shortlist:
    """Read the shortlist of a model folder whose pieces are these.

    Raises:
        TransduceError: if it cannot be read, or is another vocabulary's.
    """
    path = folder / FILE
    tensors = read_tensors(path)
    always, candidates = tensors.get("always"), tensors.get("candidates")
    for ids, axes in ((always, 1), (candidates, 2)):
        if ids is None or ids.dtype != torch.int32 or ids.dim() != axes:
            raise TransduceError(f"{path} is no shortlist")
        if ids.numel() and not 0 <= int(ids.min()) <= int(ids.max()) < len(target):
            raise TransduceError(f"{path} is the shortlist of another vocabulary")
    assert always is not None and candidates is not None
    if len(candidates) != len(source):
        raise TransduceError(f"{path} is the shortlist of another vocabulary")
    return Shortlist(always.numpy(), candidates.numpy())


def learn(
    pairs: Iterable[Pair],
    source: Sequence[str],
    target: Sequence[str],
    each: int = 50,
    always: int = 100,
) -> Shortlist:
    """Learn a shortlist.

    Args:
        pairs: ids of source and target pieces, without BEGIN and END.
        source: the source's pieces. One that the target has, too, allows it: names are copied.
        target: the target's pieces.
        each: target pieces that a source piece allows, at most, beside itself.
        always: the most frequent target pieces, which are allowed everywhere.

    Raises:
        UsageError: if there is no pair, or a piece has a space in it, which the file that
            CTranslate2 reads cannot say.
    """
    for piece in (*source, *target):
        if piece.split() != [piece]:
            raise UsageError(f"no shortlist: the vocabulary has a piece {piece!r}, with a space")
    keys: Keys = np.zeros(0, np.int64)
    counts: Counts = np.zeros(0)
    seen = np.zeros(len(target), np.int64)
    for part in parts(pairs):
        its_keys, its_counts = expected_counts(part, len(target))
        together, place = np.unique(np.concatenate([keys, its_keys]), return_inverse=True)
        counts = sums(place, np.concatenate([counts, its_counts]), len(together))
        enough = counts > RARE
        keys, counts = together[enough], counts[enough]
        pieces = np.concatenate([np.asarray(tgt, np.int64) for _, tgt in part])
        seen += np.bincount(pieces, minlength=len(target))
    if not len(keys):
        raise UsageError("no shortlist: there is no pair to learn it from")
    src, tgt = np.divmod(keys, len(target))
    share = counts / sums(src, counts, len(source))[src]
    order = np.lexsort((tgt, -share, src))  # by source piece, the most probable first
    src, tgt, share = src[order], tgt[order], share[order]
    rank = np.arange(len(src)) - np.searchsorted(src, src)
    own = (rank < each) & (share >= RARE) & (tgt > EOS)  # END may always come, the others never
    candidates = np.full((len(source), each + 1), PAD, np.int32)
    candidates[src[own], rank[own]] = tgt[own]
    ids = {piece: id_ for id_, piece in enumerate(target)}
    candidates[EOS + 1 :, each] = [ids.get(piece, PAD) for piece in source[EOS + 1 :]]
    seen[: EOS + 1] = 0
    frequent = np.argsort(-seen, kind="stable")[:always]
    return Shortlist(frequent[seen[frequent] > 0].astype(np.int32), candidates)


def parts(pairs: Iterable[Pair]) -> Iterator[list[Pair]]:
    """Divide pairs into runs of at most LINKS links."""
    part: list[Pair] = []
    links = 0
    for src, tgt in pairs:
        more = (len(src) + 1) * len(tgt)
        if part and links + more > LINKS:
            yield part
            part, links = [], 0
        part.append((src, tgt))
        links += more
    if part:
        yield part


def expected_counts(pairs: Sequence[Pair], target: int) -> tuple[Keys, Counts]:
    """Return how often each target piece stands for each source piece, by IBM model 1.

    Each target piece comes from one piece of its source, or from none (PAD stands for that): from
    which one is a matter of probabilities t(target | source) alone. Expectation: the shares of the
    pieces of its source in it. Maximisation: t is what the shares add up to, divided by their sum.

    Args:
        pairs: ids of source and target pieces.
        target: size of the target's vocabulary.

    Returns:
        Keys, source id · size + target id, ascending; and the expected counts.
    """
    rows, widths = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for src, tgt in pairs:
        froms = np.array([PAD, *src], np.int64) * target
        rows.append((np.asarray(tgt, np.int64)[:, None] + froms).ravel())
        widths.append(np.full(len(tgt), len(froms), np.int64))
    links, width = np.concatenate(rows), np.concatenate(widths)
    keys, place = np.unique(links, return_inverse=True)
    if not len(keys):
        return keys, np.zeros(0)
    starts, source = np.cumsum(width) - width, keys // target
    t: Counts = np.ones(len(keys))
    counts = t
    for _ in range(ITERATIONS):
        share = t[place]
        share /= np.repeat(np.add.reduceat(share, starts), width)
        counts = sums(place, share, len(keys))
        t = counts / sums(source, counts)[source]
    return keys, counts


def sums(places: Keys, values: Counts, size: int = 0) -> Counts:
    """Return what the values at each place add up to."""
    return np.asarray(np.bincount(places, values, size), np.float64)
