"""Batches: every pair once, budgets kept, and an order that depends on seed and epoch alone."""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transduce.config import BOS, EOS, PAD
from transduce.data import batches
from transduce.data import corpus as corpus_module
from transduce.data.batches import (
    START,
    Epochs,
    Group,
    Place,
    collate,
    divide,
    epoch_stretches,
    padded,
    windows,
)
from transduce.data.corpus import SCHEMA, Encoded, Origin

Lengths = Sequence[tuple[int, int]]
LENGTHS = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), min_size=1, max_size=80)
ROWS = 5


def encoded(folder: Path, origins: Sequence[Lengths], weights: Sequence[float] = ()) -> Encoded:
    """Write pairs of given lengths, in shards of at most 13; the first id of each is its index."""
    shards: list[dict[str, Any]] = []
    index = 0
    for source, lengths in enumerate(origins):
        for first in range(0, max(1, len(lengths)), 13):
            table: dict[str, list[Any]] = {name: [] for name in SCHEMA.names}
            for src, tgt in lengths[first : first + 13]:
                table["src"].append([index] + [4] * (src - 1))
                table["tgt"].append([index] + [5] * (tgt - 1))
                table["src_text"].append(f"s{index}")
                table["tgt_text"].append(f"t{index}")
                table["line"].append(index + 1)
                index += 1
            path = folder / f"train-{len(shards):05}.arrow"
            with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, SCHEMA) as writer:
                writer.write_table(pa.table(table, schema=SCHEMA), max_chunksize=ROWS)
            shards.append(
                {"file": path.name, "rows": len(table["line"]), "bytes": path.stat().st_size,
                 "source": source}
            )  # fmt: skip
    return Encoded(folder, shards, list(weights) or [1.0] * len(origins))


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make several windows and many stretches of a few dozen pairs."""
    monkeypatch.setattr(corpus_module, "ROWS", ROWS)
    monkeypatch.setattr(batches, "STRETCH", 4)
    monkeypatch.setattr(batches, "WINDOW", 15)
    monkeypatch.setattr(batches, "SAMPLED_WINDOW", 10)


def taken(groups: Iterator[Group] | Sequence[Group]) -> list[list[int]]:
    """Return the indices of each batch, and check that the ids are those of the pairs."""
    found = []
    for group in groups:
        for ids, indices in zip(group.batches, group.indices, strict=True):
            assert [pair[0][0] for pair in ids] == indices.tolist()
            assert [pair[1][0] for pair in ids] == indices.tolist()
            found.append(indices.tolist())
    return found


def flat(found: list[list[int]]) -> list[int]:
    return [index for batch in found for index in batch]


def within_budget(lengths: Lengths, tokens: int) -> bool:
    src, tgt = max(s for s, _ in lengths) + 1, max(t for _, t in lengths) + 1
    return len(lengths) == 1 or (tgt * len(lengths) <= tokens and src * len(lengths) <= 2 * tokens)


@settings(max_examples=60, deadline=None)
@given(LENGTHS, st.integers(1, 300), st.integers(0, 5), st.integers(0, 5))
def test_every_pair_once_within_the_budget(
    tmp_path_factory: pytest.TempPathFactory, lengths: Lengths, tokens: int, seed: int, epoch: int
) -> None:
    """However many processes there are, and micro-batches in an update."""
    pairs = encoded(tmp_path_factory.mktemp("pairs"), [lengths])
    epochs = Epochs(pairs, tokens, seed)
    alone = taken(epochs.groups(epoch))
    assert sorted(flat(alone)) == list(range(len(lengths)))
    assert all(within_budget([lengths[i] for i in batch], tokens) for batch in alone)
    for ranks in (1, 2, 3, 7):
        for size in (1, 2, 3):
            each = [list(epochs.groups(epoch, START, size, rank, ranks)) for rank in range(ranks)]
            together = [batch for groups in each for batch in taken(groups)]
            assert sorted(together) == sorted(alone)
            assert len({len(groups) for groups in each}) == 1
            for groups in zip(*each, strict=True):
                assert len({group.after for group in groups}) == 1
                # The group's batches are the next size * ranks of the one order.
                of_all = Counter(tuple(b) for group in groups for b in taken([group]))
                expected, alone_left = alone[: size * ranks], alone[size * ranks :]
                assert of_all == Counter(map(tuple, expected))
                alone = alone_left
            counts = [len(group.batches) for groups in each for group in groups[:-1]]
            assert set(counts) <= {size}
            alone = taken(epochs.groups(epoch))


@settings(max_examples=40, deadline=None)
@given(LENGTHS, st.integers(1, 120), st.integers(1, 3), st.integers(1, 3), st.data())
def test_any_place_leads_on_the_same_way(
    tmp_path_factory: pytest.TempPathFactory,
    lengths: Lengths,
    tokens: int,
    size: int,
    ranks: int,
    data: st.DataObject,
) -> None:
    folder = tmp_path_factory.mktemp("pairs")
    rank = data.draw(st.integers(0, ranks - 1))
    groups = list(Epochs(encoded(folder, [lengths]), tokens, 3).groups(2, START, size, rank, ranks))
    places = [START, *(group.after for group in groups)]
    assert len(set(places)) == len(places)
    for done, place in enumerate(places):
        again = Epochs(encoded(folder, [lengths]), tokens, 3)  # as in a new process
        left = list(again.groups(2, place, size, rank, ranks))
        assert [group.after for group in left] == [group.after for group in groups[done:]]
        assert taken(left) == taken(groups[done:])
        assert [len(group.batches) for group in left] == [len(g.batches) for g in groups[done:]]


def test_windows_are_gone_through(tmp_path: Path) -> None:
    """The test of places is about several windows, with several batches each."""
    groups = list(Epochs(encoded(tmp_path, [[(3, 3)] * 60]), 20, 1).groups(0))
    assert {group.after.window for group in groups} == {0, 1, 2, 3}
    assert max(group.after.batch for group in groups) > 2


def order(pairs: Encoded, seed: int, epoch: int) -> list[int]:
    return flat(taken(Epochs(pairs, 40, seed).groups(epoch)))


def test_the_order_depends_on_seed_and_epoch_alone(tmp_path: Path) -> None:
    pairs = encoded(tmp_path, [[(3, 3)] * 100])
    first = order(pairs, 1, 0)
    assert first == order(pairs, 1, 0) == order(encoded(tmp_path, [[(3, 3)] * 100]), 1, 0)
    others = [order(pairs, 1, 1), order(pairs, 2, 0), order(pairs, 0, 0), order(pairs, 0, 1)]
    assert all(first != other for other in others)
    assert len({tuple(other) for other in others}) == 4
    assert first != sorted(first)


@settings(max_examples=40, deadline=None)
@given(LENGTHS, st.integers(1, 300), st.integers(0, 5))
def test_divide(lengths: Lengths, tokens: int, seed: int) -> None:
    src, tgt = (np.array(side, dtype=np.int32) for side in zip(*lengths, strict=True))
    divided = divide(src, tgt, tokens, np.random.default_rng(seed))
    assert sorted(np.concatenate(divided).tolist()) == list(range(len(lengths)))
    assert all(within_budget([lengths[i] for i in batch], tokens) for batch in divided)
    again = divide(src, tgt, tokens, np.random.default_rng(seed))
    assert [i.tolist() for i in divided] == [i.tolist() for i in again]


def test_the_budget_is_used_up_to_the_last_token() -> None:
    """Targets of 3 and END: 4 tokens each, and sources may have twice as many."""
    three, seven = np.full(10, 3, np.int32), np.full(10, 7, np.int32)

    def sizes(src: npt.NDArray[np.int32], tokens: int) -> list[int]:
        return sorted(map(len, divide(src, three, tokens, np.random.default_rng(0))))

    assert sizes(three, 20) == [5, 5]
    assert sizes(three, 19) == [2, 4, 4]
    assert sizes(seven, 20) == [5, 5]
    assert sizes(seven + 1, 20) == [2, 4, 4]
    assert sizes(three, 1) == [1] * 10
    assert sizes(three, 40) == [10]


def test_nothing_to_divide() -> None:
    nothing = np.zeros(0, np.int32)
    assert divide(nothing, nothing, 10, np.random.default_rng(0)) == []


@pytest.mark.parametrize("huge", [(1000, 2), (2, 1000), (1000, 1000)])
def test_one_huge_pair_makes_a_batch_of_its_own(tmp_path: Path, huge: tuple[int, int]) -> None:
    lengths = [(3, 3)] * 20 + [huge] + [(3, 3)] * 20
    found = taken(Epochs(encoded(tmp_path, [lengths]), 40, 1).groups(0))
    assert [batch for batch in found if 20 in batch] == [[20]]
    assert sorted(flat(found)) == list(range(41))
    assert all(within_budget([lengths[i] for i in batch], 40) for batch in found)


def test_hardly_any_padding() -> None:
    draw = np.random.default_rng(0)
    tgt = draw.integers(3, 30, 20_000).astype(np.int32)
    src = np.maximum(1, tgt + draw.integers(-3, 4, 20_000)).astype(np.int32)
    divided = divide(src, tgt, 2048, np.random.default_rng(1))
    padded = sum((tgt[i].max() + 1) * len(i) for i in divided)
    assert (tgt + 1).sum() / padded > 0.98


def test_hardly_any_padding_in_an_epoch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same where the pairs come in windows of their usual size."""
    for name, value in (("STRETCH", 500), ("WINDOW", 200_000)):
        monkeypatch.setattr(batches, name, value)
    draw = np.random.default_rng(0)
    tgt = draw.integers(3, 30, 20_000)
    src = np.maximum(1, tgt + draw.integers(-3, 4, 20_000))
    monkeypatch.setattr(corpus_module, "ROWS", 20_000)
    pairs = Synthetic(src.astype(np.int32), tgt.astype(np.int32))
    padded = real = 0
    for group in Epochs(pairs, 2048, 1).groups(0):
        (chosen,) = group.indices
        padded += int((tgt[chosen].max() + 1) * len(chosen))
        real += int((tgt[chosen] + 1).sum())
    assert real == (tgt + 1).sum()
    assert real / padded > 0.98


