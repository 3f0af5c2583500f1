"""A whole experiment in Python: what a run leaves, and what its model says about itself."""

import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import transduce
from tests.conftest import letters_recipe
from tests.test_checkpoint import Marker
from transduce.assembly import card, check_lengths, sampled
from transduce.config import Settings, merge, parse
from transduce.data.corpus import Corpus
from transduce.errors import TransduceError, UsageError
from transduce.evaluating import Items
from transduce.experiment import train
from transduce.model_folder import load_config, load_model, read_tensors
from transduce.preparing import prepare_corpus


@pytest.fixture
def recipe(tmp_path: Path) -> Settings:
    return letters_recipe(tmp_path, steps=4, every=2)


def test_what_a_run_leaves(recipe: Settings, tmp_path: Path) -> None:
    said: list[str] = []
    assert transduce.train(recipe, out=tmp_path / "run", say=said.append) == "finished"
    run = tmp_path / "run"
    assert {path.name for path in run.iterdir()} == {
        ".lock", "config.toml", "metrics.jsonl", "samples.jsonl", "corpus", "checkpoints", "model",
    }  # fmt: skip
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["step-2", "step-4"]
    assert load_config(run) == load_config(run / "model")
    text = "\n".join(said)
    assert "departures from the paper: " in text
    assert "chosen: " in text
    translator = transduce.load(run)
    assert len(translator.translate(["ab", "", "c"])) == 3
    written = load_config(run).decoding
    assert translator.decoding == written.model_copy(update={"engine": "torch"})
    with pytest.raises(UsageError, match="already holds a run"):
        train(recipe, run)


def test_samples_are_of_all_lengths() -> None:
    sources = ["a" * n for n in (9, 3, 3, 1, 7, 5, 2, 8, 4, 6)] + [" "]
    asked = Items(sources, [["x"]] * len(sources))
    assert [len(sources[i]) for i in sampled(asked, 3)] == [2, 5, 8]  # the middles of 1-3, 4-6, 7-9
    assert sampled(asked, 3)[0] == 6
    assert [len(sources[i]) for i in sampled(asked, 20)] == [*range(1, 10)]
    assert sampled(Items(["", " "], [["x"]] * 2)) == []


def test_samples_go_on_as_if_never_stopped(recipe: Settings, tmp_path: Path) -> None:
    """A21: what was translated after the checkpoint is taken back with the updates."""
    recipe["training"] |= {"steps": 8, "checkpoint_every": 4, "keep": -1, "keep_best": 1}
    train(recipe, tmp_path / "whole")
    train(recipe, tmp_path / "parts")
    run = tmp_path / "parts"
    for path in (run / "checkpoints").glob("step-*"):
        if path.name != "step-4":
            shutil.rmtree(path)  # as if killed before the others were written
    with open(run / "samples.jsonl", "a") as file:
        file.write('{"step": 8, "source": "a')
    train(recipe, run, resume=True)
    whole, parts = ((tmp_path / n / "samples.jsonl").read_bytes() for n in ("whole", "parts"))
    assert whole == parts
    lines = [json.loads(line) for line in whole.splitlines()]
    assert [line["step"] for line in lines] == [step for step in (2, 4, 6, 8) for _ in range(7)]
    assert list(lines[0]) == ["step", "source", "references", "output"]
    assert [(line["source"], line["references"]) for line in lines[:7]] == [
        (line["source"], line["references"]) for line in lines[-7:]
    ]


def test_the_average_replaces_the_best(recipe: Settings, tmp_path: Path) -> None:
    recipe["training"] |= {"average": 2}
    train(recipe, tmp_path / "run")
    run = tmp_path / "run"
    tensors = read_tensors(run / "model" / "model.safetensors")
    last = [read_tensors(run / "checkpoints" / f"step-{n}" / "model.safetensors") for n in (2, 4)]
    for name, tensor in tensors.items():
        torch.testing.assert_close(tensor, (last[0][name] + last[1][name]) / 2)


def test_minutes_become_updates(recipe: Settings, tmp_path: Path) -> None:
    del recipe["training"]["steps"]
    recipe["training"]["minutes"] = 0.005
    said: list[str] = []
    train(recipe, tmp_path / "run", say=said.append)
    config = load_config(tmp_path / "run")
    assert config.training.minutes is None
    assert any(f"{config.training.steps:,} updates in 0.005 minutes" in line for line in said)


