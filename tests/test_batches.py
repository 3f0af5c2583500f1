"""Batches: every pair once, budgets kept, and an order that depends on seed and epoch alone."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from transduce.config import BOS, EOS, PAD
from transduce.data.batches import batches, collate

LENGTHS = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), min_size=1, max_size=80)


@given(LENGTHS, st.integers(1, 300), st.integers(0, 5), st.integers(0, 5))
def test_every_pair_once_within_the_budget(
    lengths: list[tuple[int, int]], tokens: int, seed: int, epoch: int
) -> None:
    src, tgt = (np.array(side, dtype=np.int32) for side in zip(*lengths, strict=True))
    divided = batches(src, tgt, tokens, seed, epoch)
    assert sorted(np.concatenate(divided).tolist()) == list(range(len(lengths)))
    for indices in divided:
        width = tgt[indices].max() + 1
        assert len(indices) == 1 or width * len(indices) <= tokens
        assert len(indices) == 1 or (src[indices].max() + 1) * len(indices) <= 2 * tokens
    again = batches(src, tgt, tokens, seed, epoch)
    assert [i.tolist() for i in divided] == [i.tolist() for i in again]


def test_each_epoch_has_its_own_order() -> None:
    lengths = np.full(100, 3, dtype=np.int32)
    orders = [np.concatenate(batches(lengths, lengths, 40, 1, epoch)).tolist() for epoch in (0, 1)]
    assert orders[0] != orders[1]
    assert orders[0] != np.concatenate(batches(lengths, lengths, 40, 2, 0)).tolist()


def test_hardly_any_padding() -> None:
    draw = np.random.default_rng(0)
    tgt = draw.integers(3, 30, 20_000).astype(np.int32)
    src = np.maximum(1, tgt + draw.integers(-3, 4, 20_000)).astype(np.int32)
    padded = sum((tgt[i].max() + 1) * len(i) for i in batches(src, tgt, 2048, 1, 0))
    assert (tgt + 1).sum() / padded > 0.98


def test_begin_and_end() -> None:
    """A27: decoder input BEGIN 7 8, labels 7 8 END; sources end with END."""
    batch = collate([([5], [7, 8]), (np.array([5, 6], dtype=np.int32), [9])])
    assert batch.src.tolist() == [[5, EOS, PAD], [5, 6, EOS]]
    assert batch.tgt_in.tolist() == [[BOS, 7, 8], [BOS, 9, PAD]]
    assert batch.tgt_out.tolist() == [[7, 8, EOS], [9, EOS, PAD]]


def test_an_empty_target_still_has_end() -> None:
    assert collate([([5], [])]).tgt_out.tolist() == [[EOS]]


@pytest.mark.parametrize("count", [0, 1])
def test_tiny_corpora(count: int) -> None:
    lengths = np.full(count, 3, dtype=np.int32)
    assert len(batches(lengths, lengths, 1, 1, 0)) == count
