"""Export: Hugging Face's own classes load the folder, and compute and write what ours do."""

import json
import re
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.marian_folder import SOURCE, TARGET, in_float64, write_marian
from transduce.config import BOS, EOS, PAD, UNK, Config, ModelConfig, merge, parse
from transduce.data.batches import collate
from transduce.data.tokenizer import Tokenizer, train_tokenizer
from transduce.decoding.search import NEVER
from transduce.decoding.translator import translator_of
from transduce.errors import TransduceError, UsageError
from transduce.exporting.huggingface import CARRIED, ONLY, export, refused
from transduce.importing import import_marian
from transduce.model import Transformer
from transduce.model_folder import load_model

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")

LINES = [" ".join(SOURCE[i : i + 5]) for i in range(12)] * 3
ANSWERS = [" ".join(TARGET[i : i + 5]) for i in range(12)] * 3
TRICKY = [
    "the cat", "", "  the  cat ", "xyz", "größe ß", "日本 the 日", "🙂", "the.cat", "THE", "<0x41>",
    " ", "thecatsits" * 3, "½ ﬁ", "a\u200bb",
]  # fmt: skip
FIRST = {PAD: 3, UNK: 1, BOS: 2, EOS: 0}


def tokenizers_of(joint: bool, kind: str = "unigram", **more: Any) -> tuple[Tokenizer, Tokenizer]:
    options: dict[str, Any] = {"normalization": "NFC", "byte_fallback": False} | more
    if joint:
        one = train_tokenizer(LINES + ANSWERS, kind, 60, **options)
        return one, one
    return (
        train_tokenizer(LINES, kind, 50, **options),
        train_tokenizer(ANSWERS, kind, 45, **options),
    )


def randomised(model: Transformer) -> Transformer:
    """Every parameter drawn, also those that begin as 0 or 1."""
    for parameter in model.parameters():
        parameter.data += 0.3 * torch.randn_like(parameter)
    return model.eval()


def built(
    tokenizers: tuple[Tokenizer, Tokenizer], **changes: Any
) -> tuple[Config, Transformer, tuple[Tokenizer, Tokenizer]]:
    sizes = {
        "source_vocabulary": len(tokenizers[0]),
        "target_vocabulary": len(tokenizers[1]),
        "joint_vocabulary": tokenizers[0] is tokenizers[1],
        "N_encoder": 2, "N_decoder": 1, "d_model": 12, "d_ff": 10, "h": 2,
    }  # fmt: skip
    model = {**sizes, **{k: v for k, v in changes.items() if k in ModelConfig.model_fields}}
    rest = {k: v for k, v in changes.items() if k not in model}
    config = parse(merge({"decoding": {"beam_size": 1}}, rest, {"model": model}), "test")
    return config, randomised(Transformer(config.model)), tokenizers


def loaded(folder: Path) -> tuple[Any, Any]:
    theirs, found = transformers.MarianMTModel.from_pretrained(folder, output_loading_info=True)
    assert not any(found.values())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return theirs, transformers.MarianTokenizer.from_pretrained(folder)


def there(ids: Sequence[int]) -> list[int]:
    return [FIRST.get(id_, id_) for id_ in ids]


def both_logits(theirs: Any, ours: Transformer) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(3)
    sizes = (ours.config.source_vocabulary, ours.config.target_vocabulary)
    sides = [
        [torch.randint(EOS + 1, size, (n,), generator=draw).tolist() for n in lengths]
        for size, lengths in zip(sizes, ((5, 9), (7, 3)), strict=True)
    ]
    batch = collate(list(zip(*sides, strict=True)))
    with torch.no_grad():
        said = theirs(
            input_ids=torch.tensor([there(row) for row in batch.src.tolist()]),
            attention_mask=(batch.src != PAD).long(),
            decoder_input_ids=torch.tensor([there(row) for row in batch.tgt_in.tolist()]),
        ).logits[..., there(range(sizes[1]))]
        mine = ours(batch.src, batch.tgt_in)
    real = batch.tgt_out != PAD
    return mine[real], said[real]


