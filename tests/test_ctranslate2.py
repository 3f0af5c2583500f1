"""The fast engine: the same model, the same answers, and what it says where it cannot."""

import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from ctypes.util import find_library
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sentencepiece.sentencepiece_model_pb2 import ModelProto

from tests.conftest import letters_recipe
from transduce.config import EOS, UNK, Config, DecodingConfig, ModelConfig, Settings, merge, parse
from transduce.data.files import fingerprint
from transduce.data.tokenizer import SentencePieceTokenizer, train_tokenizer
from transduce.decoding import ctranslate2 as module
from transduce.decoding.choosing import Verdict, choose, remember, remembered
from transduce.decoding.ctranslate2 import FOLDER, MADE_FROM, MEASURED, CTranslate2Engine
from transduce.decoding.engines import Task, TorchEngine, Wanted
from transduce.decoding.translator import Translator, load, opened
from transduce.errors import TransduceError, UsageError
from transduce.experiment import train
from transduce.exporting import ctranslate2 as exporting
from transduce.exporting.ctranslate2 import CARRIED, convert, refused
from transduce.model import Transformer
from transduce.model_folder import find_model, load_model, save_model, weights

ctranslate2 = pytest.importorskip("ctranslate2")

ODD = train_tokenizer(
    ["a 1 🙂 b", "7 ab\rb 12", "c é e"] * 3, "char", 60, normalization="none", byte_fallback=False
)
"""Pieces for a space, a carriage return, digits and an emoji."""
SIZES = {"source_vocabulary": len(ODD), "target_vocabulary": len(ODD), "joint_vocabulary": True,
         "N": 2, "d_model": 32, "d_ff": 24, "h": 4, "P_drop": 0.0}  # fmt: skip
POSITIONS = 1051


def model_of(std: float = 0.35, **changes: object) -> Transformer:
    """Return a random model in which gains and biases matter too."""
    torch.manual_seed(3)
    model = Transformer(ModelConfig.model_validate(SIZES | changes)).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=std)
    return model


def engine_of(model: Transformer, folder: Path, precision: str = "float32") -> CTranslate2Engine:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    convert(model, (ODD, ODD), POSITIONS, folder)
    return CTranslate2Engine(folder, (ODD, ODD), precision, POSITIONS)


def pieces(draw: random.Random, length: int) -> list[int]:
    return [draw.randrange(EOS + 1, len(ODD)) for _ in range(length)]


ARCHITECTURES = st.fixed_dictionaries(
    {
        "N_encoder": st.integers(1, 3),
        "N_decoder": st.integers(1, 3),
        "h": st.sampled_from([1, 2, 4]),
        "d_model": st.sampled_from([16, 32]),
        "d_k": st.integers(1, 9),
        "d_v": st.integers(1, 9),
        "norm_place": st.sampled_from(["post", "pre"]),
        "norm_epsilon": st.sampled_from([1e-5, 1e-2]),
        "activation": st.sampled_from(["relu", "swish", "gelu"]),
        "attention_biases": st.booleans(),
        "output_bias": st.booleans(),
        "positions": st.sampled_from(["sinusoidal", "learned", "none"]),
        "max_positions": st.just(POSITIONS),
        "joint_vocabulary": st.booleans(),
        "tie_embeddings": st.booleans(),
        "scale_embeddings": st.booleans(),
    }
)


@settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(changes=ARCHITECTURES)
def test_every_architecture_is_carried(tmp_path: Path, changes: dict[str, Any]) -> None:
    """A41: log-probabilities of given pairs, and greedy outputs, whatever the switches."""
    assert set(changes) <= CARRIED
    draw = random.Random(1)
    model = model_of(**changes)
    ours, theirs = TorchEngine(model), engine_of(model, tmp_path / "model")
    pairs = [(pieces(draw, a), pieces(draw, b)) for a, b in [(1, 1), (7, 2), (3, 11), (20, 20)]]
    for said, by_them in zip(ours.score(pairs), theirs.score(pairs), strict=True):
        assert len(said) == len(by_them)
        assert sum(said) == pytest.approx(sum(by_them), abs=1e-4)
    tasks = [Task(src, len(src) + 5) for src, _ in pairs]
    wanted = Wanted(DecodingConfig(), beam_size=1)
    found = zip(ours.search(tasks, wanted), theirs.search(tasks, wanted), strict=True)
    for (one,), (other,) in found:
        assert (one.tokens, one.finished) == (other.tokens, other.finished)
        assert one.log_probabilities == pytest.approx(other.log_probabilities, abs=1e-4)
        assert one.score == pytest.approx(other.score, abs=1e-4)


def test_every_key_of_the_model_is_carried_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new switch is refused, by name, until somebody has thought of it here."""
    assert set(ModelConfig.model_fields) >= CARRIED
    monkeypatch.setattr(exporting, "CARRIED", CARRIED - {"activation", "norm_place"})
    odd = ModelConfig(activation="gelu", norm_place="pre")
    assert refused(odd) == ["model.norm_place = pre", "model.activation = gelu"]
    assert refused(ModelConfig()) == []
    with pytest.raises(
        TransduceError, match=r"no model\.norm_place = pre and no model\.activation"
    ):
        convert(model_of(activation="gelu", norm_place="pre"), (ODD, ODD), 9, Path("nowhere"))


@pytest.mark.parametrize("norm_place", ["post", "pre"])
def test_at_all_lengths(tmp_path: Path, norm_place: str) -> None:
    """Lengths at which others' tables ended, up to the longest that the search can come to."""
    draw = random.Random(2)
    model = model_of(norm_place=norm_place)
    lengths = [(1, 1), (2, 2), (60, 60), (499, 500), (500, 501), (501, 499), (1000, 1050)]
    pairs = [(pieces(draw, a), pieces(draw, b)) for a, b in lengths]
    ours, theirs = TorchEngine(model), engine_of(model, tmp_path / "model")
    for one, other in zip(ours.score(pairs), theirs.score(pairs), strict=True):
        assert sum(one) == pytest.approx(sum(other), abs=1e-4)
    with pytest.raises(
        TransduceError, match="a pair has 1,052 positions, the converted model 1,05"
    ):
        theirs.score([([5], [5] * 1051)])


@pytest.mark.parametrize("beam", [1, 2, 4])
@pytest.mark.parametrize("penalty", ["gnmt", "average", "none"])
def test_the_search_is_ours(tmp_path: Path, beam: int, penalty: str) -> None:
    """P9, P10, P14: limits of each sentence, penalties, reserved tokens, the order of n-best."""
    decoding = DecodingConfig.model_validate({"penalty": penalty})
    draw, equal = random.Random(4), 0
    tasks = [Task(source := pieces(draw, n), len(source) + 1 + n % 3) for n in range(1, 31)]
    for std in (0.2, 0.5):
        model = model_of(std)
        ours, theirs = TorchEngine(model), engine_of(model, tmp_path / "model")
        for n_best in {1, beam}:
            wanted = Wanted(decoding, beam, n_best)
            for task, one, other in zip(
                tasks, ours.search(tasks, wanted), theirs.search(tasks, wanted), strict=True
            ):
                equal += one[0].tokens == other[0].tokens
                assert 1 <= len(other) <= n_best
                assert other == sorted(other, key=lambda found: -found.score)
                for found in other:
                    assert len(found.tokens) <= task.limit
                    assert not {0, 1, 2} & set(found.tokens)
                    assert found.finished == (found.tokens[-1] == EOS)
                    total = wanted.penalty.score(found.log_probability, len(found.tokens))
                    assert found.score == pytest.approx(total, abs=1e-9)
                    given = (task.source, [id_ for id_ in found.tokens if id_ != EOS])
                    (expected,) = ours.score([given])
                    expected = expected[: len(found.tokens)]
                    assert found.log_probabilities == pytest.approx(expected, abs=1e-4)
                    assert found.log_probability == pytest.approx(sum(expected), abs=1e-4)
    assert equal >= (0.85 if beam > 1 else 1.0) * 2 * len(tasks) * len({1, beam})


