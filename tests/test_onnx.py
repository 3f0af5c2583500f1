"""Exported ONNX folders: the same numbers, the same outputs, and whatever cannot be is refused."""

import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sentencepiece.sentencepiece_model_pb2 import ModelProto

from transduce.config import BOS, EOS, PAD, Config, DecodingConfig, ModelConfig, parse
from transduce.data.text import normalize
from transduce.data.tokenizer import SentencePieceTokenizer, Tokenizer, train_tokenizer
from transduce.decoding.engines import TorchEngine
from transduce.decoding.search import Hypothesis, Next, Penalty, beam_search
from transduce.decoding.translator import Translator, translator_of
from transduce.errors import TransduceError, UsageError
from transduce.exporting import onnx as exporting
from transduce.exporting.onnx import export, refused
from transduce.exporting.standalone import SEARCH
from transduce.model import Transformer
from transduce.model_folder import write_file

onnx = pytest.importorskip("onnx", reason="the extra `onnx` is not installed")
onnxruntime = pytest.importorskip("onnxruntime", reason="the extra `onnx` is not installed")

from transduce.decoding.onnx_engine import OnnxEngine  # noqa: E402
from transduce.exporting.standalone import onnx as standalone  # noqa: E402
from transduce.exporting.standalone import text as lines  # noqa: E402

TEXTS = ["the dog sees 2 cats", "a dog 🙂 and a doghouse 12", "das 猫 ist <b> 犬猫 é"]


def tokenizer_of(kind: str, size: int = 330, **settings: Any) -> Tokenizer:
    return train_tokenizer(
        TEXTS * 3, kind, size, normalization="NFC", symbols=["<b>", "<2de>"], **settings
    )


LETTERS = tokenizer_of("char", byte_fallback=False)  # few pieces: a space, digits, an emoji
WORDS = tokenizer_of("word", 40)
TOKENIZERS = {kind: tokenizer_of(kind) for kind in ("bpe", "unigram", "char", "byte")}
TOKENIZERS |= {"word": WORDS, "letters": LETTERS}
Sides = tuple[Tokenizer, Tokenizer]


def model_of(
    sides: Sides = (LETTERS, WORDS), seed: int = 1, spread: float = 0.4, **changes: Any
) -> tuple[Config, Transformer]:
    """Return a model of random weights, biases and gains, that writes what it likes."""
    sizes = {"source_vocabulary": len(sides[0]), "target_vocabulary": len(sides[1]),
             "joint_vocabulary": sides[0] is sides[1], "N": 2, "d_model": 14, "d_ff": 19, "h": 3,
             "d_k": 5, "d_v": 7}  # fmt: skip
    config = parse({"model": sizes | changes, "decoding": {"max_extra": 9}}, "test")
    torch.manual_seed(seed)
    model = Transformer(config.model).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape) * spread)
    return config, model


def exported(
    folder: Path, sides: Sides = (LETTERS, WORDS), seed: int = 1, **changes: Any
) -> tuple[Transformer, OnnxEngine]:
    config, model = model_of(sides, seed, **changes)
    export(config, model, sides, folder / "exported")
    return model, OnnxEngine(folder / "exported")


def ids(length: int, vocabulary: int, seed: int = 0) -> list[int]:
    return np.random.default_rng([seed, length]).integers(1, vocabulary, length).tolist()


def agree(ours: list[list[float]], theirs: list[list[float]]) -> bool:
    """Say whether two scorings of the same pairs are the same, token by token and in sum."""
    return all(
        x == pytest.approx(y, abs=1e-4) and sum(x) == pytest.approx(sum(y), abs=1e-4, rel=1e-7)
        for x, y in zip(ours, theirs, strict=True)
    )


def outputs(found: list[list[Hypothesis]]) -> list[list[tuple[int, ...]]]:
    return [[hypothesis.tokens for hypothesis in some] for some in found]


def session_of(folder: Path, name: str) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    path = str(folder / "exported" / name)
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def greedy(folder: Path, sources: list[list[int]], limits: list[int]) -> tuple[Any, Any]:
    """Run greedy.onnx."""
    session = session_of(folder, "greedy.onnx")
    src = np.full((len(sources), max(map(len, sources)) + 1), PAD)
    for row, source in zip(src, sources, strict=True):
        row[: len(source) + 1] = [*source, EOS]
    tokens, sums = session.run(None, {"src": src, "limits": np.array(limits)})
    return tokens, sums


