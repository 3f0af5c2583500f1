"""A model that others trained: our switches compute what its authors' code does."""

import importlib.util
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import transduce
from tests.annalog import (
    CHECKPOINT,
    HEADS,
    VOCABULARY,
    PlainUnpickler,
    find,
    import_annalog,
    our_name,
    read_tokens,
    tokenizer,
    words,
)

MOLECULES = [
    "CCO",
    "c1ccccc1",
    "CC(=O)Oc1ccccc1C(=O)O",
    "Cn1cnc2c1c(=O)n(C)c(=O)n2C",
    "CC(C)Cc1ccc(cc1)C(C)C(=O)O",
    "CC(=O)Nc1ccc(O)cc1",
    "C[C@H](N)C(=O)O",
    "Clc1ccc(Br)cc1",
    "O=C(O)c1ccccc1",
    "CN1CCC[C@H]1c1cccnc1",
    "COc1ccc2[nH]cc(CCNC(C)=O)c2c1",
    "FC(F)(F)c1ccc(/C=C/c2ccncc2)cc1",
]


@pytest.fixture(scope="module")
def package() -> Path:
    if (folder := find()) is None:
        pytest.skip("needs annalog 1.0.6: installed, or its folder in TRANSDUCE_ANNALOG")
    return folder


@pytest.fixture(scope="module")
def model(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("annalog") / "model"
    import_annalog(package, out)
    return out


@pytest.fixture(scope="module")
def authors(package: Path) -> Iterator[Any]:
    """Build the model from the authors' own classes, without the package's other dependencies."""
    files = package / "model_files"
    spec = importlib.util.spec_from_file_location(
        "annalog_model_files", files / "__init__.py", submodule_search_locations=[str(files)]
    )
    assert spec is not None and spec.loader is not None
    module: ModuleType = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    weights = torch.load(package / CHECKPOINT, map_location="cpu", weights_only=True)
    vocabulary, d_model = weights["encoder.tok_embedding.weight"].shape
    d_ff = len(weights["encoder.layers.0.positionwise_feedforward.fc_1.bias"])
    length = len(weights["encoder.pos_embedding.weight"])
    layers = 1 + max(int(k.split(".")[2]) for k in weights if k.startswith("encoder.layers."))
    sizes = (vocabulary, d_model, layers, HEADS, d_ff, 0.1, torch.device("cpu"), length)
    built = module.Seq2Seq(
        module.Encoder(*sizes), module.Decoder(*sizes), 1, 1, torch.device("cpu")
    )
    built.load_state_dict(weights)
    yield built.eval()
    for name in [name for name in sys.modules if name.startswith(spec.name)]:
        del sys.modules[name]


def greedy(authors: Any, tokens: list[str], molecule: str) -> tuple[list[str], list[float]]:
    """Search as the package does with a beam of one, by its own modules."""
    unk, _, sos, eos = range(4)
    ids = [tokens.index(t) if t in tokens else unk for t in words(molecule).split()]
    src = torch.tensor([[sos, *ids, eos]])
    mask, found, scores = authors.make_src_mask(src), [sos], []
    longest = len(authors.decoder.pos_embedding.weight)
    with torch.no_grad():
        memory = authors.encoder(src, mask)
        while found[-1] != eos and len(found) < longest:
            trg = torch.tensor([found])
            logits, _ = authors.decoder(trg, memory, authors.make_trg_mask(trg), mask)
            log_probs = logits[0, -1].log_softmax(-1)
            found.append(int(log_probs.argmax()))
            scores.append(float(log_probs[found[-1]]))
    return [tokens[id_] for id_ in found[1:]], scores


def test_greedy_outputs_are_the_authors(package: Path, model: Path, authors: Any) -> None:
    tokens, translator = read_tokens((package / VOCABULARY).read_bytes()), transduce.load(model)
    texts = translator.translate([f"<sos> {words(molecule)}" for molecule in MOLECULES])
    for molecule, translation in zip(MOLECULES, texts, strict=True):
        expected, scores = greedy(authors, tokens, molecule)
        hypothesis = translation.hypotheses[0]
        assert expected[-1] == "<eos>"
        assert hypothesis.finished
        assert hypothesis.text.split() == expected[:-1]
        assert hypothesis.log_probabilities == pytest.approx(scores, abs=1e-4)
    assert len({translation.text for translation in texts}) == len(MOLECULES)


def test_every_parameter_is_used(package: Path, model: Path) -> None:
    theirs = torch.load(package / CHECKPOINT, map_location="cpu", weights_only=True)
    _, ours, _ = transduce.model_folder.load_model(model)
    assert {our_name(name) for name in theirs} == {name for name, _ in ours.named_parameters()}


def test_the_vocabulary_is_read_without_its_classes() -> None:
    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return print, ("sprung",)

    for content in (Trap(), {"itos": Path("x")}):
        with pytest.raises(pickle.UnpicklingError, match="is refused"):
            read_tokens(pickle.dumps(content))
    plain = {"itos": ["<unk>", "<pad>", "<sos>", "<eos>", "C"], "stoi": {"C": 4}}
    assert read_tokens(pickle.dumps(plain))[4:] == ["C"]
    assert issubclass(PlainUnpickler, pickle.Unpickler)


def test_molecules_are_cut_into_words() -> None:
    assert words("FC%12[C@@H]BrCl") == "F C %12 [C@@H] Br Cl"
    pieces = tokenizer(["<sos>", "C", "[C@H]"])
    assert pieces.encode("<sos> C [C@H] X") == [4, 5, 6, 1]
    assert pieces.decode([5, 6]) == "C [C@H]"