def test_only_sums_are_cheaper_and_the_same(tmp_path: Path) -> None:
    theirs = engine_of(model_of(), tmp_path / "model")
    tasks = [Task(pieces(random.Random(5), n), 20) for n in (3, 9)]
    for beam in (1, 3):
        full = theirs.search(tasks, Wanted(DecodingConfig(), beam, beam))
        sums = theirs.search(tasks, Wanted(DecodingConfig(), beam, beam, detail="score"))
        for one, other in zip(full, sums, strict=True):
            assert [found.tokens for found in one] == [found.tokens for found in other]
            assert all(found.log_probabilities == () for found in other)
            scores = [found.score for found in other]
            assert [found.score for found in one] == pytest.approx(scores, abs=1e-4)


def test_what_is_never_generated_is_searched_around(tmp_path: Path) -> None:
    """A model that would say UNKNOWN all the time."""
    model = model_of(0.1, output_bias=True, tie_embeddings=False)
    torch.nn.init.zeros_(model.output.bias)
    with torch.no_grad():
        model.output.bias[UNK] = 30.0
    ours, theirs = TorchEngine(model), engine_of(model, tmp_path / "model")
    tasks = [Task(pieces(random.Random(6), n), 7) for n in (2, 5)]
    for beam in (1, 3):
        wanted = Wanted(DecodingConfig(), beam)
        for (one,), (other,) in zip(
            ours.search(tasks, wanted), theirs.search(tasks, wanted), strict=True
        ):
            assert one.tokens == other.tokens
            assert one.log_probability == pytest.approx(other.log_probability, abs=1e-3)


def test_pieces_come_through(tmp_path: Path) -> None:
    """A41: a space, a carriage return, digits and an emoji, in CTranslate2's own vocabulary."""
    engine_of(model_of(), tmp_path / "model")
    (path,) = (tmp_path / "model").glob("*vocabulary*")
    theirs = json.loads(path.read_text(encoding="utf-8"))
    assert theirs == ODD.pieces(range(len(ODD)))
    assert {"▁", "\r", "1", "🙂"} <= set(theirs)


# A trained model, from its folder


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    train(letters_recipe(folder, steps=80, every=40), folder / "run")
    return folder / "run"


LINES = ["a", "ab", "", "abc", "b" * 17, "ca" * 15, "bcabca", "c", " "]
FAST: Settings = {"device": "cpu", "decoding": {"engine": "ctranslate2"}}
Opened = Callable[..., Translator]


def translator(run: Path, **decoding: object) -> Translator:
    return opened([run], merge(FAST, {"decoding": decoding}))[1]


@pytest.mark.parametrize("beam", [1, 4])
def test_company_changes_nothing(run: Path, beam: int) -> None:
    fast = translator(run, beam_size=beam)
    together = fast.translate(LINES)
    exact = load(run, device="cpu").translate(LINES, beam_size=beam)
    for line, one, other in zip(LINES, together, exact, strict=True):
        (alone,) = fast.translate([line])
        assert (alone.text, alone.flags) == (one.text, one.flags)
        best, its = one.hypotheses[0], alone.hypotheses[0]
        assert best.tokens == its.tokens
        assert best.score == pytest.approx(its.score, abs=1e-5)
        assert (one.text, one.flags, best.tokens) == (
            other.text, other.flags, other.hypotheses[0].tokens,
        )  # fmt: skip
        assert best.score == pytest.approx(other.hypotheses[0].score, abs=1e-4)