# The same numbers -------------------------------------------------------------------------------


@st.composite
def switches(draw: st.DrawFn) -> dict[str, Any]:
    """Everything of a model that may be chosen, in sizes that cannot be confused."""
    return {
        "N_encoder": draw(st.integers(1, 3)),
        "N_decoder": draw(st.integers(1, 3)),
        "d_model": draw(st.sampled_from([1, 8, 13, 14])),
        "h": draw(st.integers(1, 3)),
        "d_k": draw(st.sampled_from([1, 5])),
        "d_v": draw(st.sampled_from([1, 7])),
        "norm_place": draw(st.sampled_from(["post", "pre"])),
        "norm_epsilon": draw(st.sampled_from([1e-5, 0.3])),
        "activation": draw(st.sampled_from(["relu", "swish", "gelu"])),
        "attention_biases": draw(st.booleans()),
        "output_bias": draw(st.booleans()),
        "positions": draw(st.sampled_from(["sinusoidal", "learned"])),
        "max_positions": 30,
        "tie_embeddings": draw(st.booleans()),
        "scale_embeddings": draw(st.booleans()),
    }


@given(switches(), st.sampled_from([(LETTERS, WORDS), (WORDS, WORDS)]), st.integers(0, 99))
@settings(deadline=None, max_examples=10, derandomize=True)
def test_every_switch_is_carried(changes: dict[str, Any], sides: Sides, seed: int) -> None:
    """Scores, coverage, search with both engines, and greedy search in the graph."""
    with TemporaryDirectory() as name:
        model, engine = exported(Path(name), sides, seed, **changes)
        plain = TorchEngine(model)
        sources = [ids(n, len(sides[0]), seed) for n in (5, 1, 9, 0)]
        pairs = [
            (source, ids(n, len(sides[1])))
            for source, n in zip(sources, (3, 0, 8, 17), strict=True)
        ]
        assert agree(engine.score(pairs), plain.score(pairs))
        limits = [7, 3, 11, 1]
        penalty = Penalty("gnmt", 0.6, beta=0.2)
        for beam in (1, 4):
            ours, theirs = (
                beam_search(one.start(sources, coverage=True), limits, beam, beam, penalty)
                for one in (engine, plain)
            )
            assert outputs(ours) == outputs(theirs)
            for some, others in zip(ours, theirs, strict=True):
                assert [h.score for h in some] == pytest.approx([h.score for h in others], abs=1e-4)
        tokens, sums = greedy(Path(name), sources, limits)
        for row, sum_, (best,) in zip(
            tokens, sums, beam_search(plain.start(sources), limits, 1), strict=True
        ):
            filling = tokens.shape[1] - len(best.tokens)
            assert row.tolist() == [*best.tokens, *[PAD] * filling]
            assert sum_ == pytest.approx(best.log_probability, abs=1e-4)


@pytest.mark.parametrize("norm_place", ["post", "pre"])
def test_scores_at_every_length(tmp_path: Path, norm_place: str) -> None:
    """The longest allowed source has 1,000 pieces and END, its target 1,051 tokens."""
    model, engine = exported(tmp_path, norm_place=norm_place)
    lengths = (1, 2, 60, 499, 500, 501)
    pairs = [(ids(n, len(LETTERS)), ids(n, len(WORDS))) for n in lengths]
    pairs.append((ids(1000, len(LETTERS)), ids(1050, len(WORDS))))
    assert agree(engine.score(pairs), TorchEngine(model).score(pairs))
    for pair in pairs[2:4]:
        assert agree(engine.score([pair]), TorchEngine(model).score([pair]))


def test_no_position_is_too_far(tmp_path: Path) -> None:
    """Beyond any limit of the settings, sinusoids are the model's."""
    model, engine = exported(tmp_path, N=1, d_model=6, h=1, d_ff=4)
    pairs = [(ids(5000, len(LETTERS)), ids(2500, len(WORDS)))]
    assert agree(engine.score(pairs), TorchEngine(model).score(pairs))


