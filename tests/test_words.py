"""Pieces and words: which pieces make which word, for tokenizers of all kinds."""

import io

import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st

from transduce.config import BOS, EOS, PAD, UNK
from transduce.data.text import normalize, one_line
from transduce.data.tokenizer import SentencePieceTokenizer, Tokenizer, train_tokenizer
from transduce.inspection.words import Word, pieces, words

LINES = ["the cat sat", "the hat", "a cat, a hat!", "über alles", "日本語 の", "x<t>y <t> z"]
SYMBOLS = ["<t>"]


def learn(kind: str, vocabulary: int, symbols: bool, byte_fallback: bool) -> Tokenizer:
    texts = [normalize(line, "NFC") for line in LINES * 3]
    named = SYMBOLS if symbols else []
    return train_tokenizer(
        texts, kind, vocabulary, normalization="NFC", symbols=named, byte_fallback=byte_fallback
    )


TOKENIZERS = {
    f"{kind}{', bytes' * fallback}{', symbols' * symbols}": learn(
        kind, size + 256 * fallback, symbols, fallback
    )
    for kind, size in (("bpe", 60), ("unigram", 60), ("char", 60), ("word", 60), ("byte", 0))
    for fallback in ((False, True) if kind in ("bpe", "unigram", "char") else (False,))
    for symbols in (False, True)
}
PARTS = ["the", "cat", "hat", "<t>", " ", "  ", "\u00a0", "ж", "語", "é", "e\u0301", "🙂", "\x01"]
LINE = st.lists(st.sampled_from(PARTS) | st.text(max_size=3)).map("".join).map(one_line)


def shown(found: list[Word], tokenizer: Tokenizer, ids: list[int]) -> list[tuple[str, list[str]]]:
    return [(word.text, tokenizer.pieces(ids[i] for i in word.pieces)) for word in found]


@pytest.mark.parametrize("name", TOKENIZERS)
@given(line=LINE)
@settings(max_examples=60, deadline=None)
def test_every_piece_is_in_one_word_and_the_words_are_the_lines(name: str, line: str) -> None:
    tokenizer = TOKENIZERS[name]
    ids = tokenizer.encode(line)
    for found in (words(tokenizer, ids, line), words(tokenizer, ids), pieces(tokenizer, ids)):
        assert [i for word in found for i in word.pieces] == list(range(len(ids)))
    expected = [word for word in line.replace("\u00a0", " ").split(" ") if word]
    if ids and expected:
        assert [word.text for word in words(tokenizer, ids, line)] == expected


@pytest.mark.parametrize("name", TOKENIZERS)
def test_without_the_text_the_words_are_the_same(name: str) -> None:
    """Of text that has no unknown pieces."""
    tokenizer = TOKENIZERS[name]
    for line in ("the cat sat", " the  hat ", "über alles", "日本語 の"):
        ids = tokenizer.encode(line)
        if UNK not in ids:
            assert words(tokenizer, ids) == words(tokenizer, ids, line)
            assert [word.text for word in words(tokenizer, ids)] == line.split()


def test_subwords_by_hand() -> None:
    tokenizer = TOKENIZERS["bpe"]
    ids = tokenizer.encode("the cathat")
    assert tokenizer.pieces(ids) == ["▁the", "▁cat", "h", "at"]
    assert words(tokenizer, ids, "the cathat") == [Word("the", (0,)), Word("cathat", (1, 2, 3))]
    assert pieces(tokenizer, ids) == [
        Word("the", (0,)), Word("cat", (1,)), Word("h", (2,)), Word("at", (3,)),
    ]  # fmt: skip


def test_letters_and_bytes_by_hand() -> None:
    """A space goes with what follows it, at the end of a line with what is before."""
    char, byte = TOKENIZERS["char"], TOKENIZERS["byte"]
    ids = char.encode("a  cat ")
    assert shown(words(char, ids), char, ids) == [
        ("a", ["▁", "a"]), ("cat", ["▁", "▁", "c", "a", "t", "▁"]),
    ]  # fmt: skip
    assert shown(pieces(char, ids), char, ids) == [
        ("a", ["▁", "a"]), ("c", ["▁", "▁", "c"]), ("a", ["a"]), ("t", ["t", "▁"]),
    ]  # fmt: skip
    ids = byte.encode("ü 語")
    assert [word.pieces for word in words(byte, ids)] == [(0, 1), (2, 3, 4, 5)]
    assert pieces(byte, ids) == words(byte, ids)
    ids = byte.encode("語の")
    assert [word.pieces for word in words(byte, ids)] == [(0, 1, 2, 3, 4, 5)]
    assert pieces(byte, ids) == [Word("語", (0, 1, 2)), Word("の", (3, 4, 5))]
    assert pieces(byte, ids[:4]) == [Word("語", (0, 1, 2)), Word("<0xE3>", (3,))]  # cut


def test_symbols_stay_in_their_words() -> None:
    tokenizer = TOKENIZERS["bpe, symbols"]
    ids = tokenizer.encode("the <t> x<t>y")
    found = shown(words(tokenizer, ids, "the <t> x<t>y"), tokenizer, ids)
    assert [text for text, _ in found] == ["the", "<t>", "x<t>y"]
    assert ["<t>" in its for _, its in found] == [False, True, True]


def test_unknown_words_in_a_row_are_one_piece() -> None:
    """Of a word vocabulary; the first of them has it."""
    tokenizer = TOKENIZERS["word"]
    ids = tokenizer.encode("the x y cat z")
    assert len(ids) == 4
    found = words(tokenizer, ids, "the x y cat z")
    assert found == [
        Word("the", (0,)), Word("x", (1,)), Word("y", ()), Word("cat", (2,)), Word("z", (3,)),
    ]  # fmt: skip


def test_what_leaves_no_piece_is_a_word_nevertheless() -> None:
    tokenizer = TOKENIZERS["bpe"]
    ids = tokenizer.encode("the \x01 cat")
    assert [word.text for word in words(tokenizer, ids, "the \x01 cat")] == ["the", "\x01", "cat"]


def test_a_file_with_rules_of_its_own() -> None:
    """They join spaces, and make two words of what is one in the line: it stays one."""
    proto = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["the cat sat", "a hat"] * 9), model_writer=proto, vocab_size=40,
        hard_vocab_limit=False, normalization_rule_name="nmt_nfkc", minloglevel=2,
        pad_id=PAD, unk_id=UNK, bos_id=BOS, eos_id=EOS,
    )  # fmt: skip
    tokenizer = SentencePieceTokenizer(proto.getvalue(), "none")
    assert tokenizer.has_rules
    for line in ("the cat  sat", "the cat\u200bsat a", " the cat "):
        ids = tokenizer.encode(line)
        found = words(tokenizer, ids, line)
        assert [word.text for word in found] == line.split()
        assert [i for word in found for i in word.pieces] == list(range(len(ids)))
        text = [tokenizer.decode(ids[i] for i in word.pieces).strip() for word in found]
        assert text == line.replace("\u200b", " ").split() or text[1] == "cat sat"