def test_like_lengths_meet_other_pairs_in_other_epochs(tmp_path: Path) -> None:
    """Sorted by length, but who stands beside whom is drawn."""
    pairs = encoded(tmp_path, [[(3, 3)] * 15])
    together = [
        {frozenset(batch) for batch in taken(Epochs(pairs, 12, 1).groups(epoch))}
        for epoch in range(3)
    ]
    assert not together[0] & together[1] & together[2]


# --- origins -------------------------------------------------------------------------------------


def counts(stretches: Sequence[tuple[int, int]]) -> Counter[int]:
    return Counter(index for first, end in stretches for index in range(first, end))


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 30), min_size=1, max_size=4), st.integers(0, 9), st.integers(0, 9))
def test_stretches_take_every_pair_once(sizes: list[int], seed: int, epoch: int) -> None:
    ends = np.cumsum(sizes).tolist()
    origins = [Origin(end - size, end, 1.0) for size, end in zip(sizes, ends, strict=True)]
    stretches = epoch_stretches(origins, 1.0, seed, epoch)
    assert counts(stretches) == Counter(range(ends[-1]))
    assert all(0 < end - first <= 4 for first, end in stretches)
    assert stretches == epoch_stretches(origins, 1.0, seed, epoch)


@pytest.mark.parametrize("epoch", [0, 1, 5])
def test_weight_two_takes_each_pair_twice(epoch: int) -> None:
    origins = [Origin(0, 10, 2.0), Origin(10, 25, 1.0)]
    found = counts(epoch_stretches(origins, 1.0, 1, epoch))
    assert found == Counter({**dict.fromkeys(range(10), 2), **dict.fromkeys(range(10, 25), 1)})