@pytest.mark.parametrize("sides", [(LETTERS, WORDS), (WORDS, WORDS)])
def test_company_changes_nothing(tmp_path: Path, sides: Sides) -> None:
    """Sentences of all lengths, leaving the batch one by one."""
    _, engine = exported(tmp_path, sides, seed=5)
    sources = [ids(n, len(sides[0]), 3) for n in (1, 30, 2, 17, 9, 60, 0)]
    limits = [len(source) + 10 for source in sources]
    for beam in (1, 4):
        together = beam_search(engine.start(sources), limits, beam, beam)
        for source, limit, found in zip(sources, limits, together, strict=True):
            (alone,) = beam_search(engine.start([source]), [limit], beam, beam)
            assert outputs([alone]) == outputs([found])
            assert [h.score for h in alone] == pytest.approx([h.score for h in found], abs=1e-5)
    tokens, _ = greedy(tmp_path, sources, limits)
    for row, source, limit in zip(tokens, sources, limits, strict=True):
        ((alone_row,), _) = greedy(tmp_path, [source], [limit])
        assert row[row != PAD].tolist() == alone_row.tolist()


def test_without_any_key_nothing_is_attended_to(tmp_path: Path) -> None:
    """A source of nothing but padding: zeros and no NaN, as in the model."""
    model, engine = exported(tmp_path)
    src = np.array([[PAD, PAD, PAD], [5, 6, EOS]])
    encoder = session_of(tmp_path, "encoder.onnx")
    names = [output.name for output in encoder.get_outputs()]
    values = encoder.run_with_ort_values(None, {"src": standalone.on_cpu(src)})
    state = engine.model.start([[5, 6], [5, 6]])
    state.values, state.src_mask = dict(zip(names, values, strict=True)), src != PAD
    tokens = np.full((2, 1), BOS)
    rows = np.arange(2)[:, None]
    log_probs, attention = state.step(tokens, rows, ["log_probs", "attention"])
    assert (attention[0] == 0).all()
    assert attention[1].sum() == pytest.approx(1)
    with torch.inference_mode():
        logits, _ = model.step(torch.from_numpy(tokens), model.start(torch.from_numpy(src)))
    assert np.abs(log_probs - logits.log_softmax(-1).numpy()).max() < 1e-5


def test_learned_positions_end(tmp_path: Path) -> None:
    """Up to the table's end it is the model; the settings say where it is, and beyond it fails."""
    model, engine = exported(tmp_path, positions="learned", max_positions=12)
    pairs = [(ids(11, len(LETTERS)), ids(11, len(WORDS)))]
    assert agree(engine.score(pairs), TorchEngine(model).score(pairs))
    search = json.loads((tmp_path / "exported" / "transduce.json").read_text())["decoding"]
    assert (search["max_source"], search["max_output"]) == (11, 12)
    for pair in ((ids(12, len(LETTERS)), [5]), ([5], ids(12, len(WORDS)))):
        with pytest.raises(Exception, match="out of data bounds"):
            engine.score([pair])
    _, engine = exported(tmp_path / "1", positions="learned", max_positions=1)
    with pytest.raises(Exception, match="out of data bounds"):
        engine.score([([5], [])])  # and not the one row for all


def test_greedy_search_writes_what_it_may(tmp_path: Path) -> None:
    """Never PAD, UNKNOWN or BEGIN, however probable; limits hold for each sentence by itself."""
    config, model = model_of(output_bias=True)
    with torch.no_grad():
        model.output.bias[:3] += 50.0
    export(config, model, (LETTERS, WORDS), tmp_path / "exported")
    tokens, _ = greedy(tmp_path, [[5], [6, 7], [8]], [0, 4, 1])
    written = [row[row != PAD].tolist() for row in tokens]
    assert written[0] == [] and len(written[1]) <= 4 and len(written[2]) == 1
    assert min(written[1] + written[2]) >= EOS
    alone = beam_search(TorchEngine(model).start([[6, 7], [8]]), [4, 1], 1)
    assert written[1:] == [list(found.tokens) for (found,) in alone]


# The script -------------------------------------------------------------------------------------