def assert_same_logits(folder: Path, model: Transformer) -> None:
    theirs, _ = loaded(folder)
    ours, said = both_logits(in_float64(theirs), model.double())
    assert torch.allclose(ours, said, atol=1e-9, rtol=0)
    model.float()


ARCHITECTURES: dict[str, dict[str, Any]] = {
    "the paper's": {},
    "Marian's": {"activation": "swish", "attention_biases": True, "output_bias": True},
    "gelu": {"activation": "gelu", "N_decoder": 3},
    "not scaled": {"scale_embeddings": False},
    "no ties": {"tie_embeddings": False},
    "an odd width": {"d_model": 15, "h": 3},
}


@pytest.mark.parametrize("joint", [True, False])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_logits_are_the_same(name: str, joint: bool, tmp_path: Path) -> None:
    config, model, tokenizers = built(tokenizers_of(joint), **ARCHITECTURES[name])
    export(config, model, tokenizers, tmp_path / "out")
    assert_same_logits(tmp_path / "out", model)


@settings(max_examples=10, deadline=None)
@given(
    changes=st.fixed_dictionaries(
        {
            "d_model": st.sampled_from([6, 12]),
            "h": st.sampled_from([1, 2, 3]),
            "d_ff": st.integers(1, 9),
            "N_encoder": st.integers(1, 3),
            "N_decoder": st.integers(1, 3),
            "activation": st.sampled_from(["relu", "swish", "gelu"]),
            "attention_biases": st.booleans(),
            "output_bias": st.booleans(),
            "tie_embeddings": st.booleans(),
            "scale_embeddings": st.booleans(),
        }
    ),
    joint=st.booleans(),
)
def test_any_architecture_goes_there_and_back(
    changes: dict[str, Any], joint: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("any")
    config, model, tokenizers = built(tokenizers_of(joint), **changes)
    export(config, model, tokenizers, folder / "out")
    assert_same_logits(folder / "out", model)
    import_marian(folder / "out", folder / "back", lambda line: None)
    _, back, again = load_model(folder / "back")
    for one, other in zip(tokenizers, again, strict=True):
        assert one.pieces(range(len(one))) == other.pieces(range(len(other)))
    batch = collate([([4, 9, 7], [5, 6]), ([8], [9, 4, 4])])
    with torch.no_grad():
        assert torch.equal(model(batch.src, batch.tgt_in), back(batch.src, batch.tgt_in))


@pytest.mark.parametrize("kind", ["unigram", "bpe", "char", "word"])
@pytest.mark.parametrize("symbols", [[], ["<2de>", "@@"]])
def test_text_is_cut_as_here(kind: str, symbols: list[str], tmp_path: Path) -> None:
    if symbols and kind == "word":
        return  # refused, see below
    for name, byte_fallback in (("with", True), ("without", False)):
        if byte_fallback and kind == "word":
            continue
        more = {"byte_fallback": byte_fallback, "symbols": symbols}
        config, model, tokenizers = built(big_enough(kind, **more))
        export(config, model, tokenizers, tmp_path / name)
        _, tokenizer = loaded(tmp_path / name)
        texts = [*TRICKY, *LINES[:12], *[f"{s} the cat" for s in symbols], "a<2de>b @@ c"]
        for text in texts:
            assert tokenizer(text).input_ids == there([*tokenizers[0].encode(text), EOS]), text
            ids = tokenizers[1].encode(text)
            assert tokenizer(text_target=text).input_ids == there([*ids, EOS]), text
            if UNK not in ids:
                written = tokenizer.decode(there(ids), skip_special_tokens=True)
                assert written == tokenizers[1].decode(ids).strip()


def big_enough(kind: str, **more: Any) -> tuple[Tokenizer, Tokenizer]:
    """Two vocabularies with room for bytes."""
    options: dict[str, Any] = {"normalization": "NFC"} | more
    size = 320 if more["byte_fallback"] else 60
    return (
        train_tokenizer(LINES, kind, size, **options),
        train_tokenizer(ANSWERS, kind, size, **options),
    )


@pytest.mark.parametrize("joint", [True, False])
def test_greedy_outputs_are_the_same(joint: bool, tmp_path: Path) -> None:
    config, model, tokenizers = built(tokenizers_of(joint), decoding={"max_extra": 9})
    export(config, model, tokenizers, tmp_path / "out")
    theirs, tokenizer = loaded(tmp_path / "out")
    translator, texts = translator_of(model, tokenizers, config.decoding), set()
    for line in LINES[:8]:
        found = translator.translate([line])[0].hypotheses[0]
        batch = tokenizer([line], return_tensors="pt")
        limit = len(tokenizers[0].encode(line)) + 1 + 9
        said = theirs.generate(
            **batch, max_new_tokens=limit, max_length=None, forced_eos_token_id=None
        )
        tokens = said[0, 1:].tolist()
        names = tokenizers[1].pieces(range(len(tokenizers[1])))
        assert [FIRST.get(i, i) for i in map(names.index, found.tokens)] == tokens
        assert tokenizer.batch_decode(said, skip_special_tokens=True) == [found.text.strip()]
        texts.add(found.text)
    assert len(texts) > 1


def test_what_was_imported_is_exported_as_it_was(tmp_path: Path) -> None:
    theirs = write_marian(tmp_path / "marian", codes=[">>de<<"], without=["▁the", "e"])
    import_marian(tmp_path / "marian", tmp_path / "model", lambda line: None)
    config, model, tokenizers = load_model(tmp_path / "model")
    export(config, model, tokenizers, tmp_path / "out")
    _, before = loaded(tmp_path / "marian")
    again, after = loaded(tmp_path / "out")
    for text in [*TRICKY, *LINES[:5], ">>de<< the cat"]:
        ids = (before(text).input_ids, after(text).input_ids)
        logits = [
            one(torch.tensor([i]), decoder_input_ids=torch.tensor([[padding]])).logits
            for one, i, padding in zip(
                (theirs, again), ids, (theirs.config.pad_token_id, BOS), strict=True
            )
        ]
        # The same distribution: by the names of the classes.
        known = [name for name in before.get_vocab() if name in after.get_vocab()]
        one, other = (
            logit[0, 0].softmax(-1)[[vocab[name] for name in known]]
            for logit, vocab in zip(logits, (before.get_vocab(), after.get_vocab()), strict=True)
        )
        assert torch.allclose(one, other, atol=1e-5)


def test_search_is_carried_or_named(tmp_path: Path) -> None:
    decoding = {
        "beam_size": 3, "penalty": "gnmt", "alpha": 0.8, "beta": 0.2, "max_source": 30,
        "max_extra": 9, "no_repeat": 3, "min_length": 2, "placeholders": ["[0-9]+"],
    }  # fmt: skip
    config, model, tokenizers = built(tokenizers_of(True), decoding=decoding)
    export(config, model, tokenizers, tmp_path / "out")
    search = json.loads((tmp_path / "out" / "generation_config.json").read_text())
    tokenizer = json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())
    assert tokenizer["clean_up_tokenization_spaces"] is False  # outputs are as they were written
    assert search["num_beams"] == 3
    assert search["length_penalty"] == 0.8
    assert search["max_length"] == 40
    assert search["no_repeat_ngram_size"] == 3
    assert search["min_length"] == 2
    theirs, _ = loaded(tmp_path / "out")
    never = sorted([there([id_])[0]] for id_ in NEVER)
    assert sorted(theirs.generation_config.bad_words_ids) == never
    text = (tmp_path / "out" / "README.md").read_text()
    for said in ("n^0.8", "beta = 0.2", "placeholders", "NFC", "9 tokens longer"):
        assert said in text
    for penalty, power in (("none", 0.0), ("average", 1.0)):
        config, model, tokenizers = built(tokenizers_of(True), decoding={"penalty": penalty})
        export(config, model, tokenizers, tmp_path / penalty)
        search = json.loads((tmp_path / penalty / "generation_config.json").read_text())
        assert search["length_penalty"] == power
        assert "n^" not in (tmp_path / penalty / "README.md").read_text()