@pytest.mark.parametrize("size", [1, 2, 3, 10, 11, 33])
@pytest.mark.parametrize(("weight", "epochs"), [(0.5, 2), (0.25, 4), (1.5, 2), (2.25, 4)])
def test_fractions_of_an_epoch(size: int, weight: float, epochs: int) -> None:
    """0.5: each pair in every other epoch; 1.5: three times in two epochs, and so on."""
    origins = [Origin(0, 7, 1.0), Origin(7, 7 + size, weight)]
    for start in (0, epochs, 5 * epochs):
        total: Counter[int] = Counter()
        for epoch in range(start, start + epochs):
            found = counts(epoch_stretches(origins, 1.0, 3, epoch))
            own = sum(count for index, count in found.items() if index >= 7)
            assert abs(own - weight * size) < 1
            assert all(found[index] == 1 for index in range(7))
            assert all(count <= np.ceil(weight) for count in found.values())
            total += found
        assert {total[index] for index in range(7, 7 + size)} == {int(weight * epochs)}


def test_weights_hold_for_batches_too(tmp_path: Path) -> None:
    """Over two epochs: 2 gives four times, 0.5 once; batches of all origins together."""
    pairs = encoded(
        tmp_path, [[(2, 2)] * 20, [], [(2, 2)] * 15, [(3, 3)] * 30], [2.0, 9.0, 0.5, 1.0]
    )
    epochs = Epochs(pairs, 60, 1)
    found = [taken(epochs.groups(epoch)) for epoch in (0, 1)]
    total = Counter(flat(found[0]) + flat(found[1]))
    assert total == Counter(
        dict.fromkeys(range(20), 4)
        | dict.fromkeys(range(20, 35), 1)
        | dict.fromkeys(range(35, 65), 2)
    )
    assert any(len({(i >= 20) + (i >= 35) for i in batch}) > 1 for batch in found[0])


