"""Tokenizers: round trips, sizes that cannot be met, marks, bytes and unknown characters."""

import re
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transduce.config import BOS, EOS, PAD, UNK
from transduce.data.readers import normalize
from transduce.data.tokenizer import Tokenizer, train_tokenizer
from transduce.errors import TransduceError, UsageError

TEXTS = [
    "The quick brown fox jumps over the lazy dog.", "Wir sehen uns morgen früh, nicht wahr?",
    "two  spaces", "… ² ﬁ ︰ ŀ", "日本語の文", "سَلَام", "שָׁלוֹם", "see 😀 you",
]  # fmt: skip


def learn(texts: list[str], kind: str, vocabulary: int, byte_fallback: bool = True) -> Tokenizer:
    return Tokenizer(train_tokenizer(texts, kind, vocabulary, byte_fallback, "vocabulary"), "NFC")


BPE = learn(TEXTS, "bpe", 400)
CHAR = learn(TEXTS, "char", 400)


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_byte_fallback_loses_nothing(text: str) -> None:
    assert BPE.decode(BPE.encode(text)) == normalize(text, "NFC")


@pytest.mark.parametrize(
    "text",
    [*TEXTS, "日本 🙂", "<0x41>", "</s>", "<pad> <unk>", " leading", "trailing ", "👨‍👩‍👧", "🇩🇪"],
)
def test_round_trips(text: str) -> None:
    assert BPE.decode(BPE.encode(text)) == normalize(text, "NFC")
    assert not {PAD, UNK, BOS, EOS} & set(BPE.encode(text))


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_decoding_what_was_decoded_changes_nothing(text: str) -> None:
    """A08: whatever a vocabulary without bytes makes of unknown characters."""
    once = CHAR.decode(CHAR.encode(text))
    assert CHAR.decode(CHAR.encode(once)) == once
    assert "unk" not in once or "unk" in text


def test_reserved_ids_and_broken_bytes_leave_no_trace() -> None:
    smile = [i for i in range(len(BPE)) if re.fullmatch("<0x(F0|9F)>", BPE.pieces([i])[0])]
    ids = BPE.encode("see")
    assert BPE.decode([BOS, *ids, UNK, PAD, EOS, PAD]) == "see"
    assert BPE.decode([*ids, *smile, *BPE.encode(" you")]) == "see  you"  # half an emoji
    assert BPE.decode([]) == ""


def test_both_spellings_give_the_same_ids() -> None:
    assert BPE.encode("fru\u0308h") == BPE.encode("fr\u00fch")


def test_marks_stay_with_their_letter() -> None:
    """A07: no piece begins with U+0307 but the mark alone, and all text is still reachable."""
    tokenizer = learn(["u\u0307 e", "u\u0307e"] * 20, "bpe", 300)
    pieces = tokenizer.pieces(range(len(tokenizer)))
    assert not [piece for piece in pieces if piece.startswith("\u0307") and len(piece) > 1]
    assert "u\u0307e" in pieces
    assert tokenizer.decode(tokenizer.encode("eu\u0307e u\u0307")) == "eu\u0307e u\u0307"


@pytest.mark.parametrize("kind", ["bpe", "unigram", "char", "word"])
def test_a_vocabulary_larger_than_the_data(kind: str) -> None:
    """A06: as large as it can be."""
    tokenizer = learn(["a b c"] * 3, kind, 8000, byte_fallback=False)
    assert 7 <= len(tokenizer) < 50
    assert tokenizer.decode(tokenizer.encode("c a b")) == "c a b"


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_a_vocabulary_smaller_than_the_alphabet(kind: str) -> None:
    with pytest.raises(UsageError) as caught:
        learn([string.ascii_lowercase] * 3, kind, 5, byte_fallback=False)
    numbers = [int(n) for n in re.findall(r"at least (\d+)", str(caught.value))]
    assert numbers and numbers[0] >= 26
    assert len(learn([string.ascii_lowercase] * 3, kind, numbers[0], byte_fallback=False)) > 26


def test_the_line_separator_is_an_ordinary_character() -> None:
    """A02: learnt, saved, loaded: the same pieces."""
    tokenizer = learn(["one\u2028two", "three"] * 5, "char", 100)
    again = Tokenizer(tokenizer.proto, "NFC")
    assert again.pieces(again.encode("one\u2028two")) == tokenizer.pieces(
        tokenizer.encode("one\u2028two")
    )
    assert "\u2028" in again.pieces(again.encode("one\u2028two"))


def test_learning_twice_gives_the_same_bytes() -> None:
    assert train_tokenizer(TEXTS, "bpe", 350, True, "v") == train_tokenizer(
        TEXTS, "bpe", 350, True, "v"
    )


def test_words() -> None:
    tokenizer = learn(["jump left", "run left"] * 9, "word", 100)
    assert tokenizer.pieces(tokenizer.encode("run right left")) == ["▁run", "<unk>", "▁left"]
    assert tokenizer.decode(tokenizer.encode("run right left")) == "run left"


def test_what_is_no_tokenizer() -> None:
    with pytest.raises(TransduceError, match="not a sentencepiece model"):
        Tokenizer(b"\x80\x04nonsense", "NFC")


def test_an_empty_corpus() -> None:
    with pytest.raises(TransduceError, match="vocabulary"):
        learn([], "bpe", 100)
