"""Text to ids and back, with sentencepiece; normalisation is ours (`readers.normalize`).

Every vocabulary begins with PAD, UNK, BEGIN, END. Tokenizers never see tensors.
"""

import io
import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any

import sentencepiece

from transduce.config import BOS, EOS, PAD, UNK
from transduce.data.readers import normalize
from transduce.errors import TransduceError, UsageError

SPACE = "▁"
MAX_TRAINING_LINES = 1_000_000


class Tokenizer:
    """Pieces of one side's text, or of both sides'.

    Args:
        proto: a trained sentencepiece model.
        normalization: the Unicode form that text is brought into first.

    Raises:
        TransduceError: if `proto` is no sentencepiece model with our reserved ids.
    """

    def __init__(self, proto: bytes, normalization: str) -> None:
        self.proto = proto
        self.normalization = normalization
        self._spm: Any = sentencepiece.SentencePieceProcessor()
        try:
            self._spm.LoadFromSerializedProto(proto)
        except RuntimeError:
            raise TransduceError("not a sentencepiece model") from None
        reserved = (self._spm.pad_id(), self._spm.unk_id(), self._spm.bos_id(), self._spm.eos_id())
        if reserved != (PAD, UNK, BOS, EOS):
            raise TransduceError(
                f"the tokenizer's reserved ids are {reserved}, expected {(PAD, UNK, BOS, EOS)}"
            )

    def __len__(self) -> int:
        """Return the size of the vocabulary, reserved ids included."""
        return int(self._spm.get_piece_size())

    def encode(self, text: str) -> list[int]:
        """Return the ids of the text's pieces, without BEGIN and END."""
        return list(self._spm.encode(normalize(text, self.normalization)))

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        """`encode` for many texts at once, in several threads."""
        return list(self._spm.encode([normalize(text, self.normalization) for text in texts]))

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of ids; reserved ids and broken byte sequences leave no trace."""
        text: list[str] = []
        spelled = bytearray()  # byte pieces spell a character together
        for id_ in ids:
            if self._spm.is_byte(id_):
                spelled.append(int(self._spm.id_to_piece(id_)[3:5], 16))
                continue
            text.append(spelled.decode("utf-8", errors="ignore"))
            spelled.clear()
            if id_ > EOS:
                text.append(self._spm.id_to_piece(id_).replace(SPACE, " "))
        text.append(spelled.decode("utf-8", errors="ignore"))
        return "".join(text).removeprefix(" ")

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """Return the pieces as the vocabulary spells them (▁ for a space, reserved ids too)."""
        return [self._spm.id_to_piece(id_) for id_ in ids]


def train_tokenizer(
    texts: Iterable[str], kind: str, vocabulary: int, byte_fallback: bool, name: str
) -> bytes:
    """Learn a vocabulary from normalised texts.

    Where the data has fewer pieces than asked for, the vocabulary is as large as it can be.

    Args:
        texts: the lines to learn from; they are gone through once (twice if `vocabulary` is more
            than they offer) and must therefore be a fresh iterable each time it is iterated.
        kind: bpe, unigram, char or word.
        vocabulary: number of pieces, reserved ones included.
        byte_fallback: whether to spell unknown characters as bytes (bpe, unigram).
        name: what to call the vocabulary in messages.

    Returns:
        The serialized sentencepiece model.

    Raises:
        UsageError: if the vocabulary cannot hold the alphabet; says what the smallest is.
    """
    byte_fallback = byte_fallback and kind in ("bpe", "unigram")

    def learn(size: int) -> bytes:
        proto = io.BytesIO()
        sentencepiece.set_random_generator_seed(1)
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(texts),
            model_writer=proto,
            model_type=kind,
            vocab_size=size,
            byte_fallback=byte_fallback,
            character_coverage=0.9995 if byte_fallback else 1.0,
            use_all_vocab=kind == "char",
            hard_vocab_limit=kind in ("bpe", "word"),
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            max_sentence_length=1_000_000,
            input_sentence_size=MAX_TRAINING_LINES,
            shuffle_input_sentence=True,
            pad_id=PAD,
            unk_id=UNK,
            bos_id=BOS,
            eos_id=EOS,
            minloglevel=2,
        )
        return without_stray_marks(proto.getvalue())

    try:
        return learn(vocabulary)
    except RuntimeError as error:
        message = str(error)
    if largest := re.search(r"set it to a value <= (\d+)", message):
        return learn(int(largest[1]))
    if required := re.search(r"required_chars\. \d+ vs (\d+)", message):
        raise UsageError(
            f"{name}: a vocabulary of {vocabulary} pieces cannot hold the text's characters; "
            f"it needs at least {required[1]} (tokenizer.vocabulary)"
        )
    raise TransduceError(f"{name}: no vocabulary can be learnt from this text: {message}")


def without_stray_marks(proto: bytes) -> bytes:
    """Drop the pieces that tie a combining mark to what follows it instead of to its letter.

    A mark alone stays a piece. Without `̇e`, `u̇e` is still reached by way of `u̇`.
    """
    from sentencepiece import sentencepiece_model_pb2

    model = sentencepiece_model_pb2.ModelProto.FromString(proto)
    kept = [
        entry
        for entry in model.pieces
        if len(entry.piece) == 1 or not unicodedata.combining(entry.piece[0])
    ]
    if len(kept) == len(model.pieces):
        return proto
    del model.pieces[:]
    model.pieces.extend(kept)
    return bytes(model.SerializeToString())