def test_temperature_by_hand() -> None:
    """100 and 4 pairs at temperature 2: shares 10 : 2 of 104 pairs, 86.67 and 17.33."""
    origins = [Origin(0, 100, 1.0), Origin(100, 104, 1.0)]
    takes = [counts(epoch_stretches(origins, 2.0, 1, epoch)) for epoch in range(3)]
    small = [sum(found[i] for i in range(100, 104)) for found in takes]
    large = [sum(found[i] for i in range(100)) for found in takes]
    assert sum(small) == 52 and all(abs(count - 17.33) < 1 for count in small)
    assert sum(large) == 260 and all(abs(count - 86.67) < 1 for count in large)
    total = takes[0] + takes[1] + takes[2]
    assert {total[i] for i in range(100, 104)} == {13}
    assert {total[i] for i in range(100)} == {2, 3}


def test_temperature_leaves_one_origin_and_equal_ones_alone() -> None:
    for origins in ([Origin(0, 30, 1.0)], [Origin(0, 30, 1.0), Origin(30, 60, 1.0)]):
        found = counts(epoch_stretches(origins, 3.0, 1, 0))
        assert abs(found.total() - origins[-1].end) <= 1


def test_temperature_with_weights_and_an_empty_origin() -> None:
    """Weights multiply the shares; an origin without pairs gets none."""
    origins = [Origin(0, 100, 1.0), Origin(100, 100, 5.0), Origin(100, 104, 3.0)]
    small = sum(
        count
        for epoch in range(3)
        for index, count in counts(epoch_stretches(origins, 2.0, 1, epoch)).items()
        if index >= 100
    )
    assert small in (155, 156)


def test_no_pairs_at_all(tmp_path: Path) -> None:
    assert list(Epochs(encoded(tmp_path, [[]]), 10, 1).groups(0)) == []
    assert epoch_stretches([], 2.0, 1, 0) == []


def test_windows() -> None:
    stretches = [(0, 4), (9, 13), (4, 8), (20, 21)]
    assert list(windows(stretches, 8)) == [stretches[:2], stretches[2:]]
    assert list(windows(stretches, 5)) == [stretches[:2], stretches[2:]]
    assert list(windows(stretches, 1)) == [[one] for one in stretches]
    assert list(windows(stretches, 100)) == [stretches]
    assert list(windows([], 5)) == []


# --- sampling ------------------------------------------------------------------------------------


def ids_of(group: Group) -> list[tuple[list[int], list[int]]]:
    return [(list(src), list(tgt)) for ids in group.batches for src, tgt in ids]


