"""What a run takes: activations by measure, batches that fit, and a price that leaves no trace."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from transduce import pricing
from transduce.assembly import first_start
from transduce.config import Config, Settings, merge, overlay, parse
from transduce.data.batches import divide
from transduce.data.corpus import Corpus
from transduce.errors import TransduceError
from transduce.experiment import price, train
from transduce.model import Transformer
from transduce.model_folder import load_config, read_tensors
from transduce.preparing import prepare_corpus
from transduce.pricing import (
    Memory,
    Needs,
    Price,
    Speed,
    duration,
    fewest,
    kept_bytes,
    memory_needed,
    needs,
    parts_of,
    polynomial,
    terms,
)
from transduce.training.gradients import products_in
from transduce.training.loss import projected_loss

CPU = torch.device("cpu")
ROWS = [f"{w}\t{' '.join(w.upper())}\n" for w in ("ab", "bc", "abc", "cab", "bca", "a", "b")]


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setattr(pricing, "SECONDS", 0.05)
    (tmp_path / "t.tsv").write_text("".join(ROWS * 5))
    return {
        "data": {"train": str(tmp_path / "t.tsv"), "valid": str(tmp_path / "t.tsv")},
        "tokenizer": {"joint": False, "source": {"kind": "char"}, "target": {"kind": "word"}},
        "model": {"N": 1, "d_model": 16, "d_ff": 16, "h": 2},
        "training": {"steps": 10, "tokens": 64, "checkpoint_every": 4, "validate_every": 4},
        "decoding": {"max_extra": 3},
    }


def small(**model: object) -> Config:
    sizes = {"N": 2, "d_model": 32, "d_ff": 64, "h": 4, "source_vocabulary": 90,
             "target_vocabulary": 90}  # fmt: skip
    return parse({"model": sizes | model}, "test")


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
    config = small(**model)
    training = config.training.model_copy(update={"precision": precision})
    transformer = Transformer(config.model).train()
    estimate = float(terms(*np.array([shape]).T)[0] @ polynomial(transformer, training))
    assert estimate == pytest.approx(kept_bytes(transformer, training, *shape), rel=0.05)


def test_what_is_kept_is_what_autograd_saves() -> None:
    """Without dropout, whose masks are no saved tensors, two ways of counting agree."""
    config = small(P_drop=0.0)
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
    masks = kept_bytes(Transformer(small().model).train(), training, 12, 20, 25) - expected
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
    return int(need.total / pricing.SHARE) + 1


def test_batches_are_cut_to_fit(
    recipe: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = merge(recipe, {"training": {"tokens": 4000, "workers": 1}})
    said: list[str] = []
    config, corpus = first_start(overlay(recipe), tmp_path / "large", said.append)
    assert config.training.accumulation == 1
    assert not any("accumulation" in line for line in said)
    fits_in = machine_for(config, corpus, 3)
    monkeypatch.setattr(pricing, "memory_of", lambda device: fits_in)
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
    assert first.training.tokens == 1024


def test_parts_side_by_side_need_memory_of_their_own() -> None:
    found = Needs(1000, 50, 30, 40, np.array([1e4, 3e3, 5e3, 2.0, 3.0, 4.0, 1.0]), 10**9)
    one, two, cut = (found.memory(4000, *division).batch for division in ((1, 1), (1, 2), (2, 1)))
    assert two == one + 4 * 1000 + 10_000 + 8 * 1024 * 50
    assert cut < 0.6 * one


# The price


def test_a_price_leaves_nothing_but_the_corpus(recipe: Settings, tmp_path: Path) -> None:
    said: list[str] = []
    found = price(recipe, tmp_path / "run", say=said.append)
    run = tmp_path / "run"
    assert {path.name for path in run.iterdir()} == {".lock", "corpus"}
    assert found.updates == 10
    assert found.validations == 3  # after 4, 8 and 10
    assert found.checkpoints == 3
    assert found.passes == pytest.approx(10 * found.speed.tokens / (5 * 22), rel=0.01)
    assert any(line.startswith("chosen: ") for line in said)
    said.clear()
    assert train(recipe, run, say=said.append) == "finished"
    assert any("using it" in line for line in said)
    train(recipe, tmp_path / "plain")
    last = "checkpoints/step-10/model.safetensors"
    ours, plain = read_tensors(run / last), read_tensors(tmp_path / "plain" / last)
    assert all(torch.equal(ours[name], plain[name]) for name in plain)


def test_a_price_of_what_is_left(recipe: Settings, tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(recipe, run)
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*") if path.name != ".lock"}
    whole = price(recipe, run, resume=True)
    assert (whole.updates, whole.validations) == (0, 0)
    said: list[str] = []
    more = price(recipe, run, True, ["training.steps=18"], said.append)
    assert (more.updates, more.validations) == (8, 3)  # after 12, 16 and 18
    assert "going on after update 10" in said
    assert before == {path: path.stat().st_mtime_ns for path in before}
    assert load_config(run).training.steps == 10


def test_a_price_of_a_prepared_corpus_leaves_nothing(recipe: Settings, tmp_path: Path) -> None:
    prepare_corpus(recipe, tmp_path / "corpus", lambda line: None)
    found = price(tmp_path / "corpus", tmp_path / "run")
    assert found.updates == 10
    assert not (tmp_path / "run").exists()


def test_minutes_are_priced_as_the_updates_they_are(recipe: Settings, tmp_path: Path) -> None:
    recipe["training"] |= {"minutes": 0.05}
    said: list[str] = []
    found = price(recipe, tmp_path / "run", say=said.append)
    assert any(f"{found.updates:,} updates in 0.05 minutes" in line for line in said)


def test_what_cannot_fit_is_refused_with_a_remedy(
    recipe: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = merge(recipe, {"training": {"tokens": 4000, "workers": 1, "accumulation": 1}})
    config, corpus = first_start(overlay(recipe), tmp_path / "run", lambda line: None)
    whole = memory_needed(config, corpus)
    assert whole.total == whole.model + whole.batch <= whole.machine
    fits_in = machine_for(config, corpus, 5)
    monkeypatch.setattr(pricing, "memory_of", lambda device: fits_in)
    with pytest.raises(TransduceError, match=r"set training\.accumulation = 5,") as raised:
        price(recipe, tmp_path / "run")
    assert raised.value.status == 1
    changes = {"training": {"accumulation": 5}}
    memory_needed(parse(merge(config.model_dump(), changes), "test"), corpus)
    monkeypatch.setattr(pricing, "memory_of", lambda device: whole.model + 1000)
    with pytest.raises(TransduceError, match=r"\[model\] smaller, or leave long pairs out"):
        memory_needed(config, corpus)
    monkeypatch.setattr(pricing, "memory_of", lambda device: whole.model - 1)
    with pytest.raises(TransduceError, match="smaller preset"):
        memory_needed(config, corpus)


@pytest.mark.parametrize("joint", [True, False])
@pytest.mark.parametrize("tie", [True, False])
@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
def test_the_parts_are_the_whole(joint: bool, tie: bool, positions: str) -> None:
    config = small(joint_vocabulary=joint, tie_embeddings=tie, positions=positions)
    model = Transformer(config.model)
    parts = parts_of(model)
    assert sum(parts.values()) == sum(p.numel() for p in model.parameters())
    assert parts["encoder"] == sum(p.numel() for p in model.encoder.parameters())
    assert ("output" in parts) == (not tie)
    table = 2 * 1024 * 32 if positions == "learned" else 0
    assert parts["embeddings"] == 90 * 32 * (1 if joint and tie else 2) + table


def test_the_price_in_words_and_as_data() -> None:
    parts = {"embeddings": 1_000_000, "encoder": 500_000}
    memory = Memory(24 * 10**6, 10**9, 4 << 30)
    found = Price(parts, memory, Speed(0.5, 1500.0), 7200, 12.0, 15, 24.0, 6)
    assert found.seconds == 3600 + 360
    assert found.disk == 4 * 1_500_000 * 19
    assert list(found.lines()) == [
        "parameters 1500000", "parameters_embeddings 1000000", "parameters_encoder 500000",
        "memory_MiB 977", "memory_model_MiB 23", "memory_batch_MiB 954", "memory_machine_MiB 4096",
        "updates 7200", "passes 12.0", "tokens_per_second 3000", "validations 15", "hours 1.10",
        "disk_MiB 109",
    ]  # fmt: skip
    text = "\n".join(found.sentences())
    assert "7,200 updates of 500 ms" in text
    assert "take 1 h 0 min; 15 validations of some 24 s each make it about 1 h 6 min" in text
    assert "0.93 for the largest batch" in text and "has 4.00" in text


def test_durations() -> None:
    assert [duration(s) for s in (0.03, 1.44, 42.3, 99.6, 3599.0, 3660.0, 360_000.0)] == [
        "30 ms", "1.4 s", "42 s", "2 min", "1 h 0 min", "1 h 1 min", "100 h 0 min",
    ]  # fmt: skip
