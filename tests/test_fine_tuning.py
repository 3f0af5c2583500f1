"""Fine-tuning: what stays of the old model, what may change, and what it says about itself."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import transduce
from transduce import cli
from transduce.assembly import assemble
from transduce.choices import Choices, with_rhythm
from transduce.config import Settings, merge, parse
from transduce.data.batches import collate
from transduce.data.corpus import Corpus
from transduce.data.tokenizer import Tokenizer
from transduce.decoding.translator import translator_of
from transduce.errors import TransduceError, UsageError
from transduce.evaluating import items_to_score, scored
from transduce.evaluation.metrics import evaluate
from transduce.experiment import measured, train
from transduce.fine_tuning import SCORES, change, frozen_parameters, grown, start_of
from transduce.model import Transformer
from transduce.model_folder import load_config, load_model, read_tensors, weights
from transduce.preparing import prepare_corpus

WORDS = ("ab", "bc", "abc", "cab", "bca", "a", "b", "cc")
TOKENIZERS: dict[str, Settings] = {
    "separate": {"joint": False, "source": {"kind": "char"}, "target": {"kind": "word"}},
    "joint": {"kind": "char", "joint": True},
    "bpe": {"kind": "bpe", "joint": True, "vocabulary": 290},
    "bytes": {"kind": "byte", "joint": True, "symbols": ["<old>"]},
}


def pairs(words: tuple[str, ...], path: Path, tag: str = "") -> str:
    path.write_text("".join(f"{tag}{w}\t{' '.join(w.upper())}\n" for w in words * 5))
    return str(path)


def recipe_for(tokenizer: Settings, folder: Path) -> Settings:
    old = pairs(WORDS, folder / "old.tsv")
    return {
        "data": {"train": old, "valid": old},
        "tokenizer": {"byte_fallback": False} | tokenizer,
        "model": {"N": 2, "d_model": 16, "d_ff": 16, "h": 2},
        "training": {"steps": 30, "tokens": 128, "validate_every": 30, "learning_rate": 0.01},
        "decoding": {"max_extra": 4, "beam_size": 2},
        "evaluation": {"metrics": ["per", "exact"]},
    }


@pytest.fixture(scope="module")
def olds(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a model that was trained before, by the name of its tokenizers; never changed."""
    made: dict[str, Path] = {}

    def old(name: str) -> Path:
        if name not in made:
            folder = tmp_path_factory.mktemp(name)
            assert train(recipe_for(TOKENIZERS[name], folder), folder / "run") == "finished"
            made[name] = folder / "run"
        return made[name]

    return old


@pytest.fixture
def old(olds: Callable[[str], Path]) -> Path:
    return olds("separate")


@pytest.fixture
def recipe(old: Path, tmp_path: Path) -> Settings:
    """Words of the old characters alone, mapped as before; and one that is new."""
    new = pairs(("ab", "abab", "ccc", "bb"), tmp_path / "new.tsv")
    return {
        "data": {"train": new, "valid": new},
        "fine_tuning": {"init_from": str(old), "old_test": str(old.parent / "old.tsv")},
        "training": {"steps": 4, "tokens": 64, "checkpoint_every": 2, "validate_every": 2},
    }


def tuning(recipe: Settings, **changes: object) -> Settings:
    return merge(recipe, {"fine_tuning": changes})


def greek(recipe: Settings, folder: Path, old: Path) -> Settings:
    """Words with characters that the old vocabularies lack."""
    new = pairs(("αβ", "βα", "aβ", "ββ"), folder / "greek.tsv")
    given = {"init_from": str(old), "grow": True}
    return merge(recipe, {"data": {"train": new, "valid": new}, "fine_tuning": given})


def start(run: Path) -> tuple[Transformer, tuple[Tokenizer, Tokenizer]]:
    """Return the model that a run begins with, before its first update."""
    config = load_config(run)
    shutil.rmtree(run / "checkpoints")
    trainer, tokenizers = assemble(config, Corpus(run / "corpus"), run)
    return trainer.model.eval(), tokenizers


