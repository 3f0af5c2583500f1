"""Exports with proof: each format, bounds that do not hold, and nothing half-written."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest
import torch

from tests.conftest import VNNI, letters_recipe
from tests.marian_folder import write_marian
from transduce import delivering as module
from transduce.config import DecodingConfig, Settings
from transduce.data.text import normalize
from transduce.data.tokenizer import ByteTokenizer, SentencePieceTokenizer
from transduce.decoding.engines import Pairs, StepByStep
from transduce.decoding.translator import Translator, load
from transduce.delivering import REPORT, Format, export
from transduce.errors import TransduceError, UsageError
from transduce.evaluating import Items
from transduce.evaluation.parity import Parity, Search, compare_engines
from transduce.experiment import train
from transduce.exporting import ctranslate2 as exporting
from transduce.exporting.standalone import text as alone
from transduce.importing import import_marian
from transduce.model import Transformer
from transduce.model_folder import load_model

for package in ("ctranslate2", "onnx", "onnxruntime"):
    pytest.importorskip(package)

FORMATS: tuple[Format, ...] = ("ctranslate2", "onnx", "huggingface")
LINES = ["a", "ab", "abc", "b" * 17, "ca" * 15, "bcabca", "c"]
ASKED = Items(LINES, [[" ".join(line.upper())] for line in LINES])


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    recipe = letters_recipe(folder, steps=120, every=60)
    recipe["tokenizer"] = {"kind": "char", "joint": False, "byte_fallback": False}
    recipe["model"]["norm_place"] = "post"
    train(recipe, folder / "run")
    return folder / "run"


@pytest.mark.parametrize("to", FORMATS)
def test_an_export_is_the_same_model(run: Path, tmp_path: Path, to: Format) -> None:
    said: list[str] = []
    found = export(run, to, tmp_path / "out", asked=ASKED, say=said.append)
    assert found.problems() == []
    assert found.distance < 1e-4
    assert {beam: search.equal for beam, search in found.searches.items()} == {1: 7, 4: 7}
    report = json.loads((tmp_path / "out" / REPORT).read_bytes())
    assert report["searches"]["4"]["scores"] == report["searches"]["4"]["scores_of_theirs"]
    assert report["bytes"] > 1000
    assert (tmp_path / "out" / "README.md").exists()
    assert any("7 of 7 outputs equal" in line for line in said)
    with pytest.raises(UsageError, match="out is there already"):
        export(run, to, tmp_path / "out")


@pytest.mark.parametrize("to", ["ctranslate2", "onnx"])
@pytest.mark.parametrize("beam", [1, 4])
def test_the_scripts_stand_alone(run: Path, tmp_path: Path, to: Format, beam: int) -> None:
    """Lines of all kinds, where neither torch nor this package is there."""
    export(run, to, tmp_path / "out")
    guard = (
        "import os, runpy, sys\n"
        "sys.modules['torch'] = sys.modules['transduce'] = None\n"
        "sys.argv = sys.argv[1:]\n"
        "sys.path.insert(0, os.path.dirname(sys.argv[0]))\n"
        "runpy.run_path(sys.argv[0], run_name='__main__')\n"
    )
    script = [str(tmp_path / "out" / "translate.py"), "--threads", "1", "--beam-size", str(beam)]
    lines = [*LINES, "", "a b\u2028c", " ", "\x07", "ab" * 600]
    done = subprocess.run(
        [sys.executable, "-I", "-c", guard, *script],
        input="\r\n".join(lines).encode(), capture_output=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()
    engine: Literal["torch", "ctranslate2"] = "torch" if to == "onnx" else "ctranslate2"
    translator = load(run, device="cpu", engine=engine)
    expected = [one.text for one in translator.translate(lines, beam_size=beam)]
    assert done.stdout.decode().split("\n") == [*expected, ""]
    assert done.stderr.decode().count("cut to 1000") == 1


@pytest.mark.skipif(
    not VNNI,
    reason="without VNNI sums of int8 products may saturate, and do in matrices this small",
)
def test_int8(run: Path, tmp_path: Path) -> None:
    found = export(run, "ctranslate2", tmp_path / "out", "int8", ASKED)
    assert (found.precision, found.problems()) == ("int8", [])
    assert json.loads((tmp_path / "out" / "transduce.json").read_bytes())["precision"] == "int8"


def test_int8_is_not_of_every_format(run: Path, tmp_path: Path) -> None:
    for to in ("onnx", "huggingface"):
        with pytest.raises(UsageError, match=f"--quantization int8: {to} has float32"):
            export(run, to, tmp_path / to, "int8")
    with pytest.raises(UsageError, match="ctranslate2 has float32, int8"):
        export(run, "ctranslate2", tmp_path / "other", "int3")


def test_settings_go_with_the_export(run: Path, tmp_path: Path) -> None:
    settings: Settings = {"decoding": {"beam_size": 3, "alpha": 1.2}}
    export(run, "ctranslate2", tmp_path / "out", settings=settings)
    written = json.loads((tmp_path / "out" / "transduce.json").read_bytes())["decoding"]
    assert (written["beam_size"], written["alpha"]) == (3, 1.2)
    with pytest.raises(UsageError, match=r"decoding.no_repeat = 3 cannot be exported"):
        export(run, "ctranslate2", tmp_path / "o", settings={"decoding": {"no_repeat": 3}})
    assert not (tmp_path / "o").exists()


def test_an_export_that_is_another_model_is_refused(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A41: whatever went wrong on the way, it is seen."""

    def wrong(model: Transformer, positions: int) -> Any:
        spec = specification(model, positions)
        spec.decoder.scale_embeddings = False
        return spec

    specification = exporting.specification
    monkeypatch.setattr(exporting, "specification", wrong)
    with pytest.raises(TransduceError, match="not the same model: log-probabilities of a pair"):
        export(run, "ctranslate2", tmp_path / "out", asked=ASKED)
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_carried_is_refused(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, model, tokenizers = load_model(run)
    odd = config.model_copy(update={"model": config.model.model_copy(update={"d_k": 7})})
    monkeypatch.setattr(module, "load_model", lambda path: (odd, model, tokenizers))
    with pytest.raises(TransduceError, match=r"model\.d_k = 7"):
        export(run, "huggingface", tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def search(equal: int, theirs: float = 30.0, metric: str = "bleu") -> Search:
    return Search(1000, equal, 1.0, 1.0, {metric: 30.0}, {metric: theirs})


@pytest.mark.parametrize(
    ("parity", "problems"),
    [
        (Parity("x", "float32", worst=1.0, searches={1: search(995), 4: search(980)}), 0),
        (Parity("x", "float32", worst=1.01), 1),
        (Parity("x", "float32", worst=float("nan")), 1),
        (Parity("x", "float32", searches={1: search(994)}), 1),
        (Parity("x", "float32", searches={4: search(979)}), 1),
        (Parity("x", "float32", searches={1: Search(7, 6, 1.0, 1.0)}), 0),
        (Parity("x", "float32", searches={4: Search(7, 5, 1.0, 1.0)}), 1),
        (Parity("x", "float32", searches={1: search(1000, 30.2)}), 1),
        (Parity("x", "int8", worst=99.0, searches={1: search(10, 29.71)}), 0),
        (Parity("x", "int8", searches={1: search(10, 29.69)}), 1),
        (Parity("x", "int8", searches={1: search(10, 33.0)}), 0),
        (Parity("x", "int8", searches={1: search(10, 30.4, "wer")}), 1),
        (Parity("x", "int8", per_token=0.2), 1),
    ],
)
def test_the_bounds(parity: Parity, problems: int) -> None:
    assert len(parity.problems()) == problems


class Said(StepByStep):
    """Knows the log-probabilities of two tokens, of whatever they are."""

    def __init__(self, *by_token: float) -> None:
        self.by_token = list(by_token)

    def score(self, pairs: Pairs) -> list[list[float]]:
        return [self.by_token for _ in pairs]


def test_what_float32_loses_is_no_other_model() -> None:
    """Of a model that magnifies it; nobody asks where the bound holds anyway."""
    config = DecodingConfig(max_source=3, max_extra=0)
    tokenizers = (ByteTokenizer([], "none"),) * 2

    ours, theirs = (
        Translator(Said(*by_token), tokenizers, config)
        for by_token in ((-2.0, -2.0), (-2.001, -2.0))
    )
    for exactly, wrong in (
        (None, True), (lambda: Said(-2.0, -2.0), True), (lambda: Said(-2.0005, -2.0), False),
    ):  # fmt: skip
        found = compare_engines("x", "float32", ours, theirs, [], exactly=exactly)
        assert bool(found.problems()) == wrong
    assert not compare_engines("x", "float32", ours, ours, [], exactly=pytest.fail).problems()


def test_an_output_may_have_more_pieces_than_there_are_positions(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its text is cut anew, into other pieces than it was made of."""
    encode = SentencePieceTokenizer.encode_lines

    def longer(self: Any, texts: list[str]) -> list[list[int]]:
        return [ids * 9 for ids in encode(self, texts)]

    monkeypatch.setattr(SentencePieceTokenizer, "encode_lines", longer)
    settings: Settings = {"decoding": {"max_source": 9}}
    found = export(run, "ctranslate2", tmp_path / "out", asked=ASKED, settings=settings)
    assert found.pairs > len(LINES)


def test_a_file_without_sentences_proves_nothing(run: Path, tmp_path: Path) -> None:
    with pytest.raises(TransduceError, match="no sentences"):
        export(run, "onnx", tmp_path / "out", asked=Items([], []))
    assert not (tmp_path / "out").exists()


def test_large_models_do_less_than_a_sentence_a_second() -> None:
    search = Search(3, 3, 8.0, 0.001)
    line = Parity("x", "float32", searches={1: search}).lines()[1]
    assert "3,000 sentences/s (torch, float32: 0.38)" in line


def test_without_sentences_given_pairs_are_compared(run: Path, tmp_path: Path) -> None:
    found = export(run, "onnx", tmp_path / "out")
    assert found.searches == {}
    assert found.pairs > 10


TRICKY = [
    "the house", "  the   cat ", "", "ﬁn ① ｆｕｌｌ", "a\u200bb", "das haus 猫 x", ">>de<< the cat",
    "the\tmat\u00a0on", "e\u0301 é", "▁the", "das grün",
]  # fmt: skip


@pytest.mark.parametrize("separate", [False, True])
def test_imported_models_are_exported_with_their_rules(
    tmp_path: Path, separate: bool, write: Callable[[str, str], Path]
) -> None:
    """Rules of their own for text, and pieces that one side borrows from the other."""
    write_marian(tmp_path / "marian", separate=separate, codes=[">>de<<"])
    import_marian(tmp_path / "marian", tmp_path / "model", lambda line: None)
    _, _, tokenizers = load_model(tmp_path / "model")
    for to in ("ctranslate2", "onnx"):
        export(tmp_path / "model", to, tmp_path / to, asked=Items(TRICKY, []))
        config = json.loads((tmp_path / to / "transduce.json").read_bytes())
        for name, ours in zip(("source", "target"), tokenizers, strict=True):
            theirs = alone.Tokenizer(tmp_path / to, config[name])
            for line in TRICKY:
                ids = ours.encode(line)
                assert theirs.encode(line) == ids, line
                assert theirs.decode(ids) == ours.decode(ids), line
                assert normalize(line, "none") == alone.normalize(line, "none")
    assert torch.get_num_threads() >= 1