GUARD = """
import os, runpy, sys

class Guard:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "transduce", "onnx"):
            raise ImportError(f"{name} is not there")

sys.meta_path.insert(0, Guard())
sys.argv = sys.argv[1:]
sys.path.insert(0, os.path.dirname(sys.argv[0]))  # as for any script
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def run_script(folder: Path, text: bytes, *options: str) -> tuple[bytes, str]:
    """Run translate.py where neither torch nor this package can be imported."""
    script = str(folder / "exported" / "translate.py")
    done = subprocess.run(
        [sys.executable, "-I", "-c", GUARD, script, "--threads", "1", *options],
        input=text, capture_output=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout, done.stderr.decode()


def translator_for(
    folder: Path, sides: Sides, seed: int, decoding: dict[str, Any], **changes: Any
) -> Translator:
    """Export a model, and return the translator of what was exported."""
    config, model = model_of(sides, seed, spread=0.8, tie_embeddings=False, **changes)
    decoding = config.decoding.model_dump() | decoding
    config = config.model_copy(update={"decoding": DecodingConfig.model_validate(decoding)})
    export(config, model, sides, folder / "exported")
    return translator_of(model, sides, config.decoding)


LINES = [
    "the dog",
    "",
    "a 🙂 cat <b> sees\r12",
    " \t",
    "das  猫\u2028ist",
    "e\u0301 dog\u00a0x",
    "d" * 40,
]


@pytest.mark.parametrize("beam", [1, 4])
def test_the_script_stands_alone(tmp_path: Path, beam: int) -> None:
    """As many lines out as in; LF and CRLF end a line; a byte-order mark is no text."""
    sides = (TOKENIZERS["bpe"], TOKENIZERS["bpe"])
    translator = translator_for(tmp_path, sides, 4, {"max_source": 30, "batch_tokens": 60})
    text = "\ufeff\r\n" + "\r\n".join(LINES[:3]) + "\n" + "\n".join(LINES[3:])
    out, err = run_script(tmp_path, text.encode(), "--beam-size", str(beam))
    expected = translator.translate(LINES, beam_size=beam)
    assert out.decode().split("\n") == ["", *(found.text for found in expected), ""]
    assert err.count("cut to 30") == sum("cut" in found.flags for found in expected)


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_the_script_translates_as_we_do(tmp_path: Path, kind: str) -> None:
    sides = (TOKENIZERS["letters"] if kind == "word" else TOKENIZERS[kind], TOKENIZERS[kind])
    decoding = {"max_source": 30, "batch_tokens": 60}
    translator = translator_for(tmp_path, sides, 10 if kind == "char" else 4, decoding)
    for beam in (1, 4):
        ours = [found.text for found in translator.translate(LINES, beam_size=beam)]
        script = standalone.Translator(tmp_path / "exported", 1, beam_size=beam)
        assert script.translate(LINES) == ours
        assert len(set(ours)) > 3


class MadeUp(standalone.State):
    """A state in which what comes next depends on the sentence and on all tokens so far."""

    def __init__(self, table: Any, count: int) -> None:
        self.table, self.past = table, np.arange(count)[:, None]

    def next(self, tokens: Any, origin: Any) -> Any:
        self.past = (self.past.flatten()[origin] * 31 + tokens * 7 + 1) % len(self.table)
        return self.table[self.past]

    def step(self, tokens: Any, origin: Any, wanted: Any, k: int = 1) -> list[Any]:
        assert wanted == ["best_log_probs", "best_tokens"]
        log_probs = self.next(tokens, origin)
        log_probs[:, :, :EOS] = -np.inf
        best = np.argsort(-log_probs, axis=2)[:, :, :k]
        return [np.take_along_axis(log_probs, best, axis=2), best]


class MadeUpModel(standalone.Model):
    def __init__(self, table: Any) -> None:
        self.table = table

    def start(self, sources: Any) -> MadeUp:
        return MadeUp(self.table, len(sources))


@given(
    st.integers(0, 10**6),
    st.integers(EOS + 1, 9),
    st.sampled_from([0.3, 1.0, 3.0]),
    st.lists(st.integers(1, 12), min_size=1, max_size=4),
    st.integers(1, 6),
    st.sampled_from([("none", 0.0), ("average", 0.0), ("gnmt", 0.6), ("gnmt", 2.0)]),
)
@settings(deadline=None, max_examples=150)
def test_the_script_searches_as_we_do(
    seed: int,
    vocabulary: int,
    sharpness: float,
    limits: list[int],
    beam: int,
    penalty: tuple[Any, float],
) -> None:
    """Small vocabularies: beams that are not full, outputs that end early, late and never."""
    table = torch.randn(1009, vocabulary, generator=torch.Generator().manual_seed(seed))
    table = (table * sharpness).log_softmax(dim=-1)
    state = MadeUp(table.numpy(), len(limits))

    def step(tokens: torch.Tensor, origin: torch.Tensor) -> Next:
        return Next(torch.from_numpy(state.next(tokens.numpy(), origin.numpy())))

    found = beam_search(step, limits, beam, 1, Penalty(*penalty))
    script = lines.length_penalty(*penalty)
    sources: list[list[int]] = [[] for _ in limits]
    alone = standalone.search(MadeUpModel(table.numpy()), sources, limits, beam, script)
    assert alone == [best.tokens for (best,) in found]


@pytest.mark.parametrize(
    "decoding",
    [
        {"penalty": "none"},
        {"penalty": "average"},
        {"alpha": 1.5},
        {"beam_size": 7},
        {"max_extra": 0},
    ],
)
def test_the_script_obeys_the_settings(tmp_path: Path, decoding: dict[str, Any]) -> None:
    sides = (LETTERS, LETTERS)
    translator = translator_for(tmp_path, sides, 11, decoding, positions="learned")
    found = standalone.Translator(tmp_path / "exported", 1).translate(LINES)
    assert found == [one.text for one in translator.translate(LINES)]


def test_breaks_in_outputs_become_spaces(tmp_path: Path) -> None:
    sides = (LETTERS, TOKENIZERS["byte"])
    config, model = model_of(sides, output_bias=True)
    with torch.no_grad():
        for byte in b"\r\na":
            model.output.bias[EOS + 1 + byte] += 12.0
    export(config, model, sides, tmp_path / "exported")
    expected = translator_of(model, sides, config.decoding).translate(LINES)
    assert any(" " in found.text for found in expected)
    out, _ = run_script(tmp_path, "\n".join(LINES).encode())
    assert out.decode() == "".join(f"{found.text}\n" for found in expected)


@given(st.text(), st.sampled_from(["NFC", "NFKC", "none"]))
def test_the_script_normalises_as_we_do(text: str, form: str) -> None:
    assert lines.normalize(text, form) == normalize(text, form)


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, lines.Tokenizer]:
    """The script's tokenizers, read from exported folders."""
    folder, found = tmp_path_factory.mktemp("tokenizers"), {}
    for kind, tokenizer in TOKENIZERS.items():
        sides = (tokenizer, tokenizer)
        config, model = model_of(sides, N=1)
        export(config, model, sides, folder / kind)
        side = json.loads((folder / kind / "transduce.json").read_text("utf-8"))["source"]
        found[kind] = lines.Tokenizer(folder / kind, side)
    return found