@pytest.mark.parametrize("name", TOKENIZERS)
def test_it_starts_with_exactly_the_old_model(
    name: str, olds: Callable[[str], Path], recipe: Settings, tmp_path: Path
) -> None:
    train(tuning(recipe, init_from=str(olds(name))), tmp_path / "run")
    model, tokenizers = start(tmp_path / "run")
    _, before, old_tokenizers = load_model(olds(name))
    for (key, parameter), (same, other) in zip(
        model.named_parameters(), before.named_parameters(), strict=True
    ):
        assert key == same
        assert torch.equal(parameter, other)
    for new_side, old_side in zip(tokenizers, old_tokenizers, strict=True):
        assert new_side.pieces(range(len(new_side))) == old_side.pieces(range(len(old_side)))
    config = load_config(tmp_path / "run")
    decoding = load_config(olds(name)).decoding
    assert config.decoding == decoding
    assert config.evaluation.metrics == ["per", "exact"]
    now = translator_of(model, tokenizers, config.decoding).translate([*WORDS, "", "x"])
    assert now == transduce.load(olds(name)).translate([*WORDS, "", "x"])


def test_the_scores_of_before_are_those_of_the_old_model(
    recipe: Settings, old: Path, tmp_path: Path
) -> None:
    said: list[str] = []
    train(recipe, tmp_path / "run", say=said.append)
    stored = json.loads((tmp_path / "run" / SCORES).read_text())
    config = load_config(tmp_path / "run")
    for moment, model in (("before", old), ("after", tmp_path / "run")):
        translator = transduce.load(model)
        scores, *_ = scored(translator, items_to_score(config, str(old.parent / "old.tsv")), config)
        assert stored[moment]["old test"] == {name: s.score for name, s in scores.items()}
        corpus = Corpus(tmp_path / "run" / "corpus")
        texts = [corpus.valid.text(i) for i in range(len(corpus.valid))]
        outputs = [t.text for t in translator.translate([src for src, _ in texts])]
        valid = evaluate(outputs, [[tgt] for _, tgt in texts], ["per", "exact"])
        assert stored[moment]["validation"] == {name: s.score for name, s in valid.items()}
    shown = change("per", *(stored[when]["old test"]["per"] for when in ("before", "after")))
    assert f"old test: per {shown}" in said
    assert any(line.startswith("validation: exact ") for line in said)
    assert stored["signatures"]["per"].startswith("nrefs:1|tok:spaces")
    assert stored["init_from"] == str(old)


def test_a_change_in_words() -> None:
    assert change("bleu", 31.2, 29.9) == "31.20 before, 29.90 after (-1.30, worse)"
    assert change("wer", 31.2, 29.9) == "31.20 before, 29.90 after (-1.30, better)"
    assert change("exact", 0.0, 7.5) == "0.00 before, 7.50 after (+7.50, better)"
    assert change("exact", 7.501, 7.5) == "7.50 before, 7.50 after (no change)"