def test_the_seed_decides_everything(recipe: Settings, tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        recipe["training"]["seed"] = seed
        torch.manual_seed(len(name))
        train(recipe, tmp_path / name)
    a, b, c = (read_tensors(tmp_path / n / "model" / "model.safetensors") for n in "abc")
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert not all(torch.equal(a[name], c[name]) for name in a)


def test_tied_matrices_are_stored_once_and_shared_again(recipe: Settings, tmp_path: Path) -> None:
    recipe["tokenizer"] = {"kind": "char", "joint": True}
    train(recipe, tmp_path / "run")
    tensors = read_tensors(tmp_path / "run" / "model" / "model.safetensors")
    assert not {"target_embedding.weight", "output.weight"} & tensors.keys()
    _, model, _ = load_model(tmp_path / "run")
    assert model.output.weight is model.source_embedding.weight is model.target_embedding.weight
    assert torch.equal(model.output.weight, tensors["source_embedding.weight"])


def test_no_file_of_a_model_or_corpus_is_executed(recipe: Settings, tmp_path: Path) -> None:
    """A24: a pickle under each file name that is read."""
    recipe["tokenizer"] = {"kind": "char", "joint": True}
    train(recipe, tmp_path / "run")
    marker = tmp_path / "executed"
    for name in ("config.toml", "model.safetensors", "joint.spm"):
        folder = shutil.copytree(tmp_path / "run" / "model", tmp_path / name)
        (folder / name).write_bytes(pickle.dumps(Marker(marker)))
        with pytest.raises(TransduceError, match=name):
            transduce.load(folder)
    for name in ("manifest.json", "train-00000.arrow", "valid-00000.arrow"):
        folder = shutil.copytree(tmp_path / "run" / "corpus", tmp_path / name)
        (folder / name).write_bytes(pickle.dumps(Marker(marker)))
        with pytest.raises(TransduceError, match="not a prepared corpus"):
            Corpus(folder)
    assert not marker.exists()


def test_a_table_shorter_than_the_sentences_is_refused() -> None:
    """A34: checked at the start, not after an hour."""
    with pytest.raises(UsageError, match="max_positions = 16"):
        check_lengths(parse({"model": {"positions": "learned", "max_positions": 16}}, "test"))
    check_lengths(parse({"model": {"max_positions": 16}}, "test"))


def test_the_card_names_departures() -> None:
    assert "norm_place = pre" in card(parse({"model": {"norm_place": "pre"}}, "test"))
    assert "- none" in card(parse({"training": {"average": 5}}, "test"))


def test_the_public_names() -> None:
    for name in transduce.__all__:
        assert getattr(transduce, name) is not None
    with pytest.raises(AttributeError, match="nothing"):
        _ = transduce.nothing


@pytest.mark.parametrize(
    "tokenizer",
    [
        {"kind": "byte", "joint": True},
        {"joint": False, "source": {"kind": "byte"}, "target": {"kind": "unigram"}},
        {"kind": "unigram", "joint": True, "vocabulary": 300, "character_coverage": 1.0},
        {"kind": "bpe", "joint": True, "vocabulary": 300, "sampling": 0.3, "symbols": ["<x>"]},
    ],
    ids=str,
)
def test_tokenizers_from_training_to_translation(
    recipe: Settings, tokenizer: Settings, tmp_path: Path
) -> None:
    recipe["tokenizer"] = tokenizer
    train(recipe, tmp_path / "run")
    folder = shutil.move(tmp_path / "run" / "model", tmp_path / "alone")
    files = {"joint.spm"} if tokenizer.get("joint") else {"target.spm"}
    files = set() if tokenizer.get("kind") == "byte" else files
    assert {path.name for path in Path(folder).glob("*.spm")} == files
    translator = transduce.load(folder)
    assert len(translator.translate(["ab", "", "ü 😀 <x>"])) == 3
    if "symbols" in tokenizer:
        assert "<x>" in translator.source.pieces(translator.source.encode("<x> ab"))


def test_segmentation_sampling_goes_on_as_if_never_stopped(
    recipe: Settings, tmp_path: Path
) -> None:
    """A21 with BPE-dropout: each epoch is cut otherwise, and resuming cuts as before."""
    rows = [f"haus maus {i % 7} laus{i}\thouse mouse {i % 5} louse{i}\n" for i in range(60)]
    (tmp_path / "t.tsv").write_text("".join(rows))
    recipe["tokenizer"] = {"kind": "bpe", "joint": True, "vocabulary": 320, "sampling": 0.3}
    recipe["training"] |= {"steps": 8, "tokens": 400, "schedule": "paper", "warmup_steps": 9}
    train(recipe, tmp_path / "whole")
    train(recipe, tmp_path / "halves", assignments=["training.steps=4"])
    changes = ["training.steps=8"]
    train(recipe, tmp_path / "halves", resume=True, assignments=changes)
    recipe["tokenizer"]["sampling"] = 0.0
    train(recipe, tmp_path / "usual")
    last = "checkpoints/step-8/model.safetensors"
    whole, halves, usual = (read_tensors(tmp_path / n / last) for n in ("whole", "halves", "usual"))
    assert all(torch.equal(whole[name], halves[name]) for name in whole)
    assert not all(torch.equal(whole[name], usual[name]) for name in whole)


def test_several_origins_with_tags_and_weights(recipe: Settings, tmp_path: Path) -> None:
    (tmp_path / "u.jsonl").write_text('{"src": "c", "tgt": "C C"}\n' * 4)
    recipe["data"]["train"] = [
        {"path": str(tmp_path / "t.tsv"), "tag": "<2up>"},
        {"path": str(tmp_path / "u.jsonl"), "tag": "<2twice>", "weight": 2.0},
    ]
    train(recipe, tmp_path / "run")
    corpus = Corpus(tmp_path / "run" / "corpus")
    assert corpus.train.text(0)[0] == "<2up> ab"
    assert corpus.train.text(len(corpus.train) - 1) == ("<2twice> c", "C C")
    translator = transduce.load(tmp_path / "run")
    assert {"<2up>", "<2twice>"} <= set(translator.source.pieces(range(len(translator.source))))


def test_a_prepared_corpus_is_all_that_training_needs(recipe: Settings, tmp_path: Path) -> None:
    prepare_corpus(recipe, tmp_path / "corpus", lambda line: None)
    (tmp_path / "t.tsv").unlink()
    said: list[str] = []
    assert train(tmp_path / "corpus", tmp_path / "run", say=said.append) == "finished"
    assert any("used as it is" in line for line in said)
    assert not (tmp_path / "run" / "corpus").exists()
    assert len(transduce.load(tmp_path / "run").translate(["ab"])) == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"encoder_layer_type": "restricted", "decoder_layer_type": "restricted", "window": 1},
        {"encoder_layer_type": "recurrent", "decoder_layer_type": "recurrent", "cell": "gru"},
        {"encoder_layer_type": "recurrent", "decoder_layer_type": "self-attention"},
        {"encoder_layer_type": "convolutional", "decoder_layer_type": "convolutional"},
        {"norm_kind": "batch"},
        {"attention_normaliser": "sparsemax"},
    ],
    ids=lambda changes: "-".join(map(str, changes.values())),
)
def test_other_parts_train_resume_average_and_translate(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    """Stopped and resumed equals undisturbed, bit for bit; what comes out is the best engine's."""
    recipe = merge(letters_recipe(tmp_path, steps=6, every=2), {"model": changes})
    slow: Settings = {"average": 2, "keep": 5, "schedule": "paper", "warmup_steps": 9}
    recipe = merge(recipe, {"training": slow})
    said: list[str] = []
    train(recipe, tmp_path / "whole", say=said.append)
    assert any("departures" in line and next(iter(changes)) in line for line in said)
    train(recipe, tmp_path / "halves", assignments=["training.steps=4"])
    train(recipe, tmp_path / "halves", resume=True, assignments=["training.steps=6"])
    for last in ("checkpoints/step-6", "model"):
        whole, halves = (
            read_tensors(tmp_path / name / last / "model.safetensors")
            for name in ("whole", "halves")
        )
        assert all(torch.equal(whole[name], halves[name]) for name in whole)
    translator = transduce.load(tmp_path / "whole")
    (translation,) = translator.translate(["abc"])
    (scored,) = translator.score([("abc", translation.text)])
    assert translation.hypotheses[0].log_probability == pytest.approx(
        scored.log_probability, abs=1e-4
    )


@pytest.mark.parametrize("decoding", [{"beta": 0.2}, {"min_length": 1}, {"no_repeat": 3}])
def test_what_the_fast_engine_cannot_do_is_no_error_at_the_end(
    decoding: dict[str, Any], tmp_path: Path
) -> None:
    recipe = merge(letters_recipe(tmp_path, steps=2, every=2), {"decoding": decoding})
    assert transduce.train(recipe, out=tmp_path / "run") == "finished"


def test_an_engine_that_will_not_know_the_model_is_refused_before_anything_is_done(
    tmp_path: Path,
) -> None:
    recipe = merge(
        letters_recipe(tmp_path, steps=2, every=2),
        {"decoding": {"engine": "ctranslate2"}, "model": {"attention_normaliser": "sparsemax"}},
    )
    with pytest.raises(UsageError, match="attention_normaliser = sparsemax"):
        transduce.train(recipe, out=tmp_path / "run")
    assert not (tmp_path / "run" / "corpus").exists()
