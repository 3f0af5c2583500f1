"""Lines in, lines out: blank lines, company, alternatives, unknown characters, cuts and flags."""

import itertools
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import letters_recipe
from transduce.config import EOS, DecodingConfig, ModelConfig
from transduce.data.tokenizer import train_tokenizer
from transduce.decoding import translator as module
from transduce.decoding.translator import Translator, by_length, translator_of
from transduce.errors import TransduceError, UsageError
from transduce.experiment import train
from transduce.model import Transformer
from transduce.model_folder import load_model

CHARS = train_tokenizer(["abcde ab"] * 3, "char", 30, normalization="NFC", byte_fallback=False)
Build = Callable[..., Translator]


@pytest.fixture(scope="module")
def build() -> Build:
    """Build a translator of a random model in float64; its gains are large, so outputs differ."""

    def build(dtype: torch.dtype = torch.float64, **changes: object) -> Translator:
        sizes = {"source_vocabulary": len(CHARS), "target_vocabulary": len(CHARS), "N": 2,
                 "d_model": 16, "d_ff": 24, "h": 2, "P_drop": 0.0}  # fmt: skip
        torch.manual_seed(3)
        model = Transformer(ModelConfig.model_validate(sizes | changes))
        for parameter in model.parameters():
            if parameter.dim() > 1:
                torch.nn.init.normal_(parameter, std=0.5)
        decoding = DecodingConfig(max_extra=5)
        return translator_of(model.to(dtype).eval(), (CHARS, CHARS), decoding)

    return build