@pytest.mark.parametrize("name", ["separate", "joint", "bpe"])
@pytest.mark.parametrize("grow", [True, 5])
def test_a_grown_vocabulary_leaves_everything_old_as_it_was(
    name: str, grow: bool | int, olds: Callable[[str], Path], recipe: Settings, tmp_path: Path
) -> None:
    settings = tuning(greek(recipe, tmp_path, olds(name)), grow=grow)
    said: list[str] = []
    train(settings, tmp_path / "run", say=said.append)
    assert sum("new pieces" in line for line in said) == (2 if name == "separate" else 1)
    model, (source, target) = start(tmp_path / "run")
    _, before, (old_source, old_target) = load_model(olds(name))
    assert len(source) > len(old_source)
    assert len(target) > len(old_target)
    texts = [*WORDS, " ".join("ABC"), "a b"]
    assert [source.encode(text) for text in texts] == [old_source.encode(text) for text in texts]
    assert [target.encode(text) for text in texts] == [old_target.encode(text) for text in texts]
    rows = collate([(source.encode_all(["cab"])[0], target.encode_all(["C A B"])[0])])
    with torch.inference_mode():
        now, then = model(rows.src, rows.tgt_in), before(rows.src, rows.tgt_in)
    assert now.shape[-1] == len(target)
    torch.testing.assert_close(now[..., : len(old_target)], then, rtol=1e-5, atol=1e-5)
    # A new piece is no likelier than an average one.
    assert (now[..., len(old_target) :] < then.amax(-1, keepdim=True)).all()
    tied = model.output.weight is model.target_embedding.weight
    joint = model.source_embedding.weight is model.target_embedding.weight
    assert (tied, joint) == (True, name != "separate")


def test_new_rows_are_the_mean_of_what_spelled_the_piece(
    olds: Callable[[str], Path], recipe: Settings, tmp_path: Path
) -> None:
    """Bytes spell a new tag; to words, a new one is unknown."""
    tagged = tuning(recipe, grow=True, init_from=str(olds("bytes")))
    tagged["tokenizer"] = {"symbols": ["<new>"]}
    train(tagged, tmp_path / "run")
    model, (source, _) = start(tmp_path / "run")
    assert source.pieces([len(source) - 2, len(source) - 1]) == ["<old>", "<new>"]
    matrix = model.source_embedding.weight
    spelled = matrix[[4 + byte for byte in b"<new>"]].mean(dim=0)
    torch.testing.assert_close(matrix[-1], spelled)
    train(greek(recipe, tmp_path, olds("separate")), tmp_path / "words")
    words, _ = start(tmp_path / "words")
    count = load_config(olds("separate")).model.target_vocabulary
    matrix = words.target_embedding.weight
    for row in matrix[count:]:
        torch.testing.assert_close(row, matrix[4:count].mean(dim=0))


def test_new_symbols_are_learnt(old: Path, recipe: Settings, tmp_path: Path) -> None:
    settings = greek(recipe, tmp_path, old)
    settings["model"] = {"P_drop": 0.0}
    settings["training"] = {"steps": 120, "tokens": 128, "learning_rate": 0.02, "warmup_steps": 5}
    train(settings, tmp_path / "run")
    assert transduce.load(old).translate(["αβ"])[0].text != "Α Β"
    assert transduce.load(tmp_path / "run").translate(["αβ", "ββ"])[0].text == "Α Β"


@pytest.mark.parametrize(
    ("frozen", "prefixes"),
    [
        (["encoder"], ("encoder.",)),
        (["embeddings"], ("source_embedding.", "target_embedding.")),
        (["decoder.layers.1", "encoder.layers.0.feed_forward.W_1.bias"],
         ("decoder.layers.1.", "encoder.layers.0.feed_forward.W_1.bias")),
        (["output"], ("target_embedding.",)),
    ],
)  # fmt: skip
def test_frozen_parts_stay_bit_for_bit(
    frozen: list[str], prefixes: tuple[str, ...], recipe: Settings, old: Path, tmp_path: Path
) -> None:
    said: list[str] = []
    train(tuning(recipe, frozen=frozen), tmp_path / "run", say=said.append)
    before = read_tensors(old / "model" / "model.safetensors")
    for path in ("model", "checkpoints/step-2", "checkpoints/step-4"):
        after = read_tensors(tmp_path / "run" / path / "model.safetensors")
        assert after.keys() == before.keys()
        for name, tensor in after.items():
            assert torch.equal(tensor, before[name]) == name.startswith(prefixes), name
    assert any(line.startswith(f"frozen: {', '.join(frozen)}: ") for line in said)