@given(st.data(), st.sampled_from(list(TOKENIZERS)))
def test_the_script_cuts_and_joins_as_we_do(
    theirs: dict[str, lines.Tokenizer], data: st.DataObject, kind: str
) -> None:
    ours = TOKENIZERS[kind]
    text = data.draw(st.text() | st.text("ado g<b>2é猫\r\u0301"))
    assert theirs[kind].encode(text) == ours.encode(text)
    some = data.draw(st.lists(st.integers(0, len(ours) - 1)))
    assert theirs[kind].decode(some) == ours.decode(some)


def test_the_space_before_a_text_is_put_once(tmp_path: Path) -> None:
    """Though a vocabulary from elsewhere has sentencepiece put another one."""
    learnt = TOKENIZERS["bpe"]
    assert isinstance(learnt, SentencePieceTokenizer)
    proto = ModelProto.FromString(learnt.proto)
    proto.normalizer_spec.add_dummy_prefix = True
    ours = SentencePieceTokenizer(proto.SerializeToString(), "NFC")
    exported(tmp_path, (ours, ours))
    side = json.loads((tmp_path / "exported" / "transduce.json").read_text("utf-8"))["source"]
    theirs = lines.Tokenizer(tmp_path / "exported", side)
    for line in LINES:
        assert theirs.encode(line) == ours.encode(line) == learnt.encode(line)


# The folder -------------------------------------------------------------------------------------


def test_every_setting_of_a_model_is_decided() -> None:
    """Whoever adds a switch says whether the graphs carry it."""
    decided = set(exporting.CARRIED) | exporting.NOT_CARRIED
    assert set(ModelConfig.model_fields) == decided
    assert not set(exporting.CARRIED) & exporting.NOT_CARRIED
    assert set(DecodingConfig.model_fields) >= SEARCH