def test_int8_is_close(run: Path) -> None:
    """A42: nothing broken, nothing repeated over and over."""
    exact, small = translator(run), translator(run, precision="int8")
    pairs = zip(exact.translate(LINES), small.translate(LINES), strict=True)
    assert sum(one.text == other.text for one, other in pairs) >= len(LINES) - 1


def test_the_conversion_is_kept_and_made_anew(run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(find_model(run), folder)
    shutil.rmtree(folder / FOLDER, ignore_errors=True)
    translator(folder)
    noted = folder / FOLDER / MADE_FROM
    first = noted.stat().st_mtime_ns
    assert json.loads(noted.read_bytes())["positions"] == 1000 + 1 + 3
    translator(folder)
    translator(folder, max_source=900)
    assert noted.stat().st_mtime_ns == first
    translator(folder, max_source=2000)  # further positions
    assert json.loads(noted.read_bytes())["positions"] == 2000 + 1 + 3
    _, model, tokenizers = load_model(folder)
    with torch.no_grad():
        model.output.weight[5:].neg_()
    before = translator(folder).translate(["abc"])
    save_model(folder, load_model(folder)[0], weights(model), tokenizers, "another")
    after = translator(folder).translate(["abc"])
    assert load(folder, device="cpu").translate(["abc"])[0].text == after[0].text
    assert before[0].hypotheses[0].score != after[0].hypotheses[0].score
    assert sorted(path.name for path in folder.iterdir() if path.name.startswith(".")) == []


def test_the_conversion_is_of_all_that_the_folder_holds(run: Path, tmp_path: Path) -> None:
    """The same weights mean something else with other settings of [model], or with other pieces."""
    folder = tmp_path / "model"
    shutil.copytree(find_model(run), folder)
    translator(folder)
    config, model, (source, target) = load_model(folder)
    settings = {"activation": "gelu", "scale_embeddings": False}
    other = parse(merge(config.model_dump(), {"model": settings}), "test")
    assert isinstance(target, SentencePieceTokenizer)
    proto = ModelProto.FromString(target.proto)
    proto.pieces[-1].piece = "▁Z"
    others = source, SentencePieceTokenizer(proto.SerializeToString(), target.normalization)
    save_model(folder, other, weights(model), others, "the same weights")
    for one in translator(folder).translate(LINES):
        (same,) = load(folder, device="cpu").translate([one.source])
        assert one.text == same.text
        assert one.hypotheses[0].score == pytest.approx(same.hypotheses[0].score, abs=1e-4)


def test_an_unfinished_output_at_the_last_position(tmp_path: Path) -> None:
    """Each of its tokens has a log-probability, though there is no position left for END."""
    for positions in ("sinusoidal", "learned"):
        model = model_of(output_bias=True, positions=positions, max_positions=12)
        with torch.no_grad():
            model.output.bias[EOS] = -1000
        (folder := tmp_path / positions).mkdir()
        convert(model, (ODD, ODD), 12, folder)
        fast = CTranslate2Engine(folder, (ODD, ODD), "float32", 12)
        for beam in (1, 3):
            wanted = Wanted(DecodingConfig(), beam)
            tasks = [Task([7, 8, 9], 12)]
            ((one,),), ((same,),) = (
                fast.search(tasks, wanted),
                TorchEngine(model).search(tasks, wanted),
            )
            assert (one.tokens, len(one.tokens), one.finished) == (same.tokens, 12, False)
            assert one.log_probabilities == pytest.approx(same.log_probabilities, abs=1e-4)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_really(run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(find_model(run), folder)
    folder.chmod(0o555)
    translator(folder).translate(["a"])


def test_a_folder_that_cannot_be_written(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(find_model(run), folder)
    shutil.rmtree(folder / FOLDER, ignore_errors=True)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    translator(folder).translate(["a"])
    assert not (folder / FOLDER).exists()
    assert list((tmp_path / "cache" / "transduce").glob(f"*/{FOLDER}/model.bin"))


def test_what_is_fastest_is_measured_once(run: Path) -> None:
    fast = translator(run)
    said: list[str] = []
    assert isinstance(fast.engine, CTranslate2Engine)
    fast.engine.measure(said.append, seconds=0.001)
    assert said == ["measuring once how this machine translates fastest"]
    notes = json.loads((fast.engine.folder / MEASURED).read_bytes())
    (known,) = notes.values()
    again = translator(run)
    assert isinstance(again.engine, CTranslate2Engine)
    assert again.engine.setting == module.Setting(**known)
    again.engine.measure(said.append, seconds=0.001)
    assert len(said) == 1
    narrow = translator(run, precision="int8")
    assert isinstance(narrow.engine, CTranslate2Engine)
    narrow.engine.measure(said.append, seconds=0.001)
    assert len(said) == 2
    assert [one.text for one in again.translate(LINES)] == [
        one.text for one in translator(run).translate(LINES)
    ]


# Which engine


@pytest.mark.parametrize(
    ("decoding", "options", "expected"),
    [
        ({}, {}, ("ctranslate2", "float32", "fastest")),
        ({"engine": "torch"}, {}, ("torch", "float32", "asked for")),
        ({"engine": "torch", "precision": "bfloat16"}, {}, ("torch", "bfloat16", "asked for")),
        ({"precision": "int8"}, {}, ("ctranslate2", "int8", "fastest")),
        ({"precision": "bfloat16"}, {}, ("torch", "bfloat16", "no bfloat16 here")),
        ({"method": "sample"}, {}, ("torch", "float32", "decoding.method = sample")),
        ({"beta": 0.2}, {}, ("torch", "float32", "decoding.beta = 0.2")),
        ({"min_length": 3}, {}, ("torch", "float32", "decoding.min_length = 3")),
        ({"no_repeat": 3}, {}, ("torch", "float32", "decoding.no_repeat = 3")),
        ({"placeholders": ["a"]}, {}, ("torch", "float32", "decoding.placeholders")),
        ({}, {"wishes": True}, ("torch", "float32", "only torch knows prefixes")),
    ],
)  # fmt: skip
def test_the_choice(
    run: Path,
    decoding: Settings,
    options: dict[str, bool],
    expected: tuple[str, str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        ctranslate2, "get_supported_compute_types", lambda device: {"float32", "int8"}
    )
    found = choose([run], {"device": "cpu", "decoding": decoding}, **options)
    assert (found.engine, found.precision) == expected[:2]
    assert expected[2] in found.reason
    if expected[0] == "torch" and "asked" not in expected[2]:
        asked = {"device": "cpu", "decoding": decoding | {"engine": "ctranslate2"}}
        with pytest.raises(UsageError, match=r"decoding\.engine = 'ctranslate2'"):
            choose([run], asked, **options)


def test_int8_only_where_validation_allows_it(run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(find_model(run), folder)
    settings: Settings = {"device": "cpu", "decoding": {"precision": "auto"}}
    verdict = remembered(folder)
    assert verdict is not None  # at the end of training
    assert (verdict.metric, verdict.sentences) == ("exact", 35)
    (folder / "int8.json").unlink()
    assert choose([folder], settings).precision == "float32"
    digest = fingerprint(str(folder / "model.safetensors"))
    remember(folder, Verdict("bleu", 30.0, 29.71, 500, digest))
    assert choose([folder], settings).precision == "int8"
    assert "bleu 29.71 in int8, 30.00 in float32" in str(choose([folder], settings))
    plain = choose([folder], {"device": "cpu"})
    assert plain.precision == "float32"
    assert "decoding.precision = auto takes int8" in plain.reason
    remember(folder, Verdict("bleu", 30.0, 29.69, 500, digest))
    assert choose([folder], settings).precision == "float32"
    remember(folder, Verdict("wer", 30.0, 30.29, 500, digest))
    assert choose([folder], settings).precision == "int8"
    remember(folder, Verdict("wer", 30.0, 30.31, 500, digest))
    assert choose([folder], settings).precision == "float32"
    remember(folder, Verdict("bleu", 30.0, 31.0, 500, "other weights"))
    assert remembered(folder) is None
    (folder / "int8.json").write_text("{")
    assert remembered(folder) is None


def test_ensembles_are_torchs(run: Path) -> None:
    assert choose([run, run], {"device": "cpu"}).engine == "torch"
    with pytest.raises(UsageError, match="only torch knows ensembles"):
        opened([run, run], FAST)


def test_without_the_package(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transduce.decoding.choosing.find_spec", lambda name: None)
    assert choose([run], {"device": "cpu"}).reason == "the package ctranslate2 is not installed"
    monkeypatch.setitem(__import__("sys").modules, "ctranslate2", None)
    with pytest.raises(TransduceError, match="pip install ctranslate2"):
        exporting.library()


def test_a_precision_that_is_not_there(run: Path) -> None:
    with pytest.raises(UsageError, match=r"decoding\.precision = 'bfloat16': ctranslate2 has"):
        if "bfloat16" in ctranslate2.get_supported_compute_types("cpu"):
            pytest.skip("it is there")
        translator(run, precision="bfloat16")
    with pytest.raises(UsageError, match="the torch engine has float32 and bfloat16"):
        opened([run], {"decoding": {"engine": "torch", "precision": "int8"}})


def test_nothing_is_left_open(run: Path) -> None:
    config: Config = opened([run], {"device": "cpu"})[0]
    assert (config.decoding.engine, config.decoding.precision) == ("torch", "float32")
    config = opened([run], FAST)[0]
    assert (config.decoding.engine, config.decoding.precision) == ("ctranslate2", "float32")
    assert parse({}, "nothing").decoding.engine == "auto"


GLIBC = pytest.mark.skipif(not hasattr(os, "RTLD_DEEPBIND"), reason="of glibc")
PROGRAM = """
import os, sys, time, torch
from pathlib import Path
from transduce.data.tokenizer import ByteTokenizer
from transduce.decoding.ctranslate2 import CTranslate2Engine
torch.ones(500, 500) @ torch.ones(500, 500)
nothing = ByteTokenizer((), "none")
engine = CTranslate2Engine(Path(sys.argv[1]), (nothing, nothing), "int8")
threads = lambda: len(os.listdir("/proc/self/task"))
before, end = threads(), time.monotonic() + 10
engine._translator(1, 2).translate_batch([["a", "1"]])
engine._running.clear()
while threads() > before:
    assert time.monotonic() < end, (before, threads())
    time.sleep(0.1)
"""


def bound_to(folder: Path, **environment: str) -> str:
    """Run the program; return the file whose GOMP_parallel CTranslate2 calls."""
    convert(model_of(), (ODD, ODD), POSITIONS, folder)
    written = folder / "bindings"
    told = {"LD_DEBUG": "bindings", "LD_DEBUG_OUTPUT": str(written)}
    command = [sys.executable, "-c", PROGRAM, str(folder)]
    subprocess.run(command, env=os.environ | told | environment, check=True)
    (file,) = (
        line.partition(" to ")[2]
        for line in next(folder.glob("bindings.*")).read_text().splitlines()
        if "/libctranslate2" in line.partition(" to ")[0] and "`GOMP_parallel'" in line
    )
    return file


@GLIBC
def test_its_openmp_is_its_own_and_loading_leaves_no_threads(tmp_path: Path) -> None:
    assert "ctranslate2.libs" in bound_to(tmp_path)


@GLIBC
@pytest.mark.skipif(find_library("jemalloc") is None, reason="needs Debian's libjemalloc2")
def test_another_allocator_is_everybodys(tmp_path: Path) -> None:
    other = find_library("jemalloc")
    assert other is not None
    assert "/torch/" in bound_to(tmp_path, LD_PRELOAD=other)