@pytest.mark.parametrize("grow", [False, True])
def test_a_resumed_run_is_the_run_that_was_never_stopped(
    grow: bool, recipe: Settings, old: Path, tmp_path: Path
) -> None:
    """A21 with frozen parts; and the old model is not needed any more."""
    moved = tmp_path / "moved"
    shutil.copytree(old, moved)
    recipe = greek(recipe, tmp_path, moved) if grow else tuning(recipe, init_from=str(moved))
    recipe = tuning(recipe, frozen=["encoder.layers.0", "decoder.norm"])
    recipe["training"] |= {"schedule": "constant", "learning_rate": 0.01, "warmup_steps": 1}
    train(recipe, tmp_path / "whole")
    train(recipe, tmp_path / "halves", assignments=["training.steps=2"])
    scores = json.loads((tmp_path / "halves" / SCORES).read_text())
    shutil.rmtree(moved)
    said: list[str] = []
    changes = ["training.steps=4"]
    train(recipe, tmp_path / "halves", resume=True, assignments=changes, say=said.append)
    for file in ("model.safetensors", "optimizer.safetensors"):
        whole, halves = (
            read_tensors(tmp_path / name / "checkpoints" / "step-4" / file)
            for name in ("whole", "halves")
        )
        assert whole.keys() == halves.keys()
        assert all(torch.equal(whole[name], halves[name]) for name in whole)
    again = json.loads((tmp_path / "halves" / SCORES).read_text())
    assert again["before"] == scores["before"]
    assert again == json.loads((tmp_path / "whole" / SCORES).read_text())
    assert not any("as it is" in line for line in said)


