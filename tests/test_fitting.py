"""Activations by measure, batches that fit, and what cannot fit."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import letters_recipe, small_config
from transduce import fitting
from transduce.assembly import first_start
from transduce.config import Config, Settings, merge, overlay, parse
from transduce.data.batches import divide
from transduce.data.corpus import Corpus
from transduce.errors import TransduceError
from transduce.experiment import price, train
from transduce.fitting import Needs, fewest, kept_bytes, memory_needed, needs, polynomial, terms
from transduce.model import Transformer
from transduce.model_folder import load_config
from transduce.training.gradients import products_in
from transduce.training.loss import projected_loss

CPU = torch.device("cpu")


@pytest.fixture
def recipe(tmp_path: Path) -> Settings:
    return letters_recipe(tmp_path, steps=10, every=4)


# What is kept for the backward pass


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "model",
    [
        {},
        {"norm_place": "pre", "attention_dropout": 0.1, "activation_dropout": 0.1},
        {"P_drop": 0.0, "N_decoder": 1, "joint_vocabulary": False},
    ],
    ids=str,
)
@pytest.mark.parametrize("shape", [(40, 30, 25), (1, 200, 150), (7, 20, 90)], ids=str)
def test_small_batches_tell_what_a_large_one_keeps(
    precision: str, model: Settings, shape: tuple[int, int, int]
) -> None:
    config = small_config(**model)
    training = config.training.model_copy(update={"precision": precision})
    transformer = Transformer(config.model).train()
    estimate = float(terms(*np.array([shape]).T)[0] @ polynomial(transformer, training))
    assert estimate == pytest.approx(kept_bytes(transformer, training, *shape), rel=0.05)


def test_what_is_kept_is_what_autograd_saves() -> None:
    """Without dropout, whose masks are no saved tensors, two ways of counting agree."""
    config = small_config(P_drop=0.0)
    model = Transformer(config.model).train()
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    saved: dict[int, int] = {}

    def save(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    src, tgt = torch.full((12, 20), 5), torch.full((12, 25), 5)
    with (
        torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor),
        products_in("float32", CPU),
    ):
        loss = projected_loss(model.states(src, tgt), model.output.weight, tgt)
        expected = sum(size for start, size in saved.items() if start not in own)
    assert torch.isfinite(loss.sum)
    training = config.training.model_copy(update={"precision": "float32"})
    assert kept_bytes(model, training, 12, 20, 25) == pytest.approx(expected, rel=0.1)
    masks = kept_bytes(Transformer(small_config().model).train(), training, 12, 20, 25) - expected
    sublayers = 2 * 2 * 20 + 2 * 3 * 25 + 20 + 25  # positions with a mask of d_model numbers each
    assert masks == pytest.approx(12 * sublayers * 32 * 4, rel=0.25)


LENGTHS = st.lists(st.tuples(st.integers(1, 60), st.integers(1, 60)), min_size=1, max_size=60)


@settings(deadline=None)
@given(LENGTHS, st.integers(20, 400))
def test_no_batch_is_larger_than_the_largest(pairs: list[tuple[int, int]], tokens: int) -> None:
    src, tgt = np.array(pairs, np.int32).T
    kept = np.array([0.0, 3.0, 5.0, 0.2, 0.3, 0.4, 0.1])
    found = Needs(0, 0, int(src.max()) + 1, int(tgt.max()) + 1, kept, 1)
    for batch in divide(src, tgt, tokens, np.random.default_rng(1)):
        longest = src[batch].max() + 1, tgt[batch].max() + 1
        one = terms(*np.array([[len(batch), *longest]]).T)[0] @ kept
        assert one <= found.memory(tokens, 1, 1).batch + 1


# Batches that fit


@settings(deadline=None)
@given(st.integers(1, 5000), st.floats(1e5, 1e9))
def test_no_more_micro_batches_than_needed(tokens: int, machine: float) -> None:
    kept = np.array([1e4, 3e3, 5e3, 2.0, 3.0, 4.0, 1.0])
    found = Needs(1000, 50, 30, 40, kept, int(machine))
    count = fewest(found, tokens, lambda count: 1)
    room = 0.6 * int(machine)
    if count > 1:
        assert found.memory(tokens, count - 1, 1).total > room
    if count < max(1, tokens // 40):
        assert found.memory(tokens, count, 1).total <= room


def machine_for(config: Config, corpus: Corpus, count: int) -> int:
    """Return the bytes of a machine on which an update needs so many micro-batches."""
    training = config.training
    need = needs(config, corpus, CPU).memory(training.tokens, count, training.workers)
    return int(need.total / fitting.SHARE) + 1


def test_batches_are_cut_to_fit(
    recipe: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = merge(recipe, {"training": {"tokens": 4000, "workers": 1}})
    said: list[str] = []
    config, corpus = first_start(overlay(recipe), tmp_path / "large", said.append)
    assert config.training.accumulation == 1
    assert not any("accumulation" in line for line in said)
    fits_in = machine_for(config, corpus, 3)
    monkeypatch.setattr(fitting, "memory_of", lambda device: fits_in)
    for name in ("small", "again"):
        cut, _ = first_start(overlay(recipe), tmp_path / name, said.append)
        assert cut.training.accumulation == 3
        assert cut.training.tokens == 4000
    assert any(
        line.startswith("chosen: accumulation 3: at once, a batch of 4,000") for line in said
    )
    asked = merge(recipe, {"training": {"accumulation": 2}})
    cut, _ = first_start(overlay(asked), tmp_path / "asked", said.append)
    assert cut.training.accumulation == 2
    train(recipe, tmp_path / "run")
    assert load_config(tmp_path / "run").training.accumulation == 3


def test_auto_is_as_good_as_nothing_said(recipe: Settings, tmp_path: Path) -> None:
    del recipe["training"]["tokens"]
    auto = merge(recipe, {"training": {"tokens": "auto"}})
    first, second, third = (
        first_start(user, tmp_path / "run", lambda line: None)[0]
        for user in (
            overlay(recipe),
            overlay(auto),
            overlay(merge(recipe, {"training": {"tokens": 7}}), ["training.tokens=auto"]),
        )
    )
    assert first == second == third
    assert first.training.tokens == 512  # of few pairs, at least so many


def test_parts_side_by_side_need_memory_of_their_own() -> None:
    found = Needs(1000, 50, 30, 40, np.array([1e4, 3e3, 5e3, 2.0, 3.0, 4.0, 1.0]), 10**9)
    one, two, cut = (found.memory(4000, *division).batch for division in ((1, 1), (1, 2), (2, 1)))
    assert two == one + 4 * 1000 + 10_000 + 8 * 1024 * 50
    assert cut < 0.6 * one


def test_what_cannot_fit_is_refused_with_a_remedy(
    recipe: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = merge(recipe, {"training": {"tokens": 4000, "workers": 1, "accumulation": 1}})
    config, corpus = first_start(overlay(recipe), tmp_path / "run", lambda line: None)
    whole = memory_needed(config, corpus)
    assert whole.total == whole.model + whole.batch <= whole.machine
    fits_in = machine_for(config, corpus, 5)
    monkeypatch.setattr(fitting, "memory_of", lambda device: fits_in)
    with pytest.raises(TransduceError, match=r"set training\.accumulation = 5,") as raised:
        price(recipe, tmp_path / "run")
    assert raised.value.status == 1
    changes = {"training": {"accumulation": 5}}
    memory_needed(parse(merge(config.model_dump(), changes), "test"), corpus)
    monkeypatch.setattr(fitting, "memory_of", lambda device: whole.model + 1000)
    with pytest.raises(TransduceError, match=r"\[model\] smaller, or leave long pairs out"):
        memory_needed(config, corpus)
    monkeypatch.setattr(fitting, "memory_of", lambda device: whole.model - 1)
    with pytest.raises(TransduceError, match="smaller preset"):
        memory_needed(config, corpus)
