"""Tokenizers: round trips, sizes that cannot be met, marks, bytes, symbols, sampling."""

import hashlib
import itertools
import math
import pickle
import re
import string
import subprocess
import sys
import threading
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sentencepiece.sentencepiece_model_pb2 import ModelProto

from transduce.config import BOS, EOS, PAD, UNK
from transduce.data.sampling import Dropout, Segmentations
from transduce.data.text import normalize
from transduce.data.tokenizer import (
    ByteTokenizer,
    SentencePieceTokenizer,
    Tokenizer,
    check_symbols,
    grow_tokenizer,
    train_tokenizer,
)
from transduce.errors import TransduceError, UsageError

TEXTS = [
    "The quick brown fox jumps over the lazy dog.", "Wir sehen uns morgen früh, nicht wahr?",
    "two  spaces", "… ² ﬁ ︰ ŀ", "日本語の文", "سَلَام", "שָׁלוֹם", "see 😀 you",
]  # fmt: skip
SYMBOLS = ["<2de>", "<2d", "</b>", "@@", "日本"]
ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]))
WITH_SYMBOLS = st.lists(st.sampled_from(["<2de>", "<2d", "@@", "日本", "@", " ", "x"]) | ANY_TEXT)


def learn(texts: list[str], kind: str, vocabulary: int, **settings: Any) -> Tokenizer:
    texts = [normalize(text, "NFC") for text in texts]
    return train_tokenizer(texts, kind, vocabulary, normalization="NFC", **settings)


def proto(tokenizer: Tokenizer) -> bytes:
    assert isinstance(tokenizer, SentencePieceTokenizer)
    return tokenizer.proto


BPE = learn(TEXTS, "bpe", 400)
CHAR = learn(TEXTS, "char", 400, byte_fallback=False)
LOSSLESS = {
    f"{kind}{' with symbols' if symbols else ''}": learn(TEXTS * 3, kind, 440, symbols=symbols)
    for kind in ("bpe", "unigram", "char", "byte")
    for symbols in ([], SYMBOLS)
}


@pytest.mark.parametrize("name", LOSSLESS)
@given(ANY_TEXT | WITH_SYMBOLS.map("".join))
def test_bytes_lose_nothing(name: str, text: str) -> None:
    tokenizer, text = LOSSLESS[name], normalize(text, "NFC")
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert not {PAD, UNK, BOS, EOS} & set(ids)
    assert all(0 <= id_ < len(tokenizer) for id_ in ids)
    assert tokenizer.encode_all([text, "", text])[2].tolist() == ids


@pytest.mark.parametrize("name", LOSSLESS)
@given(ANY_TEXT | WITH_SYMBOLS.map("".join), st.floats(0, 0.99), st.integers())
def test_sampling_loses_nothing(name: str, text: str, rate: float, seed: int) -> None:
    tokenizer, text = LOSSLESS[name], normalize(text, "NFC")
    (ids,) = tokenizer.sample([text], rate, seed)
    assert tokenizer.decode(ids) == text
    assert not {PAD, UNK, BOS, EOS} & set(ids.tolist())
    symbols = {symbol: tokenizer.encode(f"x{symbol}")[-1] for symbol in SYMBOLS}
    if name.endswith("symbols"):
        usual = tokenizer.encode(text)
        for id_ in symbols.values():
            assert ids.tolist().count(id_) == usual.count(id_)


@pytest.mark.parametrize(
    "text",
    [*TEXTS, "日本 🙂", "<0x41>", "</s>", "<pad> <unk>", " leading", "trailing ", "👨‍👩‍👧", "🇩🇪"],
)
@pytest.mark.parametrize("name", LOSSLESS)
def test_round_trips(name: str, text: str) -> None:
    tokenizer = LOSSLESS[name]
    assert tokenizer.decode(tokenizer.encode(text)) == normalize(text, "NFC")
    assert not {PAD, UNK, BOS, EOS} & set(tokenizer.encode(text))


