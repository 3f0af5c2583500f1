"""Import: what the format's own library computes with a folder, the imported model does, too."""

import json
import math
import pickle
import shutil
import warnings
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from sentencepiece.sentencepiece_model_pb2 import ModelProto
from torch import Tensor

import transduce
from tests.marian_folder import SOURCE, TARGET, in_float64, write_marian
from transduce import cli
from transduce.config import BOS, EOS, PAD, UNK, Settings
from transduce.data.batches import collate
from transduce.data.tokenizer import Tokenizer
from transduce.errors import TransduceError, UsageError
from transduce.experiment import train
from transduce.importing import import_marian
from transduce.marian import POSITIONS, in_halves, interleaved
from transduce.model import Transformer
from transduce.model_folder import load_config, load_model, weights

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")

NAMED = {PAD: "<pad>", UNK: "<unk>", BOS: "<pad>", EOS: "</s>"}
SENTENCES = ["the green house", "the cat sits on the mat while rain falls", "xyz", "in the garden"]
ANSWERS = ["das grüne haus", "die katze", "regen im garten", "haus"]
TRICKY = [
    "", " ", "the", " the  cat ", "the\tcat", "The ﬁne ①house…", "thé", "the\u0301",
    "a\u200bb\u200c\u200dc",
    "½ ﾊﾝｶｸ ～ ￥", "xyz xyz", "ß", "größe ß", "кот", "the кот sits", "日本 the 日", "🙂 the🙂",
    "\u3000the\u2009cat", "the\u00adcat", "the\u00a0cat", "THE CAT", "grün", "gru\u0308n", "<0x41>",
    "ä ö", "1234567", "....", "the.cat,on;mat", "\u0301a", "ﷺ", "thecatsits" * 5,
]  # fmt: skip


def silent(line: str) -> None:
    """Say nothing."""


def imported(
    folder: Path, out: Path
) -> tuple[Transformer, tuple[Tokenizer, Tokenizer], tuple[list[int], list[int]]]:
    """Import a folder; return model and tokenizers, and the other library's id of each piece."""
    import_marian(folder, out, silent)
    _, model, tokenizers = load_model(out)
    tables = [json.loads((folder / "vocab.json").read_text("utf-8"))]
    if (folder / "target_vocab.json").exists():
        tables.append(json.loads((folder / "target_vocab.json").read_text("utf-8")))
    sides = []
    for tokenizer, table in zip(tokenizers, (tables[0], tables[-1]), strict=True):
        names = [NAMED.get(i, p) for i, p in enumerate(tokenizer.pieces(range(len(tokenizer))))]
        sides.append([table.get(name, table["<unk>"]) for name in names])
    return model, tokenizers, (sides[0], sides[1])


def marian_tokenizer(folder: Path) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return transformers.MarianTokenizer.from_pretrained(folder)


def both_logits(
    theirs: Any, ours: Transformer, ids: tuple[Sequence[int], Sequence[int]]
) -> tuple[Tensor, Tensor]:
    """Return the logits of both for two pairs of different lengths, in our order of classes."""
    source, target = (torch.tensor(side) for side in ids)
    draw = torch.Generator().manual_seed(3)
    pairs = [
        (
            torch.randint(EOS + 1, len(source), (n,), generator=draw).tolist(),
            torch.randint(EOS + 1, len(target), (m,), generator=draw).tolist(),
        )
        for n, m in ((5, 7), (9, 3))
    ]
    batch = collate(pairs)
    with torch.no_grad():
        said = theirs(
            input_ids=source[batch.src],
            attention_mask=(batch.src != PAD).long(),
            decoder_input_ids=target[batch.tgt_in],
        ).logits[..., target]
        mine = ours(batch.src, batch.tgt_in)
    real = batch.tgt_out != PAD
    return mine[real], said[real]