def test_draws_are_carried(tmp_path: Path) -> None:
    decoding = {"method": "sample", "temperature": 0.7, "top_k": 5, "top_p": 0.9}
    config, model, tokenizers = built(tokenizers_of(True), decoding=decoding)
    export(config, model, tokenizers, tmp_path / "out")
    theirs, _ = loaded(tmp_path / "out")
    said = theirs.generation_config
    assert (said.do_sample, said.temperature, said.top_k, said.top_p) == (True, 0.7, 5, 0.9)


# What cannot be said there ----------------------------------------------------------------------


def test_every_field_of_the_model_is_carried_or_refused() -> None:
    fields = set(ModelConfig.model_fields)
    assert CARRIED | set(ONLY) == fields, "say in exporting/huggingface.py what becomes of it"
    assert not CARRIED & set(ONLY)


@pytest.mark.parametrize(
    "changes",
    [
        {"d_k": 5, "d_v": 6},
        {"d_k": 6, "d_v": 3},
        {"norm_place": "pre"},
        {"norm_epsilon": 1e-6},
        {"positions": "learned"},
    ],
)
def test_other_architectures_are_refused(changes: dict[str, Any], tmp_path: Path) -> None:
    config, model, tokenizers = built(tokenizers_of(True), **changes)
    reasons = refused(config.model)
    wrong = [k for k, v in changes.items() if v != 6]
    assert [re.split("[.= ]+", reason)[1] for reason in reasons] == wrong
    with pytest.raises(UsageError, match=f"model.{wrong[0]} = "):
        export(config, model, tokenizers, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_a_switch_that_is_new_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(ONLY, "norm_place")
    assert refused(ModelConfig()) == []
    assert refused(ModelConfig(norm_place="pre")) == [
        "model.norm_place = pre (only post can be said there)"
    ]


def test_vocabularies_that_cannot_be_said_are_refused(tmp_path: Path) -> None:
    codes = train_tokenizer(LINES, "unigram", 60, normalization="NFC", byte_fallback=False,
                            symbols=[">>de<<"])  # fmt: skip
    words = train_tokenizer(LINES, "word", 30, normalization="NFC", symbols=["<2de>"])
    spelled = train_tokenizer(LINES, "byte", 300, normalization="NFC")
    for tokenizer, why in ((codes, ">>de<<"), (words, "<2de>"), (spelled, "bytes")):
        config, model, _ = built((tokenizer, tokenizer))
        with pytest.raises(TransduceError, match=why):
            export(config, model, (tokenizer, tokenizer), tmp_path / "out")
        assert list(tmp_path.iterdir()) == []


def test_nothing_is_written_over_or_by_halves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, model, tokenizers = built(tokenizers_of(True))
    out = tmp_path / "out"
    out.mkdir()
    (out / "mine.txt").write_text("mine")
    with pytest.raises(UsageError, match="is there already"):
        export(config, model, tokenizers, out)
    (out / "mine.txt").unlink()

    def full(path: Path, tensors: object) -> None:
        raise TransduceError(f"cannot write {path}: No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr("transduce.exporting.huggingface.write_tensors", full)
        with pytest.raises(TransduceError, match="No space left"):
            export(config, model, tokenizers, out)
    assert list(tmp_path.rglob("*")) == [out]
    export(config, model, tokenizers, out)
    assert (out / "model.safetensors").exists()