@given(ANY_TEXT)
def test_decoding_what_was_decoded_changes_nothing(text: str) -> None:
    """A08: whatever a vocabulary without bytes makes of unknown characters."""
    once = CHAR.decode(CHAR.encode(text))
    assert CHAR.decode(CHAR.encode(once)) == once
    assert "unk" not in once or "unk" in text


@pytest.mark.parametrize("kind", ["bpe", "unigram", "char", "word"])
def test_unknown_characters_without_bytes(kind: str) -> None:
    tokenizer = learn(["ab ab", "b a"], kind, 12, byte_fallback=False)
    assert UNK in tokenizer.encode("語語")
    assert tokenizer.decode(tokenizer.encode("語")) == ""
    for rate in (0.0, 0.5):
        sampled = tokenizer.sample(["語語 ab語語語"], rate, 1)[0].tolist()
        assert sampled.count(UNK) == tokenizer.encode("語語 ab語語語").count(UNK)


@pytest.mark.parametrize("name", LOSSLESS)
def test_no_text_has_no_ids(name: str) -> None:
    tokenizer = LOSSLESS[name]
    assert tokenizer.encode("") == []
    assert [ids.dtype for ids in tokenizer.encode_all(["", "a"])] == [np.int32, np.int32]
    assert tokenizer.encode_all([]) == tokenizer.sample([], 0.1, 1) == []
    assert tokenizer.sample([""], 0.1, 1)[0].shape == (0,)


@given(st.lists(st.integers(0, EOS) | st.integers(0, len(BPE) - 1)))
def test_reserved_ids_leave_no_trace(ids: list[int]) -> None:
    plain = [id_ for id_ in ids if id_ > EOS]
    assert BPE.decode(ids) == BPE.decode(plain)


def test_broken_bytes_leave_no_trace() -> None:
    smile = [i for i in range(len(BPE)) if re.fullmatch("<0x(F0|9F)>", BPE.pieces([i])[0])]
    ids = BPE.encode("see")
    assert BPE.decode([BOS, *ids, UNK, PAD, EOS, PAD]) == "see"
    assert BPE.decode([*ids, *smile, *BPE.encode(" you")]) == "see  you"  # half an emoji
    assert BPE.decode([]) == ""


def test_both_spellings_give_the_same_ids() -> None:
    assert BPE.encode("fru\u0308h") == BPE.encode("fr\u00fch")


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_marks_stay_with_their_letter(kind: str) -> None:
    """A07: no piece begins with U+0307 but the mark alone, and all text is still reachable."""
    tokenizer = learn(["u\u0307 e", "u\u0307e"] * 20, kind, 300)
    pieces = tokenizer.pieces(range(len(tokenizer)))
    assert not [piece for piece in pieces if piece.startswith("\u0307") and len(piece) > 1]
    assert "u\u0307e" in pieces or kind == "unigram"
    text = "eu\u0307e u\u0307"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    for seed in range(20):
        assert tokenizer.decode(tokenizer.sample([text], 0.5, seed)[0]) == text


def test_a_symbol_may_begin_with_a_mark() -> None:
    tokenizer = learn(TEXTS, "bpe", 400, symbols=["\u0307x"])
    assert "\u0307x" in tokenizer.pieces(tokenizer.encode("u\u0307x"))


@pytest.mark.parametrize("symbols", [[], ["<2de>", 'a,"b']])
@pytest.mark.parametrize("byte_fallback", [False, True])
@pytest.mark.parametrize("kind", ["bpe", "unigram", "char", "word"])
def test_a_vocabulary_larger_than_the_data(
    kind: str, byte_fallback: bool, symbols: list[str]
) -> None:
    """A06: as large as it can be."""
    tokenizer = learn(["a b c"] * 3, kind, 8000, byte_fallback=byte_fallback, symbols=symbols)
    assert 7 <= len(tokenizer) - 256 * (byte_fallback and kind != "word") < 50
    assert tokenizer.decode(tokenizer.encode("c a b")) == "c a b"


