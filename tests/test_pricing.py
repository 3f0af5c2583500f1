"""What a run takes: a price that leaves no trace."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.conftest import letters_recipe, small_config
from transduce import pricing
from transduce.config import Settings
from transduce.experiment import price, train
from transduce.fitting import Memory
from transduce.model import Transformer
from transduce.model_folder import load_config, read_tensors
from transduce.preparing import prepare_corpus
from transduce.pricing import Price, Speed, duration, parts_of


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setattr(pricing, "SECONDS", 0.05)
    return letters_recipe(tmp_path, steps=10, every=4)


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


@pytest.mark.parametrize("joint", [True, False])
@pytest.mark.parametrize("tie", [True, False])
@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
def test_the_parts_are_the_whole(joint: bool, tie: bool, positions: str) -> None:
    config = small_config(joint_vocabulary=joint, tie_embeddings=tie, positions=positions)
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
    slow = replace(found, speed=Speed(0.5, 1500.0, first=90.0))
    assert slow.seconds == found.seconds + 90
    assert "updates of 500 ms, 90 s for the first (measured" in "\n".join(slow.sentences())
    assert "first" not in text


def test_durations() -> None:
    assert [duration(s) for s in (0.03, 1.44, 42.3, 99.6, 3599.0, 3660.0, 360_000.0)] == [
        "30 ms", "1.4 s", "42 s", "2 min", "1 h 0 min", "1 h 1 min", "100 h 0 min",
    ]  # fmt: skip