def test_what_is_not_carried_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, model = model_of(activation="swish", norm_place="pre")
    assert refused(config.model) == []
    carried = {k: v for k, v in exporting.CARRIED.items() if k != "norm_place"}
    monkeypatch.setattr(exporting, "CARRIED", carried | {"activation": ("relu", "gelu")})
    assert refused(config.model) == ["norm_place", "activation"]
    assert refused(ModelConfig()) == []
    with pytest.raises(UsageError, match=r"model\.norm_place = 'pre'"):
        export(config, model, (LETTERS, WORDS), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_what_the_graphs_do_not_know_is_refused(tmp_path: Path) -> None:
    """A part of the model that no list speaks of."""
    config, model = model_of()
    model.decoder.layers[0].gate = torch.nn.Parameter(torch.ones(3))
    with pytest.raises(TransduceError, match=r"decoder\.layers\.0\.gate"):
        export(config, model, (LETTERS, WORDS), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "decoding", [{"beta": 0.1}, {"method": "sample"}, {"min_length": 2}, {"no_repeat": 3}]
)
def test_another_search_is_refused(tmp_path: Path, decoding: dict[str, Any]) -> None:
    (name,) = decoding
    with pytest.raises(UsageError, match=f"decoding.{name}"):
        translator_for(tmp_path, (LETTERS, WORDS), 1, decoding)
    assert list(tmp_path.iterdir()) == []


def test_graphs_are_valid_and_plain(tmp_path: Path) -> None:
    """Standard operators of an old opset; weights once, tied ones too; nothing else large."""
    sides = (WORDS, WORDS)
    model, _ = exported(tmp_path, sides)
    folder = tmp_path / "exported"
    for name in ("encoder.onnx", "decoder.onnx", "greedy.onnx"):
        onnx.checker.check_model(str(folder / name), full_check=True)
        graph = onnx.load(str(folder / name), load_external_data=False)
        assert [(o.domain, o.version) for o in graph.opset_import] == [("", 17)]
        assert {node.domain for node in graph.graph.node} == {""}
        readme = (folder / "README.md").read_text()
        for value in (*graph.graph.input, *graph.graph.output):
            assert value.name.partition(".")[0] in readme
    bytes_ = 4 * sum(p.numel() for p in model.parameters())
    assert bytes_ <= (folder / "weights.bin").stat().st_size < 1.3 * bytes_
    assert {path.name for path in folder.iterdir()} == {
        "encoder.onnx", "decoder.onnx", "greedy.onnx", "weights.bin", "transduce.json", "joint.spm",
        "translate.py", "text.py", "README.md",
    }  # fmt: skip


def test_a_folder_is_never_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, model = model_of()

    def full(path: Path, content: bytes) -> None:
        if path.name == "README.md":
            raise TransduceError("the disk is full")
        write_file(path, content)

    out = tmp_path / "deep" / "out"
    monkeypatch.setattr(exporting, "write_file", full)
    with pytest.raises(TransduceError, match="full"):
        export(config, model, (LETTERS, WORDS), out)
    assert list(out.parent.iterdir()) == []
    monkeypatch.undo()
    (out.parent / ".out.part").mkdir()  # left by one that was killed
    (out.parent / ".out.part" / "old").touch()
    out.mkdir()
    export(config, model, (LETTERS, WORDS), out)
    assert not (out / "old").exists()
    assert [path.name for path in out.parent.iterdir()] == ["out"]
    before = (out / "transduce.json").read_bytes()
    with pytest.raises(UsageError, match="give another --out"):
        export(config, model, (LETTERS, WORDS), out)
    assert (out / "transduce.json").read_bytes() == before


def test_a_file_in_the_way_stays(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine")
    with pytest.raises(UsageError, match="give another --out"):
        export(*model_of(), (LETTERS, WORDS), tmp_path / "out")
    with pytest.raises(TransduceError, match="cannot write"):
        export(*model_of(), (LETTERS, WORDS), tmp_path / "out" / "inside")
    assert (tmp_path / "out").read_text() == "mine"


def test_what_is_missing_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporting, "find_spec", lambda name: None)
    with pytest.raises(TransduceError, match=r"transduce\[onnx\]"):
        export(*model_of(), (LETTERS, WORDS), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(TransduceError, match="no exported ONNX model"):
        OnnxEngine(tmp_path)
    (tmp_path / "decoder.onnx").write_bytes(b"nothing")
    with pytest.raises(TransduceError, match="cannot read"):
        OnnxEngine(tmp_path)
    monkeypatch.delitem(sys.modules, "transduce.exporting.standalone.onnx")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(TransduceError, match=r"transduce\[onnx\]"):
        OnnxEngine(tmp_path)