ARCHITECTURES: dict[str, dict[str, Any]] = {
    "as OPUS-MT has it": {},
    "relu": {"activation_function": "relu"},
    "gelu": {"activation_function": "gelu", "encoder_layers": 1, "decoder_layers": 3},
    "silu": {"activation_function": "silu", "scale_embedding": False},
    "separate vocabularies": {"separate": True},
    "no ties": {"separate": True, "tie_word_embeddings": False},
    "separate matrices": {"share_encoder_decoder_embeddings": False},
    "an odd width": {"d_model": 15, "encoder_attention_heads": 3, "decoder_attention_heads": 3},
    "a smaller vocabulary": {"without": ["▁the", "e", "s"], "codes": [">>de<<", ">>fr<<"]},
}


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_logits_are_the_same(name: str, tmp_path: Path) -> None:
    theirs = write_marian(tmp_path / "marian", **ARCHITECTURES[name])
    model, _, ids = imported(tmp_path / "marian", tmp_path / "model")
    last = first_copy(ids[1])
    for ours, said in (
        both_logits(theirs, model, ids),
        both_logits(in_float64(theirs), model.double(), ids),
    ):
        exact = {torch.float32: 1e-5, torch.float64: 1e-10}[ours.dtype]
        known = list(range(UNK, last))
        assert torch.allclose(ours[:, known], said[:, known], atol=exact * 10, rtol=exact)
        # As probabilities, too: what has no class there has none here.
        assert torch.allclose(
            ours.softmax(-1)[:, known], said[:, known].softmax(-1), atol=exact, rtol=0
        )
        copies = ours.softmax(-1)[:, [PAD, *range(last, len(ids[1]))]]
        assert float(copies.max()) < 1e-30
    assert (last < len(ids[1])) == ("without" in ARCHITECTURES[name])


def first_copy(rows: Sequence[int]) -> int:
    """Return the first id at the end that is unknown to the other side."""
    last = len(rows)
    while rows[last - 1] == rows[UNK]:
        last -= 1
    return last


@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    changes=st.fixed_dictionaries(
        {
            "d_model": st.sampled_from([6, 12, 18]),
            "encoder_layers": st.integers(1, 3),
            "decoder_layers": st.integers(1, 3),
            "activation_function": st.sampled_from(["swish", "silu", "relu", "gelu"]),
            "scale_embedding": st.booleans(),
            "tie_word_embeddings": st.booleans(),
            "separate": st.booleans(),
        }
    ),
    heads=st.sampled_from([1, 2, 3, 6]),
    d_ff=st.sampled_from([4, 9]),
)
def test_any_architecture(
    changes: dict[str, Any], heads: int, d_ff: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("any")
    for stack in ("encoder", "decoder"):
        changes |= {f"{stack}_attention_heads": heads, f"{stack}_ffn_dim": d_ff}
    if not changes["separate"]:
        changes["tie_word_embeddings"] = True  # else the library does not save all that it uses
    theirs = write_marian(folder / "marian", **changes)
    model, _, ids = imported(folder / "marian", folder / "model")
    ours, said = both_logits(in_float64(theirs), model.double(), ids)
    assert torch.allclose(ours[:, UNK:], said[:, UNK:], atol=1e-9, rtol=0)


def test_channels_go_there_and_back() -> None:
    for width in (6, 7):
        theirs = torch.randn(width, width)
        for name in ("encoder.layers.0.self_attention.W_Q.weight", "x.W_2.bias", "output.weight"):
            tensor = theirs[0] if name.endswith("bias") else theirs
            assert torch.equal(in_halves(name, interleaved(name, tensor)), tensor)
    assert interleaved("output.weight", torch.arange(6)[None]).tolist() == [[0, 3, 1, 4, 2, 5]]


# Text -------------------------------------------------------------------------------------------


KINDS = ("unigram", "bpe", "char", "word")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[Path, Path]]:
    """Write and import folders, each once: both libraries' for the same model."""
    made: dict[str, tuple[Path, Path]] = {}

    def folders(**options: Any) -> tuple[Path, Path]:
        key = repr(options)
        if key not in made:
            folder = tmp_path_factory.mktemp("text")
            write_marian(folder / "marian", **options)
            import_marian(folder / "marian", folder / "model", silent)
            made[key] = folder / "marian", folder / "model"
        return made[key]

    return folders


Folders = Callable[..., tuple[Path, Path]]


def assert_cut_alike(theirs: Path, ours: Path, texts: Sequence[str], targets: bool = True) -> None:
    tokenizer = marian_tokenizer(theirs)
    _, _, tokenizers = load_model(ours)
    table = [json.loads((theirs / "vocab.json").read_text("utf-8"))]
    if (theirs / "target_vocab.json").exists():
        table.append(json.loads((theirs / "target_vocab.json").read_text("utf-8")))
    for side, mine in enumerate(tokenizers[: 1 + targets]):
        names = [NAMED.get(i, p) for i, p in enumerate(mine.pieces(range(len(mine))))]
        for text in texts:
            said = tokenizer(**{("text", "text_target")[side]: text}).input_ids
            ids = [table[side % len(table)].get(names[i], UNK) for i in mine.encode(text)]
            assert [*ids, 0] == said, f"{text!r} on side {side}"