def test_the_same_command_again_resumes(
    recipe: Settings, old: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(old.parent)
    del recipe["fine_tuning"]
    changes = ["fine_tuning.init_from=run", "fine_tuning.old_test=old.tsv", "training.steps=2"]
    train(recipe, tmp_path / "run", assignments=changes)
    assert load_config(tmp_path / "run").fine_tuning.init_from == str(old)
    changes[-1] = "training.steps=3"
    assert train(recipe, tmp_path / "run", resume=True, assignments=changes) == "finished"
    with pytest.raises(UsageError, match=r"\[fine_tuning\] cannot change"):
        changes = ["fine_tuning.init_from=elsewhere"]
        train(recipe, tmp_path / "run", resume=True, assignments=changes)


def test_without_a_checkpoint_the_old_model_is_needed(
    recipe: Settings, old: Path, tmp_path: Path
) -> None:
    moved = tmp_path / "moved"
    shutil.copytree(old, moved)
    train(tuning(recipe, init_from=str(moved)), tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    first = (tmp_path / "run" / "model" / "model.safetensors").read_bytes()
    train({}, tmp_path / "run", resume=True)
    assert (tmp_path / "run" / "model" / "model.safetensors").read_bytes() == first
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    shutil.rmtree(moved)
    with pytest.raises(TransduceError, match="moved does not exist"):
        train({}, tmp_path / "run", resume=True)


def test_damaged_scores_are_measured_again(recipe: Settings, tmp_path: Path) -> None:
    train(recipe, tmp_path / "run", assignments=["training.steps=2"])
    stored = json.loads((tmp_path / "run" / SCORES).read_text())
    (tmp_path / "run" / SCORES).write_text('{"before"')
    train({}, tmp_path / "run", resume=True, assignments=["training.steps=3"])
    assert json.loads((tmp_path / "run" / SCORES).read_text())["before"] == stored["before"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": {"d_model": 32}}, ["model.d_model is 32", "16"]),
        ({"model": {"N_decoder": 1}}, ["model.N_decoder is 1", "2"]),
        ({"model": {"norm_place": "post"}}, ["model.norm_place is 'post'", "'pre'"]),
        ({"profile": "paper"}, ["model.norm_place is 'post'", "its profile"]),
        ({"preset": "tiny"}, ["model.N is 3", "preset"]),
        ({"tokenizer": {"source": {"kind": "bpe"}}}, ["tokenizer.source.kind is 'bpe'", "'char'"]),
        ({"tokenizer": {"vocabulary": 77}}, ["tokenizer.vocabulary is 77"]),
        ({"data": {"normalization": "NFKC"}}, ["data.normalization is 'NFKC'", "'NFC'"]),
        ({"model": {"N": "two"}}, ["model.N", "integer"]),
        ({"tokenizer": {"symbols": ["<new>"]}}, ["<new>", "fine_tuning.grow = true"]),
        ({"fine_tuning": {"frozen": ["encodr"]}}, ["no part 'encodr'", "'encoder'"]),
        ({"fine_tuning": {"frozen": ["encoder.layers.2"]}}, ["no part 'encoder.layers.2'"]),
        ({"fine_tuning": {"frozen": ["encoder", "decoder", "embeddings"]}}, ["nothing"]),
        ({"fine_tuning": {"grow": 0}}, ["fine_tuning.grow"]),
        ({"fine_tuning": {"old_test": "-"}}, ["old_test", "standard input"]),
        ({"fine_tuning": {"old_test": "nowhere.tsv"}}, ["nowhere.tsv"]),
        ({"fine_tuning": {"init_from": "nowhere"}}, ["fine_tuning.init_from", "does not exist"]),
        ({"fine_tuning": {"init_from": ""}}, ["needs init_from"]),
        ({"fine_tuning": "old"}, ["fine_tuning"]),
    ],
    ids=str,
)
def test_contradictions_and_mistakes(
    changes: Settings, words: list[str], recipe: Settings, tmp_path: Path
) -> None:
    """One sentence, before anything is prepared."""
    run = tmp_path / "run"
    with pytest.raises(TransduceError) as caught:
        train(merge(recipe, changes), run)
    for word in words:
        assert word in str(caught.value)
    assert not (run / "corpus").exists()


def test_what_is_no_shape_may_change(recipe: Settings, tmp_path: Path) -> None:
    """And what the old model says anyway may be said."""
    recipe["model"] = {"P_drop": 0.25, "attention_dropout": 0.1, "activation_dropout": 0.2, "h": 2}
    recipe["tokenizer"] = {"joint": False, "target": {"kind": "word"}, "byte_fallback": False}
    recipe["training"] |= {"eps_ls": 0.0}
    recipe["decoding"] = {"beam_size": 1}
    recipe["evaluation"] = {"metrics": ["exact"]}
    train(recipe, tmp_path / "run")
    config = load_config(tmp_path / "run")
    assert (config.model.P_drop, config.model.d_model) == (0.25, 16)
    assert (config.decoding.beam_size, config.decoding.max_extra) == (1, 4)
    assert config.evaluation.metrics == ["exact"]


def test_targets_longer_than_any_before_raise_the_limit(recipe: Settings, tmp_path: Path) -> None:
    (tmp_path / "long.tsv").write_text(f"ab\t{'A B ' * 9}\n" * 9)
    recipe["data"]["train"] = str(tmp_path / "long.tsv")
    said: list[str] = []
    train(recipe, tmp_path / "run", say=said.append)
    surplus = 18 - 3
    assert load_config(tmp_path / "run").decoding.max_extra == surplus + 10
    assert any(f"max_extra {surplus + 10}" in line for line in said)


def test_a_broken_model_folder(recipe: Settings, old: Path, tmp_path: Path) -> None:
    for file, content in (
        ("model.safetensors", b"no tensors"),
        ("config.toml", b"a = = b"),
        ("source.spm", b"no model"),
    ):
        folder = tmp_path / file
        shutil.copytree(old / "model", folder)
        (folder / file).write_bytes(content)
        with pytest.raises(TransduceError, match=rf"fine_tuning\.init_from: .*{file}"):
            train(tuning(recipe, init_from=str(folder)), tmp_path / "run")
    (tmp_path / "empty").mkdir()
    with pytest.raises(TransduceError, match="is no model folder"):
        train(tuning(recipe, init_from=str(tmp_path / "empty")), tmp_path / "run")


def test_bytes_do_not_grow_but_by_symbols(
    olds: Callable[[str], Path], recipe: Settings, tmp_path: Path
) -> None:
    recipe = tuning(recipe, init_from=str(olds("bytes")), grow=True)
    with pytest.raises(UsageError, match=r"fine_tuning\.grow: .*bytes, which spell every"):
        train(recipe, tmp_path / "run")


def test_new_rows_are_not_frozen(
    olds: Callable[[str], Path], recipe: Settings, tmp_path: Path
) -> None:
    settings = tuning(greek(recipe, tmp_path, olds("joint")), frozen=["embeddings"])
    with pytest.raises(UsageError, match=r"source_embedding\.weight has rows for new pieces"):
        train(settings, tmp_path / "run")


def test_a_symbol_that_was_learnt_is_refused(recipe: Settings, old: Path, tmp_path: Path) -> None:
    recipe = tuning(recipe, grow=True)
    recipe["tokenizer"] = {"symbols": ["a"]}
    with pytest.raises(UsageError, match="'a' is a piece that the old source vocabulary has"):
        train(recipe, tmp_path / "run")


def test_old_and_new_pairs_mixed_by_weight(recipe: Settings, old: Path, tmp_path: Path) -> None:
    """From a recipe: paths are relative to it; the new pairs get a tag of their own."""
    pairs(("ab", "abab", "ccc", "bb"), tmp_path / "new.tsv")
    shutil.copytree(old, tmp_path / "old")
    shutil.copy(old.parent / "old.tsv", tmp_path / "old.tsv")
    (tmp_path / "tune.toml").write_text("""
[fine_tuning]
init_from = "old"
grow = true
old_test = "old.tsv"
[data]
train = [{ path = "old.tsv", weight = 0.5 }, { path = "new.tsv", tag = "<new>", weight = 2.0 }]
valid = [{ path = "new.tsv", tag = "<new>" }]
[training]
steps = 3
tokens = 64
""")
    train(tmp_path / "tune.toml", tmp_path / "run")
    config, corpus = load_config(tmp_path / "run"), Corpus(tmp_path / "run" / "corpus")
    assert config.fine_tuning.init_from == str(tmp_path / "old")
    assert config.fine_tuning.old_test == str(tmp_path / "old.tsv")
    assert [(o.end - o.first, o.weight) for o in corpus.train.origins] == [(40, 0.5), (20, 2.0)]
    assert corpus.train.text(40)[0] == "<new> ab"
    source = transduce.load(tmp_path / "run").source
    tag = source.encode("<new> ab")[1]
    assert source.pieces([tag]) == ["<new>"]
    assert tag == len(source) - 1 == load_config(old).model.source_vocabulary
    with pytest.raises(UsageError, match="<new>"):
        train(tmp_path / "tune.toml", tmp_path / "not", assignments=["fine_tuning.grow=false"])


def test_what_is_chosen(recipe: Settings, tmp_path: Path) -> None:
    """A fifth of the rate and of the length, and it is said; sizes and units are not chosen."""
    del recipe["training"]
    recipe["training"] = {"minutes": 0.001}
    said: list[str] = []
    train(recipe, tmp_path / "run", say=said.append)
    training = load_config(tmp_path / "run").training
    assert training.schedule == "linear"
    assert training.learning_rate == pytest.approx(2e-3 / 5)
    chosen = [line for line in said if line.startswith("chosen: ")]
    assert any("1/5 of a new model's rate" in line for line in chosen)
    assert not any(re.search("preset|joint|kind|norm_place|P_drop|metrics", c) for c in chosen)
    user = {"fine_tuning": {"init_from": "x"}}
    assert [
        with_rhythm(Choices(), 100, 512, settings).settings["training"]["learning_rate"]
        for settings in ({}, user)
    ] == [7e-4, pytest.approx(7e-4 / 5)]


def test_a_corpus_prepared_for_fine_tuning(recipe: Settings, old: Path, tmp_path: Path) -> None:
    """Encoded once with the old pieces; another old model means another corpus."""
    settings = greek(recipe, tmp_path, old)
    corpus = prepare_corpus(settings, tmp_path / "corpus", lambda line: None)
    again: list[str] = []
    prepare_corpus(settings, tmp_path / "corpus", again.append)
    assert any("as they were" in line for line in again)
    assert train(corpus.folder, tmp_path / "run") == "finished"
    assert not (tmp_path / "run" / "corpus").exists()
    assert load_config(tmp_path / "run").fine_tuning.init_from == str(old)
    changed: list[str] = []
    prepare_corpus(tuning(settings, grow=1), tmp_path / "corpus", changed.append)
    assert any("given changed; preparing it anew" in line for line in changed)


def test_another_model_in_the_old_place(
    olds: Callable[[str], Path], recipe: Settings, tmp_path: Path
) -> None:
    _, model, old_tokenizers = load_model(olds("joint"))
    _, _, others = load_model(olds("bpe"))
    with pytest.raises(TransduceError, match="other vocabularies now"):
        grown(weights(model), old_tokenizers, others, Path("here"))


def test_parts_by_name(old: Path) -> None:
    _, model, _ = load_model(old)
    assert frozen_parameters(model, []) == {}
    assert set(frozen_parameters(model, ["target_embedding", "output.weight"])) == {
        "target_embedding.weight"
    }
    assert len(frozen_parameters(model, ["encoder.layers"])) == 24
    with pytest.raises(UsageError):
        frozen_parameters(model, ["encoder.layers.0.feed"])
    with pytest.raises(UsageError):
        frozen_parameters(model, [""])


def test_no_fine_tuning(recipe: Settings) -> None:
    assert start_of({}) is None
    assert start_of({"fine_tuning": {}}) is None
    found = start_of(recipe)
    assert found is not None
    assert found.folder.name == "model"


def test_measuring_without_an_old_test(recipe: Settings, old: Path, tmp_path: Path) -> None:
    del recipe["fine_tuning"]["old_test"]
    train(recipe, tmp_path / "run")
    stored = json.loads((tmp_path / "run" / SCORES).read_text())
    assert stored["before"].keys() == stored["after"].keys() == {"validation"}
    config = load_config(tmp_path / "run")
    assert measured(config, Corpus(tmp_path / "run" / "corpus"))(transduce.load(old)).keys() == {
        "validation"
    }


def test_by_the_command(
    recipe: Settings,
    old: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    def call(*words: object) -> tuple[Any, str]:
        monkeypatch.setattr("sys.argv", ["transduce", *map(str, words)])
        with pytest.raises(SystemExit) as exited:
            cli.main()
        return exited.value.code, capfd.readouterr().err

    data = recipe["data"]["train"]
    base = ["train", "--train", data, "--valid", data, "--out", tmp_path / "run"]
    status, err = call(*base, "--set", f"fine_tuning.init_from={tmp_path / 'nowhere'}")
    assert (status, "fine_tuning.init_from" in err, "Traceback" in err) == (1, True, False)
    base += ["--set", f"fine_tuning.init_from={old}"]
    status, err = call(*base, "--set", "model.d_ff=17")
    assert status == 2
    assert "model.d_ff is 17" in err
    frozen = 'fine_tuning.frozen=["encoder"]'
    status, err = call(*base, "--set", "training.steps=2", "--set", frozen)
    assert status == 0
    assert re.search(r"validation: per [\d.]+ before, [\d.]+ after \(", err)
    assert parse({}, "x").fine_tuning.init_from == ""
    assert "from the weights of" in (tmp_path / "run" / "model" / "README.md").read_text()
