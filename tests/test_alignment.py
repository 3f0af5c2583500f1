"""Attention between words, and links: by hand, and of a model that is made to look words up."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn

from tests.conftest import BuildModel
from transduce.config import EOS, DecodingConfig, ModelConfig
from transduce.data.text import Pair
from transduce.data.tokenizer import Tokenizer, train_tokenizer
from transduce.decoding.engines import Ensemble
from transduce.decoding.translator import Translator, translator_of
from transduce.errors import UsageError
from transduce.inspection.alignment import (
    Aligned,
    Choice,
    Units,
    align,
    choose,
    cross_attention,
    linked,
    prepared,
    word_attention,
)
from transduce.inspection.attention import attention_weights
from transduce.inspection.words import Word
from transduce.model import Transformer
from transduce.model.transformer import NORMALISERS, DecoderLayer

LETTERS = "a b c d e f g h"


def spelled(kind: str = "word") -> Tokenizer:
    return train_tokenizer([LETTERS] * 9, kind, 30, normalization="NFC", byte_fallback=False)


@pytest.fixture(scope="module")
def finder() -> Translator:
    return a_finder()


def a_finder(**model: Any) -> Translator:
    """Two layers, two heads. In the second layer, the first head finds the decoder's *input* in the
    source, the second (more strongly) the letter after that one; others look at all alike."""
    tokenizer = spelled()
    d = len(tokenizer)
    sizes: dict[str, Any] = {
        "source_vocabulary": d, "target_vocabulary": d, "N": 2, "d_model": d, "d_ff": 3, "h": 2,
        "d_k": d, "d_v": d, "P_drop": 0.0, "norm_place": "pre", "positions": "none",
    }  # fmt: skip
    made = Transformer(ModelConfig(**(sizes | model))).eval()
    for parameter in made.parameters():
        if parameter.dim() > 1:
            nn.init.zeros_(parameter)
    nn.init.eye_(made.source_embedding.weight)  # one row for each letter, and nothing is added
    layer = made.decoder.layers[1]
    assert isinstance(layer, DecoderLayer)
    with torch.no_grad():
        for matrix in (layer.cross_attention.W_Q, layer.cross_attention.W_K):
            matrix.weight[:d] = matrix.weight[d:] = torch.eye(d)
        layer.cross_attention.W_Q.weight[d:] = 2 * torch.eye(d).roll(1, dims=0)
    return translator_of(made, (tokenizer, tokenizer), DecodingConfig())


def links(
    translator: Translator,
    pairs: Sequence[tuple[str, str]],
    choice: Choice,
    units: Units = "words",
    threshold: float | None = None,
) -> list[str]:
    numbered = [Pair(src, tgt, i) for i, (src, tgt) in enumerate(pairs, start=1)]
    return list(map(str, align(translator, numbered, choice, units, threshold)))


# By hand ----------------------------------------------------------------------------------------

WEIGHTS = torch.tensor(
    [  # three source pieces and END
        [0.5, 0.25, 0.125, 0.125],
        [0.0, 0.25, 0.25, 0.5],
        [0.25, 0.0, 0.75, 0.0],
        [0.0, 0.0, 0.0, 1.0],
    ]
)
SOURCE = [Word("ab", (0, 1)), Word("c", (2,))]
TARGET = [Word("x", (0,)), Word("yz", (1, 2))]


def test_sums_and_means_by_hand() -> None:
    assert word_attention(WEIGHTS, SOURCE, TARGET, False).tolist() == [[0.75, 0.125], [0.25, 0.5]]
    assert word_attention(WEIGHTS, SOURCE, TARGET, True).tolist() == [[0.25, 0.25], [0.125, 0.375]]


def test_a_word_without_pieces_is_not_linked() -> None:
    attention = word_attention(WEIGHTS, [Word("-", ()), *SOURCE], [*TARGET, Word("-", ())], False)
    assert attention.tolist() == [[0.0, 0.75, 0.125], [0.0, 0.25, 0.5], [0.0, 0.0, 0.0]]
    assert linked(attention).nonzero().tolist() == [[0, 1], [1, 2]]


def test_weights_that_sum_to_something_else_count_by_their_shares() -> None:
    scaled = WEIGHTS * torch.tensor([[3.0], [0.5], [1.0], [0.0]])
    for later in (False, True):
        expected = word_attention(WEIGHTS, SOURCE, TARGET[:1], later)
        found = word_attention(scaled, SOURCE, TARGET[:1], later)
        assert torch.allclose(found, expected, atol=1e-6)
    nothing = word_attention(torch.zeros(4, 4), SOURCE, TARGET, False)
    assert nothing.tolist() == [[0.0, 0.0], [0.0, 0.0]]
    assert not linked(nothing).any()


def test_links_by_hand() -> None:
    attention = torch.tensor([[0.25, 0.5, 0.25], [0.4, 0.2, 0.4], [0.0, 0.0, 0.0]])
    assert linked(attention).int().tolist() == [[0, 1, 0], [1, 0, 0], [0, 0, 0]]
    assert linked(attention, 0.25).int().tolist() == [[1, 1, 1], [1, 0, 1], [0, 0, 0]]
    assert not linked(torch.full((1, 2), float("nan"))).any()


def test_a_diagonal_is_the_identity() -> None:
    n = 5
    own = [Word("x", (i,)) for i in range(n)]
    weights = torch.eye(n + 1)
    assert torch.equal(linked(word_attention(weights, own, own, False)), torch.eye(n).bool())
    shifted = weights.roll(1, dims=0)  # what each step attends to is what its input translates
    assert torch.equal(linked(word_attention(shifted, own, own, True)), torch.eye(n).bool())


def test_the_mean_of_some_heads() -> None:
    heads = torch.arange(24.0).reshape(3, 2, 4)
    assert torch.equal(Choice(1).of(heads), heads.mean(dim=0))
    assert torch.equal(Choice(1, (3,)).of(heads), heads[2])
    assert torch.equal(Choice(1, (1, 2)).of(heads), heads[:2].mean(dim=0))


def test_links_are_printed_as_pharaoh_reads_them(finder: Translator) -> None:
    (pair,) = prepared(finder, [Pair("a b", "a", 7)], "words")
    assert str(Aligned(pair, [(0, 0), (1, 0)])) == "0-0 1-0"
    assert str(Choice(2, (1, 3), True)) == "layer 2, heads 1 and 3, one step later"
    assert str(Choice(2, (1,))) == "layer 2, head 1"


# Models -----------------------------------------------------------------------------------------

FINDS = Choice(2, (1,), later=True)


def test_a_model_that_finds_its_input(finder: Translator) -> None:
    """One step later it is right; at the step itself it still looks at the word before."""
    pairs = [("a b c d", "d a c b"), ("h", "h"), ("e f", "f e")]
    assert links(finder, pairs, FINDS) == ["0-1 1-3 2-2 3-0", "0-0", "0-1 1-0"]
    (early,) = links(finder, pairs[:1], Choice(2, (1,)))  # the first step's input is BEGIN
    assert [link for link in early.split() if not link.endswith("-0")] == ["0-2", "2-3", "3-1"]
    assert links(finder, [("a b", "b a")], FINDS, threshold=0.9) == ["0-1 1-0"]
    assert links(finder, [("a b", "b c")], FINDS, threshold=0.9) == ["1-0"]


def test_blank_sides_give_empty_lines(finder: Translator) -> None:
    pairs = [("", "a"), ("a", ""), ("a b", "a b"), (" ", "\u3000"), ("\x01", "a")]
    assert links(finder, pairs, FINDS) == ["", "", "0-0 1-1", "", ""]
    assert links(finder, [], FINDS) == []


def test_what_is_too_long_is_cut() -> None:
    translator = a_finder()
    translator.decoding = DecodingConfig(max_source=2)
    pairs = [Pair("a b c", "c b a", 5), Pair("a b", "b a", 6)]
    found = list(align(translator, pairs, FINDS))
    assert [one.pair.cut for one in found] == [("source", "target"), ()]
    assert found[0].links[-1] == (1, 1) and str(found[1]) == "0-1 1-0"
    assert [word.text for word in found[0].pair.target] == ["c", "b", "a"]
    assert all(s < 2 and t < 2 for s, t in found[0].links)


def test_pieces_as_units() -> None:
    tokenizer = spelled("char")
    sizes: dict[str, Any] = {"d_model": 8, "d_ff": 8, "h": 2, "N": 1, "positions": "none"}
    vocabulary = {f"{side}_vocabulary": len(tokenizer) for side in ("source", "target")}
    model = Transformer(ModelConfig(**(sizes | vocabulary))).eval()
    translator = translator_of(model, (tokenizer, tokenizer), DecodingConfig())
    (pair,) = prepared(translator, [Pair("ab c", "abcd", 1)], "pieces")
    assert [word.text for word in pair.source] == ["a", "b", "c"]
    assert [word.text for word in pair.target] == ["a", "b", "c", "d"]
    (words,) = prepared(translator, [Pair("ab c", "abcd", 1)], "words")
    assert [word.text for word in words.source] == ["ab", "c"]
    assert links(translator, [("abcd", "ab c")], Choice(1)) == ["0-0 0-1"]


KINDS = [
    {"decoder_layer_type": kind, "encoder_layer_type": kind}
    for kind in ("self-attention", "restricted", "recurrent", "convolutional")
] + [{"attention_normaliser": kind} for kind in sorted(NORMALISERS)]


@pytest.mark.parametrize("changes", KINDS, ids=str)
def test_other_layers_and_normalisers(changes: dict[str, str]) -> None:
    """In company as alone, within bounds, and each target word at most once."""
    tokenizer = spelled()
    vocabulary = {f"{side}_vocabulary": len(tokenizer) for side in ("source", "target")}
    sizes: dict[str, Any] = {"d_model": 16, "d_ff": 16, "h": 2, "N": 2}
    model = Transformer(ModelConfig(**(sizes | vocabulary | changes))).eval()
    translator = translator_of(model, (tokenizer, tokenizer), DecodingConfig())
    pairs = [("a b c", "d e"), ("f", "a b c d e f"), ("", "a"), ("c c b a h g f e", "b")]
    for choice in (Choice(1), Choice(2, (2,), later=True)):
        together = links(translator, pairs, choice)
        assert together == [links(translator, [pair], choice)[0] for pair in pairs]
        for line, (src, tgt) in zip(together, pairs, strict=True):
            found = [tuple(map(int, link.split("-"))) for link in line.split()]
            assert found == sorted(found)
            assert all(s < len(src.split()) and t < len(tgt.split()) for s, t in found)
            assert len({t for _, t in found}) == len(found)
            if "attention_normaliser" not in changes and src:
                assert len(found) == len(tgt.split())


def test_the_weights_are_those_of_the_attention_pages(build: BuildModel) -> None:
    model = build()
    pairs = [([5, 6, 7], [8, 9]), ([5], [8, 9, 10, 11])]
    for of_pair, some in zip(
        attention_weights(model, pairs), cross_attention(model, pairs, [2]), strict=True
    ):
        assert torch.allclose(of_pair["cross"][1:].float(), some, atol=1e-6)
    assert cross_attention(model, [([], [])], [1, 2])[0].shape == (2, 3, 1, 1)


def test_choices(build: BuildModel) -> None:
    model = build()  # two layers, three heads
    assert choose(model, None) == Choice(1)
    assert choose(build(N=5), None) == Choice(4)
    assert choose(build(N_decoder=1), None) == Choice(1)
    assert choose(model, 2, [3, 1, 3], True) == Choice(2, (1, 3), True)
    for layer, heads, message in [
        (3, [], "--layer 3: the decoder has 2 layers, counted from 1"),
        (0, [], "--layer 0"), (-1, [], "--layer -1"),
        (1, [4], "--heads 4: a layer has 3 heads, counted from 1"), (1, [1, 0], "--heads 0"),
    ]:  # fmt: skip
        with pytest.raises(UsageError, match=message):
            choose(model, layer, heads)


def test_an_engine_that_shows_no_attention(finder: Translator) -> None:
    blind = Translator(Ensemble([]), (finder.source, finder.target), DecodingConfig())
    with pytest.raises(UsageError, match=r"decoding\.engine=torch"):
        links(blind, [("a", "a")], FINDS)


def test_the_ids_are_not_read_beyond_end(finder: Translator) -> None:
    """END is the last row and column, whatever stands beside a pair in its batch."""
    ids = finder.source.encode("a b")
    model = a_finder().engine.model  # type: ignore[attr-defined]
    alone = cross_attention(model, [(ids, ids)], [2])[0]
    beside = cross_attention(model, [(ids, ids), (ids * 3, ids * 4)], [2])[0]
    assert alone.shape == beside.shape == (1, 2, 3, 3)
    assert torch.allclose(alone, beside, atol=1e-6)
    assert EOS not in ids