@pytest.mark.parametrize("separate", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_text_is_cut_as_there(folders: Folders, kind: str, separate: bool) -> None:
    sentences = [" ".join(SOURCE), " ".join(TARGET), *SENTENCES, *ANSWERS]
    assert_cut_alike(*folders(kind=kind, separate=separate), [*TRICKY, *sentences])


@pytest.mark.parametrize("rule", ["nfkc", "nmt_nfkc_cf", "identity"])
def test_other_rules_for_characters(folders: Folders, rule: str) -> None:
    # Tabs and no-break spaces are spaces here, whatever the rules say.
    texts = [text for text in TRICKY if not {"\t", "\u00a0"} & set(text)]
    assert_cut_alike(*folders(rule=rule), texts)


ANY_TEXT = st.text(
    st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="\ufeff▁")
    | st.sampled_from("thecatßäü \u3000\u200b\u0308")
)


@settings(max_examples=150, deadline=None)
@given(text=ANY_TEXT, kind=st.sampled_from(KINDS))
@example(text=">><<", kind="unigram")
def test_any_text_is_cut_as_there(folders: Folders, text: str, kind: str) -> None:
    """But for what looks like the name of a language there: letters here, if it is none."""
    theirs, ours = folders(kind=kind)
    if text.startswith(">>") and "<<" in text:
        _, _, (source, _) = load_model(ours)
        assert len(source.encode(text)) > 1
        assert marian_tokenizer(theirs)(text).input_ids[0] == 1  # unknown, as a whole
        return
    assert_cut_alike(theirs, ours, [text])


def test_pieces_that_the_vocabulary_lacks_are_unknown(folders: Folders) -> None:
    theirs, ours = folders(without=("▁the", "e", "ä", "o"))
    assert_cut_alike(theirs, ours, [*TRICKY, *SENTENCES, " ".join(SOURCE)], targets=False)
    _, _, (source, target) = load_model(ours)
    assert source.pieces(source.encode("the")) == ["▁the"]
    assert source.encode("the")[0] >= len(source) - 3
    for letter in ("ä", "o"):  # one of its own file, one of the source's
        assert target.pieces(target.encode(letter)) == ["▁", "<unk>"]


def test_bytes_spell_what_is_rare(folders: Folders) -> None:
    theirs, ours = folders(spm_options={"byte_fallback": True, "vocab_size": 320})
    assert_cut_alike(theirs, ours, [*TRICKY, "日本"])
    _, _, (_, target) = load_model(ours)
    assert target.decode(target.encode("日 katze 🙂")) == "日 katze 🙂"


def test_names_of_languages_are_pieces(folders: Folders) -> None:
    theirs, ours = folders(codes=(">>de<<", ">>pt_BR<<"))
    texts = [">>de<< the cat", ">>de<<the cat", ">>pt_BR<<  the cat", ">>de<<", "the >> cat <<"]
    assert_cut_alike(theirs, ours, texts)
    config, _, (source, _) = load_model(ours)
    assert config.tokenizer.symbols == [">>de<<", ">>pt_BR<<"]
    assert source.pieces(source.encode(">>de<< the")) == [">>de<<", "▁the"]


def test_ids_are_read_as_there(folders: Folders) -> None:
    for kind in KINDS:
        theirs, ours = folders(kind=kind)
        tokenizer, (_, _, (_, target)) = marian_tokenizer(theirs), load_model(ours)
        table = json.loads((theirs / "vocab.json").read_text("utf-8"))
        draw = torch.Generator().manual_seed(1)
        for _ in range(20):
            ids = torch.randint(EOS + 1, len(target), (9,), generator=draw).tolist()
            said = tokenizer.decode(
                [table[p] for p in target.pieces(ids)],
                skip_special_tokens=True,
                clean_up_tokenization_spaces=False,
            )
            assert target.decode(ids).strip() == said


def test_parts_of_outputs_are_cut_by_the_rules(folders: Folders) -> None:
    _, _, (_, target) = load_model(folders()[1])
    assert target.encode_part("haus", spaced=True) == target.encode("haus")
    assert target.pieces(target.encode_part("ﬁ", spaced=False))[0] != "▁"
    assert target.decode(target.encode_part("a  ﬁ", spaced=False)) == "a fi"
    sampled = target.sample(["die  katze ﬁ"], 0.5, seed=3)[0]
    assert target.decode(sampled) == target.decode(target.encode("die katze fi"))