@pytest.mark.parametrize("symbols", [[], ["<2de>", "<2fr>"]])
@pytest.mark.parametrize("byte_fallback", [False, True])
@pytest.mark.parametrize("kind", ["bpe", "unigram", "char", "word"])
def test_a_vocabulary_smaller_than_the_alphabet(
    kind: str, byte_fallback: bool, symbols: list[str]
) -> None:
    """A06: the number in the message works, and the one below it does not."""
    texts = [string.ascii_lowercase, "a b c", "<2de> abc"] * 3
    settings: dict[str, Any] = {"byte_fallback": byte_fallback, "symbols": symbols}
    with pytest.raises(UsageError, match=r"source side: .*tokenizer\.vocabulary") as caught:
        learn(texts, kind, 4, name="source side", **settings)
    (number,) = (int(n) for n in re.findall(r"at least (\d+)", str(caught.value)))
    assert len(learn(texts, kind, number, **settings)) == number
    with pytest.raises(UsageError, match=f"at least {number}"):
        learn(texts, kind, number - 1, **settings)


def test_coverage() -> None:
    texts = ["aaaaaa bbb c", "aaaaaa bbb d"]  # 12 a, 6 b, 4 spaces and 2 that begin a line
    for kind in ("bpe", "char"):

        def known(coverage: float | None, kind: str = kind, byte_fallback: bool = False) -> str:
            tokenizer = learn(
                texts, kind, 400, character_coverage=coverage, byte_fallback=byte_fallback
            )
            pieces = tokenizer.pieces(range(len(tokenizer)))
            return "".join(sorted(character for character in "abcd" if character in pieces))

        assert known(None) == "abcd"
        assert known(0.93) == "abc"  # of equally frequent ones, the first
        assert known(0.8) == "ab"
        assert known(0.3) == "a"  # far below what sentencepiece allows
        assert known(None, byte_fallback=True) == "abcd"


def test_few_spaces_are_still_spaces() -> None:
    """The space that begins a text is as rare as its lines; it is never spelled in bytes."""
    tokenizer = learn(["a" * 5000], "char", 400, character_coverage=0.9)
    assert tokenizer.pieces(tokenizer.encode("a")) == ["▁", "a"]
    assert tokenizer.decode(tokenizer.encode("a a")) == "a a"


def test_lines_with_the_sign_that_sentencepiece_skips() -> None:
    tokenizer = learn(["loading ▂▅█"], "char", 400, byte_fallback=False)
    assert tokenizer.decode(tokenizer.encode("▂█ loading")) == "▂█ loading"


def test_the_line_separator_is_an_ordinary_character() -> None:
    """A02: learnt, saved, loaded: the same pieces."""
    tokenizer = train_tokenizer(
        ["one\u2028two", "three"] * 5, "char", 100, normalization="NFC", byte_fallback=False
    )
    again = SentencePieceTokenizer(proto(tokenizer), "NFC")
    (ids,) = again.encode_all(["one\u2028two"])
    assert again.pieces(ids.tolist()) == list("▁one\u2028two")
    assert again.decode(ids) == "one\u2028two"


def test_a_model_that_puts_the_space_itself() -> None:
    model = ModelProto.FromString(proto(BPE))
    model.normalizer_spec.add_dummy_prefix = True
    again = SentencePieceTokenizer(model.SerializeToString(), "NFC")
    assert [again.encode(text) for text in TEXTS] == [BPE.encode(text) for text in TEXTS]


PRINT_HASHES = f"""
import hashlib
from transduce.data.tokenizer import train_tokenizer
texts = {TEXTS!r}
for kind in ("bpe", "unigram", "char", "word"):
    tokenizer = train_tokenizer(texts, kind, 350, normalization="none", symbols=["<2de>"])
    sampled = tokenizer.sample(texts, 0.3, 17)
    print(hashlib.sha256(tokenizer.proto).hexdigest(), [ids.tolist() for ids in sampled])
"""