SOURCES = ["a", "ab cd", "abc de abc", "e" * 17, "d a" * 10, "abcde abcde", "c"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Translator:
    """Train a model for a moment, and return its translator in float64."""
    folder = tmp_path_factory.mktemp("trained")
    train(letters_recipe(folder, steps=60, every=60), folder / "run")
    _, model, tokenizers = load_model(folder / "run")
    return translator_of(model.double(), tokenizers, DecodingConfig(max_extra=5))


LETTERS = ["a", "ab", "abc", "b" * 17, "ca" * 15, "bcabca", "c"]


@pytest.mark.parametrize("beam", [1, 4, 8])
@pytest.mark.parametrize("which", ["random", "trained"])
def test_company_changes_nothing(
    build: Build, trained: Translator, which: str, beam: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A28: seven sources of 1 to 30 pieces, any batch size, any order: the same answers."""
    translator, sources = (build(), SOURCES) if which == "random" else (trained, LETTERS)
    alone = [translator.translate([line], min(3, beam), beam)[0] for line in sources]
    for size in (1, 2, 3, 7, 64):
        monkeypatch.setattr(module, "by_length", lambda ids, tokens, size=size: batched(ids, size))
        for order in (range(7), reversed(range(7)), (3, 0, 6, 1, 5, 2, 4)):
            places = list(order)
            together = translator.translate([sources[i] for i in places], min(3, beam), beam)
            for place, translation in zip(places, together, strict=True):
                for ours, theirs in itertools.zip_longest(
                    translation.hypotheses, alone[place].hypotheses
                ):
                    assert ours.tokens == theirs.tokens
                    assert ours.score == pytest.approx(theirs.score, abs=1e-9)
                    assert ours.log_probabilities == pytest.approx(
                        theirs.log_probabilities, abs=1e-9
                    )


def batched(ids: dict[int, list[int]], size: int) -> list[list[int]]:
    """Divide keys into batches of a size, as they come: long beside short."""
    keys = list(ids)
    return [keys[i : i + size] for i in range(0, len(keys), size)]


def test_company_in_float32(build: Build) -> None:
    translator = build(torch.float32)
    alone = [translator.translate([line])[0].hypotheses[0] for line in SOURCES]
    together = [translation.hypotheses[0] for translation in translator.translate(SOURCES)]
    for ours, theirs in zip(together, alone, strict=True):
        assert ours.tokens == theirs.tokens or abs(ours.score - theirs.score) < 1e-5
        assert ours.score == pytest.approx(theirs.score, abs=1e-5)


def test_the_first_does_not_depend_on_how_many(build: Build) -> None:
    """A30, P10: the same first, sorted, with distinct texts."""
    translator = build()
    for line in SOURCES:
        lists = [translator.translate([line], n, 8)[0] for n in range(1, 9)]
        assert len({found.text for found in lists}) == 1
        for n, found in enumerate(lists, start=1):
            texts = [h.text for h in found.hypotheses]
            scores = [h.score for h in found.hypotheses]
            assert len(set(texts)) == len(texts)
            assert scores == sorted(scores, reverse=True)
            assert ("fewer" in found.flags) == (len(texts) < n)


def test_scores_are_those_of_the_model(build: Build) -> None:
    translator = build()
    for found in translator.translate(SOURCES):
        output = found.hypotheses[0]
        assert output.log_probability == pytest.approx(sum(output.log_probabilities))
        if output.finished:
            assert output.tokens[-1] == "</s>"
            assert output.score == pytest.approx(
                output.log_probability / ((5 + len(output.tokens)) / 6) ** 0.6
            )
            scored = translator.score([(found.source, output.text)])[0]
            if scored.tokens == output.tokens:  # the text has one spelling in pieces
                assert scored.log_probabilities == pytest.approx(output.log_probabilities)


def test_scoring_in_company(build: Build) -> None:
    translator = build()
    pairs = [(src, tgt) for src in SOURCES[:3] for tgt in ("a", "abc de", "e e e e e")]
    alone = [translator.score([pair])[0] for pair in pairs]
    for ours, theirs in zip(translator.score(pairs), alone, strict=True):
        assert ours.tokens == theirs.tokens
        assert ours.log_probabilities == pytest.approx(theirs.log_probabilities, abs=1e-12)
    assert translator.score([]) == []
    empty = translator.score([("a", "")])[0]
    assert empty.tokens == ("</s>",)


def test_blank_lines_come_out_empty_in_place(build: Build) -> None:
    """P2, A01."""
    found = build().translate(["", "a", "  ", "\u2028", "b", "\x07\x00"], n_best=3)
    assert len(found) == 6
    for i in (0, 2, 3, 5):
        assert [(h.text, h.log_probability) for h in found[i].hypotheses] == [("", 0.0)]
        assert found[i].flags == ("empty",)
    assert build().translate([]) == []


@settings(max_examples=25, deadline=None)
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=12), max_size=6))
def test_as_many_out_as_in_whatever_comes(lines: list[str]) -> None:
    translator = TRANSLATOR
    found = translator.translate(lines, n_best=2)
    assert [translation.source for translation in found] == lines
    for translation in found:
        for output in translation.hypotheses:
            assert not {"\n", "\r"} & set(output.text)
            assert "unk" not in output.text and "<" not in output.text
            output.text.encode("utf-8")


def _translator() -> Translator:
    torch.manual_seed(3)
    config = ModelConfig(source_vocabulary=len(CHARS), target_vocabulary=len(CHARS), N=1,
                         d_model=8, d_ff=8, h=2)  # fmt: skip
    return translator_of(Transformer(config).eval(), (CHARS, CHARS), DecodingConfig(max_extra=3))


TRANSLATOR = _translator()


def test_unknown_characters(build: Build) -> None:
    """A08."""
    found = build().translate(["жжж", "a жжж b"], n_best=2)
    assert len(found) == 2
    assert all("unk" not in h.text for t in found for h in t.hypotheses)


@pytest.mark.parametrize("seed", range(5))
def test_byte_pieces_make_valid_text(seed: int) -> None:
    """A09: whatever bytes a (random) model writes, the output is text, and spells no byte piece."""
    texts = ["see you", "here we go", "come now"] * 5
    spelled = train_tokenizer(texts, "bpe", 290, normalization="NFC")
    torch.manual_seed(seed)
    config = ModelConfig(source_vocabulary=len(spelled), target_vocabulary=len(spelled), N=1,
                         d_model=16, d_ff=16, h=2)  # fmt: skip
    model = Transformer(config).eval()
    torch.nn.init.normal_(model.output.weight, std=1.0)
    translator = translator_of(model, (spelled, spelled), DecodingConfig(max_extra=9))
    lines = ["see 😀 you", "👨‍👩‍👧", "🇩🇪 😀", "􏿿"]
    found = translator.translate(lines, n_best=4)
    assert [translation.source for translation in found] == lines
    for output in (output for translation in found for output in translation.hypotheses):
        output.text.encode("utf-8")
        assert "\ufffd" not in output.text and "<0x" not in output.text


def test_the_length_limit(build: Build) -> None:
    """P14: at most the source's tokens, END included, and max_extra; marked if it was reached."""
    translator = build()
    for found in translator.translate(SOURCES):
        limit = len(CHARS.encode(found.source)) + 1 + 5
        assert len(found.hypotheses[0].tokens) <= limit
        assert ("unfinished" in found.flags) == (not found.hypotheses[0].finished)
        assert found.hypotheses[0].finished or len(found.hypotheses[0].tokens) == limit


def test_over_long_sources_are_cut_and_flagged(build: Build) -> None:
    """P11, and A34 for a table of 16 learned positions."""
    translator = build()
    translator.decoding = DecodingConfig(max_extra=5, max_source=9)
    found = translator.translate(["ab", "abcde" * 4, "c"])
    assert [("cut" in translation.flags) for translation in found] == [False, True, False]
    assert (
        found[1].text == translator.translate([CHARS.decode(CHARS.encode("abcde" * 4)[:9])])[0].text
    )
    learned = build(positions="learned", max_positions=16)
    lines = ["a", *("b" * n for n in (13, 14, 15, 16, 17, 100)), "c"]
    found = learned.translate(lines)
    assert [("cut" in translation.flags) for translation in found] == [False] * 3 + [True] * 4 + [
        False
    ]
    assert all(len(t.hypotheses[0].tokens) <= 16 for t in found)
    with pytest.raises(TransduceError, match="pair 2: the target has 16 pieces"):
        learned.score([("a", "b"), ("a", "c" * 15)])


def test_impossible_requests(build: Build) -> None:
    translator = build()
    with pytest.raises(UsageError, match="5 alternatives need a beam of at least 5"):
        translator.translate(["a"], n_best=5)
    for beam in (0, -1):
        with pytest.raises(UsageError, match="at least 1"):
            translator.translate(["a"], beam_size=beam)


def test_streaming_keeps_the_order(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK", 3)
    translator = build()
    streamed = list(translator.translate_stream(iter(SOURCES)))
    assert [t.text for t in streamed] == [t.text for t in translator.translate(SOURCES)]


def test_batches_side_by_side_change_nothing(build: Build) -> None:
    """Two threads, each with a batch; coverage is recorded from the own batch alone."""
    translator = build()
    pairs = [(line, "abc") for line in SOURCES]
    for beta in (0.0, 0.5):
        translator.decoding = DecodingConfig(max_extra=5, batch_tokens=30, beta=beta)
        alone, scored = translator.translate(SOURCES * 4), translator.score(pairs)
        told: list[int] = []
        threads = torch.get_num_threads()
        torch.set_num_threads(2)
        try:
            assert translator.translate(SOURCES * 4, tell=told.append) == alone
            assert translator.score(pairs) == scored
        finally:
            torch.set_num_threads(threads)
        assert sum(told) == len(SOURCES) * 4


@given(
    st.dictionaries(st.integers(), st.lists(st.just(7), max_size=40), max_size=30),
    st.integers(1, 200),
)
def test_batches_are_of_like_length(ids: dict[int, list[int]], tokens: int) -> None:
    batches = list(by_length(ids, tokens))
    assert sorted(key for batch in batches for key in batch) == sorted(ids)
    for batch in batches:
        assert len(batch) == 1 or len(batch) * (max(len(ids[key]) for key in batch) + 1) <= tokens
    lengths = [len(ids[key]) for batch in batches for key in batch]
    assert lengths == sorted(lengths, reverse=True)


def test_end_is_the_last_token_of_a_target() -> None:
    assert CHARS.pieces([EOS]) == ["</s>"]