# Search and use ---------------------------------------------------------------------------------


def test_greedy_search_and_scores_are_the_same(tmp_path: Path) -> None:
    theirs = write_marian(tmp_path / "marian", init_std=0.2)
    _, _, (source, target) = imported(tmp_path / "marian", tmp_path / "model")
    translator = transduce.load(tmp_path / "model")
    assert translator.decoding.beam_size == 1
    padding, differ = target[BOS], set()
    for sentence, answer in zip(SENTENCES, ANSWERS, strict=True):
        ids = translator.source.encode(sentence)
        limit = len(ids) + 1 + translator.decoding.max_extra
        inputs = {"input_ids": torch.tensor([[source[i] for i in ids] + [0]])}
        said = theirs.generate(
            **inputs, max_new_tokens=limit, max_length=None, forced_eos_token_id=None,
            bad_words_ids=[[padding], [target[UNK]]],
        )[0, 1:].tolist()  # fmt: skip
        found = translator.translate([sentence])[0].hypotheses[0]
        names = translator.target.pieces(range(len(translator.target)))
        assert [target[names.index(token)] for token in found.tokens] == said
        differ.add(tuple(said))

        wanted = [target[i] for i in translator.target.encode(answer)] + [0]
        with torch.no_grad():
            logits = theirs(**inputs, decoder_input_ids=torch.tensor([[padding, *wanted[:-1]]]))
        log_probs = logits.logits[0].log_softmax(-1)[range(len(wanted)), wanted]
        scored = translator.score([(sentence, answer)])[0]
        assert scored.log_probabilities == pytest.approx(log_probs.tolist(), abs=1e-4)
    assert len(differ) > 1


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run the command in this process; return its exit status and what it wrote."""

    def run(*arguments: object) -> tuple[int, str, str]:
        capfd.readouterr()
        monkeypatch.setattr("sys.argv", ["transduce", *map(str, arguments)])
        with pytest.raises(SystemExit) as exited:
            cli.main()
        return int(exited.value.code or 0), *capfd.readouterr()

    return run


def test_the_verbs_work_on_it(tmp_path: Path, run: Run) -> None:
    write_marian(tmp_path / "marian", generation={"num_beams": 3}, codes=(">>de<<",))
    out = tmp_path / "model"
    status, stdout, stderr = run("import", tmp_path / "marian", "--out", out)
    assert (status, stdout) == (0, f"{out}\n")
    assert "layers 2 + 1, d_model 16" in stderr
    (tmp_path / "in.txt").write_text(">>de<< the cat\n\nthe ﬁne house\n")
    status, stdout, _ = run("translate", out, "--input", tmp_path / "in.txt")
    assert status == 0
    assert len(stdout.splitlines()) == 3
    pairs = "".join(f"{s}\t{t}\n" for s, t in zip(SENTENCES, ANSWERS, strict=True))
    (tmp_path / "pairs.tsv").write_text(pairs)
    status, stdout, _ = run("score", out, "--pairs", tmp_path / "pairs.tsv")
    assert status == 0
    assert all(float(line) < 0 for line in stdout.splitlines())
    assert run("evaluate", out, "--test", tmp_path / "pairs.tsv")[0] == 0


def test_training_goes_on_from_it(tmp_path: Path) -> None:
    for name, separate in (("shared", False), ("separate", True)):
        folder = tmp_path / name
        write_marian(folder / "marian", separate=separate, codes=() if separate else (">>de<<",))
        import_marian(folder / "marian", folder / "model", silent)
        pairs = zip(SENTENCES, ANSWERS, strict=True)
        (folder / "pairs.tsv").write_text("".join(f"{s}\t{t}\n" for s, t in pairs) * 10)
        data = {"train": str(folder / "pairs.tsv"), "valid": str(folder / "pairs.tsv")}
        recipe: Settings = {
            "data": data,
            "fine_tuning": {"init_from": str(folder / "model")},
            "training": {"steps": 60, "tokens": 128, "learning_rate": 0.01, "validate_every": 60},
        }
        assert train(recipe, folder / "run") == "finished"
        before, after = (transduce.load(folder / one) for one in ("model", "run"))
        items = list(zip(SENTENCES, ANSWERS, strict=True))
        losses = [-sum(s.log_probability for s in t.score(items)) for t in (before, after)]
        assert losses[1] < losses[0] / 2
        old, new = (load_config(folder / one) for one in ("model", "run/model"))
        assert new.model == old.model
        assert new.tokenizer == old.tokenizer
        for one, other in zip(load_model(folder / "model")[2], load_model(folder / "run")[2],
                              strict=True):  # fmt: skip
            assert one.spells_like(other)
        with pytest.raises(UsageError, match=r"fine_tuning\.grow.* cannot grow"):
            train(
                recipe | {"fine_tuning": recipe["fine_tuning"] | {"grow": True}}, folder / "grown"
            )


def test_search_is_carried_or_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_marian(tmp_path / "marian")
    path = tmp_path / "marian" / "generation_config.json"

    def said(**generation: Any) -> tuple[Any, str]:
        path.write_text(json.dumps(generation))
        shutil.rmtree(tmp_path / "model", ignore_errors=True)
        lines: list[str] = []
        import_marian(tmp_path / "marian", tmp_path / "model", lines.append)
        notes = "\n".join(line for line in lines if line.startswith("note"))
        card = (tmp_path / "model" / "README.md").read_text()
        assert all(line.removeprefix("note: ") in card for line in notes.splitlines())
        return load_config(tmp_path / "model").decoding, notes

    padding = load_padding(tmp_path / "marian")
    decoding, notes = said(num_beams=6, max_length=512, bad_words_ids=[[padding]])
    assert (decoding.beam_size, decoding.penalty, decoding.max_extra) == (6, "average", 50)
    assert "length_penalty" not in notes
    assert "bad_words" not in notes
    assert "at most 511" in notes
    decoding, notes = said(num_beams=6, max_length=12, length_penalty=0.0)
    assert (decoding.penalty, decoding.max_extra) == ("none", 11)
    assert "length_penalty" not in notes
    decoding, notes = said(num_beams=6, length_penalty=0.6)
    assert (decoding.penalty, decoding.alpha) == ("gnmt", 0.6)
    assert "n^0.6" in notes
    decoding, notes = said(num_beams=2, length_penalty=-1.0)
    assert decoding.penalty == "none"
    assert "length_penalty -1" in notes
    decoding, notes = said(
        min_length=3, no_repeat_ngram_size=2, repetition_penalty=1.3, bad_words_ids=[[5], [6, 7]],
        a_new_key=2, another=None, num_beam_groups=1,
    )  # fmt: skip
    assert (decoding.min_length, decoding.no_repeat) == (3, 2)
    assert "repetition_penalty = 1.3" in notes
    assert "PAD, BEGIN and UNKNOWN are never generated" in notes
    assert "bad_words_ids of 2 words" in notes
    assert "a_new_key = 2" in notes
    assert "another" not in notes
    assert "num_beam_groups" not in notes
    decoding, _ = said(do_sample=True, temperature=0.5, top_k=7)
    assert (decoding.method, decoding.temperature, decoding.top_k) == ("sample", 0.5, 7)
    assert decoding.top_p == 1.0


def load_padding(folder: Path) -> int:
    vocabulary = json.loads((folder / "vocab.json").read_text("utf-8"))
    assert isinstance(vocabulary["<pad>"], int)
    return vocabulary["<pad>"]


def test_older_folders(tmp_path: Path) -> None:
    """As the hub has them: search in config.json, halves, a pickle of tensors, positions."""
    theirs = write_marian(tmp_path / "marian")
    folder = tmp_path / "marian"
    (folder / "generation_config.json").unlink()
    (folder / "model.safetensors").unlink()
    described = json.loads((folder / "config.json").read_text())
    described |= {
        "_num_labels": 3, "add_bias_logits": False, "add_final_layer_norm": False, "num_beams": 6,
        "normalize_before": False, "normalize_embedding": False, "static_position_embeddings": True,
        "classif_dropout": 0.0, "extra_pos_embeddings": 55, "id2label": {"0": "LABEL_0"},
        "bos_token_id": 0, "max_length": 512, "bad_words_ids": [[described["pad_token_id"]]],
        "gradient_checkpointing": False, "num_hidden_layers": 2, "_name_or_path": "elsewhere/x",
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(described))
    import_weights = {k: v.half() for k, v in theirs.state_dict().items()}
    assert set(POSITIONS) <= import_weights.keys()
    torch.save(import_weights, folder / "pytorch_model.bin")
    model, _, ids = imported(folder, tmp_path / "model")
    assert load_config(tmp_path / "model").decoding.beam_size == 6
    assert {tensor.dtype for tensor in weights(model).values()} == {torch.float32}
    halved = {k: v.half().float() for k, v in theirs.state_dict().items() if k not in POSITIONS}
    theirs.load_state_dict(halved, strict=False)
    ours, said = both_logits(theirs, model, ids)
    assert torch.allclose(ours[:, UNK:], said[:, UNK:], atol=1e-4)


# What cannot be imported ------------------------------------------------------------------------


Change = Callable[[Path], None]


def in_json(name: str, **values: Any) -> Change:
    def change(folder: Path) -> None:
        path = folder / name
        path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | values), "utf-8")

    return change


def without(name: str) -> Change:
    return lambda folder: (folder / name).unlink()


def instead(name: str, content: bytes) -> Change:
    def change(folder: Path) -> None:
        (folder / name).write_bytes(content)

    return change


def cut(name: str) -> Change:
    return lambda folder: instead(name, (folder / name).read_bytes()[:-99])(folder)


def in_weights(change: Callable[[dict[str, Tensor]], object]) -> Change:
    def changed(folder: Path) -> None:
        tensors = safetensors.torch.load_file(folder / "model.safetensors")
        change(tensors)
        safetensors.torch.save_file(tensors, folder / "model.safetensors")

    return changed


def in_spm(name: str, change: Callable[[Any], object]) -> Change:
    def changed(folder: Path) -> None:
        model = ModelProto.FromString((folder / name).read_bytes())
        change(model)
        (folder / name).write_bytes(model.SerializeToString())

    return changed


def as_pickle(content: object) -> Change:
    def change(folder: Path) -> None:
        (folder / "model.safetensors").unlink()
        torch.save(content, folder / "pytorch_model.bin")

    return change


def as_script(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with zipfile.ZipFile(folder / "pytorch_model.bin", "w") as file:
        for name in ("data.pkl", "constants.pkl", "version"):
            file.writestr(f"x/{name}", b"3")


class Trap:
    """Writes a file when it is read."""

    def __reduce__(self) -> tuple[Any, ...]:
        return open, ("sprung", "w")


def in_vocabulary(change: Callable[[dict[str, int]], object]) -> Change:
    def changed(folder: Path) -> None:
        table = json.loads((folder / "vocab.json").read_text("utf-8"))
        change(table)
        (folder / "vocab.json").write_text(json.dumps(table))

    return changed


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 300000000\n"
LAYER = "model.encoder.layers.0.self_attn.q_proj.weight"
BAD: dict[str, tuple[Change, str]] = {
    "no config.json": (without("config.json"), "cannot read .*config.json: No such file"),
    "no JSON": (instead("config.json", b"{"), "config.json is not valid JSON"),
    "no UTF-8": (instead("config.json", b"\xff"), "config.json is not valid JSON"),
    "deep JSON": (instead("config.json", b"[" * 99_999), "config.json is not valid JSON"),
    "a list": (instead("config.json", b"[]"), "config.json is not a JSON object"),
    "another type": (in_json("config.json", model_type="bart"), "model_type is 'bart'"),
    "no type": (instead("config.json", b"{}"), "model_type is None"),
    "pre-norm": (in_json("config.json", normalize_before=True), "normalize_before = True"),
    "a norm more": (in_json("config.json", normalize_embedding=True), "normalize_embedding"),
    "a last norm": (in_json("config.json", add_final_layer_norm=True), "add_final_layer_norm"),
    "learned positions": (
        in_json("config.json", static_position_embeddings=False),
        "static_position_embeddings = False",
    ),
    "another class": (in_json("config.json", architectures=["MarianForCausalLM"]), "Causal"),
    "odd classes": (in_json("config.json", architectures=3), "architectures = 3"),
    "unlike heads": (in_json("config.json", decoder_attention_heads=4), "decoder_attention_heads"),
    "unlike widths": (in_json("config.json", decoder_ffn_dim=4), "decoder_ffn_dim is 4"),
    "activation": (in_json("config.json", activation_function="gelu_new"), "'gelu_new'"),
    "odd activation": (in_json("config.json", activation_function=["x"]), "activation_function"),
    "a new key": (in_json("config.json", rotary=True, moe=2), "not known here: moe, rotary"),
    "text for a number": (in_json("config.json", encoder_layers="2"), "model.N"),
    "text for a rate": (in_json("config.json", dropout="much"), "model.P_drop"),
    "text for a flag": (in_json("config.json", scale_embedding="yes"), "model.scale_embeddings"),
    "no layers": (in_json("config.json", encoder_layers=0), "model.N"),
    "too many layers": (in_json("config.json", encoder_layers=10**9), "too few for so many layers"),
    "odd heads": (
        in_json("config.json", encoder_attention_heads=3, decoder_attention_heads=3),
        "must be a multiple of h",
    ),
    "no heads": (
        in_json("config.json", encoder_attention_heads=0, decoder_attention_heads=0),
        "encoder_attention_heads 0",
    ),
    "another width": (in_json("config.json", d_model=20), "expected"),
    "another start": (in_json("generation_config.json", decoder_start_token_id=0), "decoder_start"),
    "another END": (in_json("generation_config.json", eos_token_id=[0, 1]), "eos_token_id is"),
    "another padding": (in_json("config.json", pad_token_id=3), "pad_token_id is 3"),
    "odd beams": (in_json("generation_config.json", num_beams="6"), "num_beams is no number"),
    "odd words": (in_json("generation_config.json", bad_words_ids=3), "bad_words_ids"),
    "another name": (in_json("tokenizer_config.json", unk_token="?"), "unk_token = '\\?'"),
    "odd options": (
        in_json("tokenizer_config.json", sp_model_kwargs={"nbest_size": -1}),
        "sp_model_kwargs",
    ),
    "two of one": (in_json("tokenizer_config.json", separate_vocabs=True), "separate_vocabs"),
    "no vocabulary": (without("vocab.json"), "cannot read .*vocab.json"),
    "no ids": (in_json("vocab.json", the="x"), "not every piece has a number"),
    "a hole": (in_vocabulary(lambda table: table.pop("▁the")), "the ids of"),
    "an id twice": (in_json("vocab.json", the=5), "the ids of"),
    "no END": (in_vocabulary(lambda t: t.update({"x": t.pop("</s>")})), "lacks the piece </s>"),
    "no name": (in_vocabulary(lambda t: t.update({"": t.pop("▁the")})), "an empty piece"),
    "more pieces": (
        in_vocabulary(lambda table: table.update({"more": len(table)})),
        r"model.shared.weight|embed_tokens.weight is \[55, 16\], expected \[56, 16\] for the voc",
    ),
    "no spm": (without("source.spm"), "cannot read .*source.spm"),
    "a broken spm": (instead("target.spm", b"no"), "target.spm is not a sentencepiece model"),
    "a cut spm": (cut("target.spm"), "target.spm is not a sentencepiece model"),
    "suffixes": (
        in_spm("source.spm", lambda m: setattr(m.trainer_spec, "treat_whitespace_as_suffix", True)),
        "treat_whitespace_as_suffix",
    ),
    "unmarked spaces": (
        in_spm("source.spm", lambda m: setattr(m.normalizer_spec, "escape_whitespaces", False)),
        "escape_whitespaces",
    ),
    "changed outputs": (
        in_spm("target.spm", lambda m: m.denormalizer_spec.CopyFrom(m.normalizer_spec)),
        "denormalizer_spec",
    ),
    "own symbols": (
        in_spm("source.spm", lambda m: m.pieces.add(piece="@@", score=0.0, type=4)),
        "source.spm has pieces that the user defined: @@",
    ),
    "no weights": (without("model.safetensors"), "neither model.safetensors nor pytorch_model.bin"),
    "cut weights": (cut("model.safetensors"), "cannot read .*model.safetensors"),
    "no safetensors": (instead("model.safetensors", b"x" * 99), "cannot read .*model.safetensors"),
    "a tensor less": (in_weights(lambda t: t.pop(LAYER)), f"missing: {LAYER}"),
    "a tensor more": (
        in_weights(lambda t: t.update({"model.extra": torch.ones(1)})),
        "not known here: model.extra",
    ),
    "another shape": (
        in_weights(lambda t: t.update({LAYER: torch.ones(16, 15)})),
        r"is \[16, 15\], expected \[16, 16\]",
    ),
    "no ties": (
        in_weights(lambda t: t.update({"lm_head.weight": torch.ones(55, 16)})),
        "differ, but config.json says they are one",
    ),
    "other positions": (
        in_weights(lambda t: t.update({POSITIONS[0]: torch.ones(64, 16)})), "holds no sinusoids"
    ),
    "odd positions": (
        in_weights(lambda t: t.update({POSITIONS[0]: torch.ones(64)})), "holds no sinusoids"
    ),
    "a module": (as_pickle(torch.nn.Linear(2, 2)), "pytorch_model.bin is refused: it holds code"),
    "a trap": (as_pickle({"x": Trap()}), "pytorch_model.bin is refused: it holds code"),
    "a script": (as_script, "pytorch_model.bin is refused: it holds code"),
    "a sparse tensor": (as_pickle({LAYER: torch.ones(16, 16).to_sparse()}), "no plain numbers"),
    "a tensor of nothing": (as_pickle({LAYER: torch.ones(1, device="meta")}), "no plain numbers"),
    "whole numbers": (in_weights(lambda t: t.update({LAYER: t[LAYER].int()})), "no plain numbers"),
    "narrow numbers": (
        in_weights(lambda t: t.update({LAYER: t[LAYER].to(torch.float8_e5m2)})),
        f"{LAYER} holds no plain numbers, but torch.float8_e5m2",
    ),
    "no number": (in_weights(lambda t: t[LAYER].fill_(math.nan)), "not all numbers of .* finite"),
    "endless": (in_weights(lambda t: t[LAYER].fill_(math.inf)), "not all numbers of .* finite"),
    "a pointer": (instead("model.safetensors", POINTER), "is a pointer, not .* `git lfs pull`"),
    "a pointer to pieces": (instead("source.spm", POINTER), "source.spm is a pointer"),
    "no width": (in_json("config.json", d_model=10**30), "d_model = 10* is too large"),
    "true beams": (in_json("generation_config.json", num_beams=True), "num_beams is no number"),
    "half a character": (
        in_vocabulary(lambda t: t.update({"\ud800": t.pop("▁the")})), "a piece that is no text"
    ),
    "a zero byte": (
        in_vocabulary(lambda t: t.update({"a\0": t.pop("▁the")})), "a piece that is no text"
    ),
    "a list of tensors": (as_pickle([torch.ones(1)]), "something else than named tensors"),
    "odd tensors": (as_pickle({"x": 3}), "something else than named tensors"),
}  # fmt: skip


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("good") / "marian"
    write_marian(folder)
    return folder


@pytest.mark.parametrize("name", BAD)
def test_bad_folders_get_one_message(
    name: str, good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    change, message = BAD[name]
    shutil.copytree(good, tmp_path / "marian")
    change(tmp_path / "marian")
    with pytest.raises(TransduceError, match=message) as raised:
        import_marian(tmp_path / "marian", tmp_path / "out" / "model", silent)
    assert raised.value.status == 1
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 700
    assert not (tmp_path / "sprung").exists()
    left = {path.name for path in tmp_path.iterdir()}
    assert left <= {"marian", "out"}
    assert not list((tmp_path / "out").glob("*"))


@pytest.mark.parametrize("content", [b"", b"no pickle", b"PK\x03\x04 and then nothing"])
def test_damaged_pickles(content: bytes, good: Path, tmp_path: Path) -> None:
    shutil.copytree(good, tmp_path / "marian")
    (tmp_path / "marian" / "model.safetensors").unlink()
    instead("pytorch_model.bin", content)(tmp_path / "marian")
    with pytest.raises(TransduceError, match=r"pytorch_model.bin is (damaged|refused)"):
        import_marian(tmp_path / "marian", tmp_path / "model", silent)
    instead("pytorch_model.bin", pickle.dumps(Trap()))(tmp_path / "marian")
    with pytest.raises(TransduceError, match="refused"):
        import_marian(tmp_path / "marian", tmp_path / "model", silent)


def test_what_is_there_stays(good: Path, tmp_path: Path, run: Run) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "mine.txt").write_text("mine")
    status, stdout, stderr = run("import", good, "--out", tmp_path / "model")
    assert (status, stdout) == (2, "")
    assert "is there already" in stderr
    assert [path.name for path in (tmp_path / "model").iterdir()] == ["mine.txt"]
    (tmp_path / "model" / "mine.txt").unlink()
    assert run("import", good, "--out", tmp_path / "model")[0] == 0
    status, _, stderr = run("import", tmp_path / "nothing", "--out", tmp_path / "other")
    assert status == 1
    assert stderr.count("\n") == 1


def test_the_library_of_the_format_is_not_needed(good: Path, tmp_path: Path) -> None:
    import subprocess
    import sys

    code = f"""
import sys
for name in ("transformers", "huggingface_hub", "tokenizers"):
    sys.modules[name] = None
from pathlib import Path
from transduce.importing import import_marian
import_marian(Path({str(good)!r}), Path({str(tmp_path / "model")!r}), print)
"""
    subprocess.run([sys.executable, "-c", code], check=True)
    assert (tmp_path / "model" / "model.safetensors").exists()