def test_learning_and_sampling_are_the_same_in_another_process() -> None:
    outputs = {
        subprocess.run(
            [sys.executable, "-c", PRINT_HASHES], capture_output=True, check=True, text=True
        ).stdout
        for _ in range(2)
    }
    lines = []
    for kind in ("bpe", "unigram", "char", "word"):
        tokenizer = train_tokenizer(TEXTS, kind, 350, normalization="none", symbols=["<2de>"])
        sampled = [ids.tolist() for ids in tokenizer.sample(TEXTS, 0.3, 17)]
        lines.append(f"{hashlib.sha256(proto(tokenizer)).hexdigest()} {sampled}\n")
    assert outputs == {"".join(lines)}


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_sampling_depends_on_the_seed_alone(kind: str) -> None:
    tokenizer = LOSSLESS[f"{kind} with symbols"]

    def draw(seed: int) -> list[list[int]]:
        return [ids.tolist() for ids in tokenizer.sample(TEXTS, 0.3, seed)]

    expected = {seed: draw(seed) for seed in range(8)}
    assert len({str(ids) for ids in expected.values()}) > 4
    found: dict[int, list[list[int]]] = {}
    threads = [
        threading.Thread(target=lambda seed=seed: found.update({seed: draw(seed)}))
        for seed in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == expected
    assert [
        ids.tolist() for ids in pickle.loads(pickle.dumps(tokenizer)).sample(TEXTS, 0.3, 5)
    ] == (expected[5])


@pytest.mark.parametrize("kind", ["char", "word", "byte"])
def test_what_has_no_other_ways(kind: str) -> None:
    tokenizer = learn(TEXTS, kind, 400)
    for ids, usual in zip(
        tokenizer.sample(TEXTS, 0.5, 3), tokenizer.encode_all(TEXTS), strict=True
    ):
        assert ids.tolist() == usual.tolist()


def test_rate_0_is_the_usual_way() -> None:
    for name in ("bpe", "unigram"):
        ids = LOSSLESS[name].sample(TEXTS, 0.0, 3)
        assert [i.tolist() for i in ids] == [i.tolist() for i in LOSSLESS[name].encode_all(TEXTS)]


def spell(pieces: Any) -> list[int]:
    return [sum(256**i * ord(c) for i, c in enumerate(piece)) for piece in pieces]


WORDS = ["".join(letters) for letters in itertools.product("abc ", repeat=5)]
FEW_LETTERS = learn(WORDS, "bpe", 200, byte_fallback=False)


@pytest.mark.parametrize("tokenizer", [BPE, FEW_LETTERS])
@given(ANY_TEXT | st.text("abc ", min_size=5))
def test_dropout_of_almost_nothing_merges_as_sentencepiece_does(
    tokenizer: Tokenizer, text: str
) -> None:
    text = normalize(text, "NFC")
    for _ in range(2):  # the second time from memory
        assert tokenizer.sample([text], 1e-12, 1)[0].tolist() == tokenizer.encode(text)


def test_dropout_leaves_out_merges_at_its_rate() -> None:
    """abc: ab first, then abc or, if ab was left out, bc and then abc."""
    dropout = Dropout({"ab": 0.0, "bc": -1.0, "abc": -2.0}, spell)
    texts = ["abc"] * 40_000
    seen = Counter(tuple(ids) for ids in dropout.draw(texts, 0.3, 1))
    merged, left, right, none = (
        seen[tuple(spell(pieces))] / len(texts)
        for pieces in (["abc"], ["ab", "c"], ["a", "bc"], ["a", "b", "c"])
    )
    assert merged == pytest.approx(0.7 * 0.7 + 0.3 * 0.7 * 0.7, abs=0.01)
    assert left == pytest.approx(0.7 * 0.3, abs=0.01)
    assert right == pytest.approx(0.3 * 0.7 * 0.3, abs=0.01)
    assert none == pytest.approx(0.3 * 0.3, abs=0.01)


def test_segmentations_have_their_probability() -> None:
    scores = {"a": -1.0, "b": -2.0, "c": -3.0, "ab": -2.5, "bc": -3.0}
    ways = {("a", "b", "c"): -6.0, ("ab", "c"): -5.5, ("a", "bc"): -4.0}
    total = sum(math.exp(0.5 * score) for score in ways.values())
    texts = ["abc"] * 40_000
    seen = Counter(tuple(ids) for ids in Segmentations(scores, spell).draw(texts, 0.5, 1))
    assert sum(seen[tuple(spell(way))] for way in ways) == len(texts)
    for way, score in ways.items():
        share = seen[tuple(spell(way))] / len(texts)
        assert share == pytest.approx(math.exp(0.5 * score) / total, abs=0.01)


@pytest.mark.parametrize("kind", ["bpe", "unigram", "char", "word", "byte"])
def test_symbols_stay_whole(kind: str) -> None:
    texts = ["<2de> Hallo du", "<2fr> Hallo <2de>", "Hallo <translate-into-German> du"]
    symbols = ["<2de>", "<2fr>", "<2", "<2de>", "<translate-into-German>"]
    tokenizer = learn(texts, kind, 400, symbols=symbols)
    for text in [*texts, "du <2de>", "<2de><2fr>", "  <2de>" if kind != "word" else "<2de>", "<2"]:
        sampled = [ids.tolist() for ids in tokenizer.sample([text] * 5, 0.5, 1)]
        for ids in [tokenizer.encode(text), *sampled]:
            pieces = [piece.removeprefix("▁") for piece in tokenizer.pieces(ids)]
            found = [piece for piece in pieces if piece in symbols]
            assert found == re.findall("<2de>|<2fr>|<2|<translate-into-German>", text)
            assert tokenizer.decode(ids) == text
    pieces = tokenizer.pieces(tokenizer.encode("unseen<2de>unseen"))
    assert "<2de>" in pieces
    assert tokenizer.pieces(range(len(tokenizer))).count("<2de>") == 1


def test_words_between_symbols() -> None:
    tokenizer = learn(["<b>run</b> left", "<2de> run"], "word", 100, symbols=["<b>", "</b>"])
    ids = tokenizer.encode("<b>run</b> run")
    assert tokenizer.pieces(ids) == ["▁<b>", "run", "</b>", "▁run"]
    assert tokenizer.decode(ids) == "<b>run</b> run"


@pytest.mark.parametrize(
    "symbol",
    ["", " ", "a b", "a\u3000b", "\x1f", "a\x00", "▁x", "<pad>", "<unk>", "<s>", "</s>", "<0x41>",
     "e\u0301"],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["bpe", "word", "byte"])
def test_impossible_symbols(kind: str, symbol: str) -> None:
    with pytest.raises(UsageError, match=r"tokenizer\.symbols"):
        learn(TEXTS, kind, 400, symbols=["<ok>", symbol])


def test_possible_symbols() -> None:
    assert check_symbols(["<a>", "▅", "<a>", "<0x4>", "<PAD>", "e"], "NFC") == [
        "<a>", "▅", "<0x4>", "<PAD>", "e"
    ]  # fmt: skip
    assert check_symbols(["½"], "NFC") == ["½"]
    with pytest.raises(UsageError, match="NFKC"):
        check_symbols(["½"], "NFKC")
    assert check_symbols(["e\u0301"], "none") == ["e\u0301"]


def test_bytes() -> None:
    tokenizer = ByteTokenizer(["<2de>", "<2"], "NFC")
    assert len(tokenizer) == 262
    assert tokenizer.encode("a ä") == [4 + 0x61, 4 + 0x20, 4 + 0xC3, 4 + 0xA4]
    assert tokenizer.encode("<2de>!<2<") == [260, 4 + 0x21, 261, 4 + 0x3C]
    shown = tokenizer.pieces([*range(4), *tokenizer.encode("~a ä\x7f<2de>"), 4, 4 + 0x7F])
    assert shown == [
        "<pad>", "<unk>", "<s>", "</s>", "~", "a", "▁", "<0xC3>", "<0xA4>", "<2de>", "<0x00>",
        "<0x7F>",
    ]  # fmt: skip
    assert tokenizer.decode([BOS, 4 + 0x61, 4 + 0xC3, 4 + 0x62, 4 + 0xA4, 260, EOS]) == "ab<2de>"
    assert tokenizer.decode(tokenizer.encode(" a")) == " a"
    assert [type(learn([], "byte", 5)), len(learn([], "byte", 5))] == [ByteTokenizer, 260]


def test_words() -> None:
    tokenizer = learn(["jump left", "run left"] * 9, "word", 100)
    assert tokenizer.pieces(tokenizer.encode("run right left")) == ["▁run", "<unk>", "▁left"]
    assert tokenizer.decode(tokenizer.encode("run right left")) == "run left"


def test_text_that_was_tokenized_before() -> None:
    text = "New York@@ s , don 't &apos; @-@ ( x ) ##ing"
    tokenizer = learn([text], "word", 100)
    assert tokenizer.pieces(tokenizer.encode(text)) == [f"▁{word}" for word in text.split(" ")]
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_the_most_frequent_words_are_kept() -> None:
    tokenizer = learn(["a a a a b b b c", "c d e f"], "word", 7)
    assert tokenizer.pieces(range(4, 7)) == ["▁a", "▁b", "▁c"]
    assert len(tokenizer) == 7


def test_what_is_no_tokenizer() -> None:
    for content in (b"\x80\x04nonsense", b"", b"nonsense", proto(BPE)[:100]):
        with pytest.raises(TransduceError, match="sentencepiece model"):
            SentencePieceTokenizer(content, "NFC")


@pytest.mark.parametrize("kind", ["bpe", "unigram", "char", "word"])
def test_an_empty_corpus(kind: str) -> None:
    with pytest.raises(TransduceError, match="vocabulary"):
        learn([], kind, 300)


NEW_TEXTS = ["see αβγ δε αβγ", "αβγα 😁 now <2x> δε", "αβγ δε\u0307 αβ", "\u0307"] * 5
GREEK = "αβγδε\u0307😁"


def grow(old: Tokenizer, texts: list[str], most: int | None = None, **settings: Any) -> Tokenizer:
    assert isinstance(old, SentencePieceTokenizer)
    return grow_tokenizer(old, [normalize(text, "NFC") for text in texts], most, **settings)


OLD = {
    (kind, spelled): learn(TEXTS[:3], kind, 60 + 256 * spelled, byte_fallback=spelled)
    for kind in ("bpe", "unigram", "char", "word")
    for spelled in (False, True)
}
GROWN = {
    (*name, most): grow(old, NEW_TEXTS, most, symbols=["<2x>"])
    for name, old in OLD.items()
    for most in (None, 12)
}


@pytest.mark.parametrize("name", GROWN, ids=str)
@given(ANY_TEXT | st.text("".join(TEXTS[:3])) | st.sampled_from(TEXTS[:3]))
def test_what_grows_cuts_old_text_as_before(name: tuple[str, bool, int | None], text: str) -> None:
    kind, spelled, _ = name
    old, new = OLD[kind, spelled], GROWN[name]
    text = "".join(c for c in normalize(text, "NFC") if c not in GREEK)
    assert new.encode(text) == old.encode(text)
    assert new.sample([text], 0.3, 1)[0].tolist() == old.sample([text], 0.3, 1)[0].tolist()


@pytest.mark.parametrize("name", GROWN, ids=str)
def test_what_grows_keeps_its_ids_and_spells_the_new(name: tuple[str, bool, int | None]) -> None:
    kind, spelled, most = name
    old, new = OLD[kind, spelled], GROWN[name]
    size = len(old)
    assert new.pieces(range(size)) == old.pieces(range(size))
    pieces = new.pieces(range(size, len(new)))
    assert len(set(pieces)) == len(pieces)
    symbols = ["<2x>", "▁<2x>"] if kind == "word" else ["<2x>"]
    assert pieces[: len(symbols)] == symbols
    assert len(pieces) <= len(symbols) + (most or 99)
    learnt = pieces[len(symbols) :]
    if kind == "word":
        assert {"▁αβγ", "▁δε", "▁😁", "▁now"} <= set(learnt)
        assert new.decode(new.encode("αβγ now")) == "αβγ now"
        return
    assert set("αβγδε😁") <= set(learnt)
    assert (max(map(len, learnt)) > 1) == (most is not None and kind in ("bpe", "unigram"))
    assert not [piece for piece in learnt if piece.startswith("\u0307") and len(piece) > 1]
    ids = new.encode("αβγ δε<2x>ε")
    assert new.decode(ids) == "αβγ δε<2x>ε"
    assert UNK not in ids
    assert new.pieces(ids).count("<2x>") == 1
    for seed in range(5):
        assert new.decode(new.sample(["αβγ δε"], 0.3, seed)[0]) == "αβγ δε"
    again = SentencePieceTokenizer(proto(new), "NFC")
    assert again.encode("αβγ δε<2x>") == new.encode("αβγ δε<2x>")


def test_new_pieces_are_merged_last_and_in_their_order() -> None:
    for most in (None, 12):
        model = ModelProto.FromString(proto(GROWN["bpe", False, most]))
        scores = [entry.score for entry in model.pieces if entry.type == entry.NORMAL]
        assert scores == sorted(set(scores), reverse=True)


def test_the_most_frequent_ones_are_added() -> None:
    texts = ["ααα ββ γ"] * 3
    for kind in ("bpe", "char"):
        old = OLD[kind, False]
        size = len(old)
        assert grow(old, texts, 2).pieces([size, size + 1]) == ["α", "β"]
        assert len(grow(old, texts, character_coverage=0.8)) == size + 2
    words = grow(OLD["word", False], ["neu neu alt", "<unk> neu alt"], 2)
    assert words.pieces(range(len(OLD["word", False]), len(words))) == ["▁neu", "▁alt"]


def test_nothing_to_add() -> None:
    for old in OLD.values():
        assert len(grow(old, TEXTS[:3], 5)) == len(grow(old, [])) == len(old)
    bracketless = learn(["abc"], "bpe", 10, byte_fallback=False)
    pieces = grow(bracketless, ["<unk> <s>"], 40)
    assert len(set(pieces.pieces(range(len(pieces))))) == len(pieces)


def test_symbols_that_cannot_be_added() -> None:
    with pytest.raises(UsageError, match="'T' is a piece that the old joint vocabulary has learnt"):
        grow(OLD["bpe", False], [], symbols=["T"], name="joint vocabulary")
    with pytest.raises(UsageError, match="has a space in it"):
        grow(OLD["bpe", False], [], symbols=["a b"])
    assert len(grow(LOSSLESS["bpe with symbols"], [], symbols=SYMBOLS)) == len(
        LOSSLESS["bpe with symbols"]
    )


def test_parts_of_a_piece() -> None:
    for kind in ("bpe", "unigram", "char"):
        spelled = OLD[kind, True]
        assert spelled.pieces(spelled.parts("α")) == ["<0xCE>", "<0xB1>"]
        assert UNK in OLD[kind, False].parts("▁α")
    assert ByteTokenizer([], "NFC").parts("▁a") == [4 + 0x20, 4 + 0x61]