def test_lengths_are_those_of_the_sampled_ids(tmp_path: Path) -> None:
    """Here sampling makes pairs much longer, by other amounts in each window and epoch."""
    pairs = encoded(tmp_path, [[(2, 2)] * 32])
    asked: list[tuple[list[int], int]] = []

    def sample(
        indices: npt.NDArray[np.int64], seed: int
    ) -> list[tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]]:
        asked.append((indices.tolist(), seed))
        draw = np.random.default_rng(seed)
        return [
            (
                np.array([i] + [6] * int(draw.integers(0, 9)), np.int32),
                np.array([i] + [7] * int(draw.integers(0, 30)), np.int32),
            )
            for i in indices
        ]

    epochs = Epochs(pairs, 60, 1, sample=sample)
    seeds = []
    for epoch in (0, 1):
        asked.clear()
        groups = list(epochs.groups(epoch))
        assert sorted(flat(taken(groups))) == list(range(32))
        for group in groups:
            (ids,) = group.batches
            assert within_budget([(len(src), len(tgt)) for src, tgt in ids], 60)
        assert [len(indices) for indices, _ in asked] == [12, 12, 8]  # stretches of 4
        seeds += [seed for _, seed in asked]
        again = list(epochs.groups(epoch))
        assert [ids_of(group) for group in again] == [ids_of(group) for group in groups]
    assert len(set(seeds)) == 6
    assert any(len(tgt) > 2 for group in groups for _, tgt in ids_of(group))


def test_going_on_samples_only_what_is_left(tmp_path: Path) -> None:
    pairs = encoded(tmp_path, [[(2, 2)] * 32])
    asked = []

    def sample(indices: npt.NDArray[np.int64], seed: int) -> list[Any]:
        asked.append(len(indices))
        return [pairs[int(i)] for i in indices]

    epochs = Epochs(pairs, 12, 1, sample=sample)
    whole = list(epochs.groups(0))
    place = next(group.after for group in whole if group.after.window == 1)
    asked.clear()
    left = list(epochs.groups(0, place))
    assert asked == [12, 8]
    assert taken(left) == taken(whole[-len(left) :])


# --- memory --------------------------------------------------------------------------------------


class Synthetic(Encoded):
    """Lengths of pairs without files behind them."""

    def __init__(self, src: npt.NDArray[np.int32], tgt: npt.NDArray[np.int32]) -> None:
        self.src, self.tgt = src, tgt
        self.starts = [0, len(src)]
        self.origins = [Origin(0, len(src), 1.0)]
        self.asked = self.closed = self.read = 0

    def lengths(self, first: int, end: int) -> tuple[Any, Any]:
        self.asked += end - first
        return self.src[first:end], self.tgt[first:end]

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        self.read += 1
        return np.full(self.src[index], 4), np.full(self.tgt[index], 5)

    def close(self) -> None:
        self.closed += 1


def test_no_more_than_a_window_at_a_time() -> None:
    """Lengths and ids are read when their window, or batch, comes, and only by their process."""
    pairs = Synthetic(np.full(152, 3, np.int32), np.full(152, 3, np.int32))
    groups = Epochs(pairs, 20, 1).groups(0, rank=1, ranks=2)
    for done, group in enumerate(groups, start=1):
        assert pairs.asked <= 16 * (group.after.window + 1)
        assert pairs.closed == group.after.window + 1
        assert pairs.read <= 5 * done
    assert pairs.asked == 152
    assert group.after.window == 9


def test_a_later_place_reads_no_earlier_window() -> None:
    pairs = Synthetic(np.full(152, 3, np.int32), np.full(152, 3, np.int32))
    list(Epochs(pairs, 20, 1).groups(0, Place(9, 0)))
    assert pairs.asked == pairs.read == 152 - 9 * 16


# --- tensors -------------------------------------------------------------------------------------


def test_begin_and_end() -> None:
    """A27: decoder input BEGIN 7 8, labels 7 8 END; sources end with END."""
    batch = collate([([5], [7, 8]), (np.array([5, 6], dtype=np.int32), [9])])
    assert batch.src.tolist() == [[5, EOS, PAD], [5, 6, EOS]]
    assert batch.tgt_in.tolist() == [[BOS, 7, 8], [BOS, 9, PAD]]
    assert batch.tgt_out.tolist() == [[7, 8, EOS], [9, EOS, PAD]]


def test_an_empty_target_still_has_end() -> None:
    assert collate([([5], [])]).tgt_out.tolist() == [[EOS]]


@pytest.mark.parametrize("begin", [False, True])
@pytest.mark.parametrize("end", [False, True])
def test_padded(begin: bool, end: bool) -> None:
    rows: list[list[int]] = [[4, 5, 6], [], [7]]
    expected = [[BOS] * begin + row + [EOS] * end for row in rows]
    width = 3 + begin + end
    assert padded(rows, begin, end).tolist() == [
        row + [PAD] * (width - len(row)) for row in expected
    ]
