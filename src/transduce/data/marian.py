"""Vocabularies in the form of Marian's Hugging Face folders, and as our tokenizers have them.

There, a sentencepiece file cuts text into pieces, and `vocab.json` gives each piece its id: a piece
that it lacks is unknown. The ids of END and UNKNOWN, of padding (which is also what the decoder is
fed first: our BEGIN) and of the pieces lie anywhere. Here, the sentencepiece file alone has pieces
and ids. So the ids are changed, and the rows of the matrices with them; `Side` says how.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sentencepiece
from google.protobuf.message import DecodeError
from sentencepiece.sentencepiece_model_pb2 import ModelProto

from transduce.config import BOS, EOS, PAD, UNK
from transduce.data.tokenizer import (
    RESERVED,
    SentencePieceTokenizer,
    Tokenizer,
    own_rules,
)
from transduce.errors import TransduceError

Vocabulary = Mapping[str, int]
Piece = ModelProto.SentencePiece

FIRST_IDS = (EOS, UNK, BOS, PAD)
"""Which of our ids stands at 0, 1, 2 and 3 in what is exported; all others stay.

Our BEGIN is Marian's padding there. Our PAD, which no decoder is ever fed and no search generates,
has a class of the softmax nevertheless; it becomes the piece <s>, which Marian does not use.
"""
END, UNKNOWN, PADDING, UNUSED = "</s>", "<unk>", "<pad>", "<s>"
CODE = re.compile(r">>[^<>\s]+<<")
"""How the name of the language to translate into looks, before a source."""
NO_TEXT = re.compile("[\0\ud800-\udfff]")
KINDS = {1: "unigram", 2: "bpe", 3: "word", 4: "char"}
"""sentencepiece's numbers for its kinds."""


@dataclass(frozen=True)
class Side:
    """One side's vocabulary with our ids."""

    rows: list[int]
    """For each of our ids, the row that it has in the other model's matrices."""
    copies: list[int]
    """Those of our ids whose row another one has, too: they must take no part of the softmax."""
    proto: bytes
    """The sentencepiece file."""
    kind: str
    byte_fallback: bool
    codes: list[str]
    """The names of languages among the pieces."""

    @property
    def size(self) -> int:
        """The number of rows in the other model's matrices."""
        return 1 + max(self.rows)


def sides(
    files: tuple[bytes, bytes], vocabularies: tuple[Vocabulary, Vocabulary], shared: bool
) -> tuple[Side, Side]:
    """Give the pieces of both sides our ids.

    What the source's file can produce and its vocabulary lacks is unknown to Marian; it gets ids
    at the end, with the row of UNKNOWN, so that text is cut as it was. What the target's file
    produces and its vocabulary lacks is cut into smaller pieces: to learn, or to score, an unknown
    piece in its place would be of no use.

    Args:
        files: the source's and the target's sentencepiece file.
        vocabularies: the ids of their pieces.
        shared: whether they are one.

    Raises:
        TransduceError: saying which side has what we cannot carry.
    """
    models = tuple(
        _read(file, f"{name}.spm") for file, name in zip(files, ("source", "target"), strict=True)
    )
    for vocabulary, name in zip(vocabularies, ("vocab.json", "target_vocab.json"), strict=True):
        _check(vocabulary, "vocab.json" if shared else name)
    source, target = vocabularies
    lacking = [
        entry.piece
        for entry in models[0].pieces
        if entry.type in (Piece.NORMAL, Piece.BYTE) and entry.piece not in {*source, *RESERVED}
    ]
    codes = [piece for piece in source if CODE.fullmatch(piece)]
    if codes and not own_rules(models[0]):
        raise TransduceError(
            f"vocab.json has names of languages ({', '.join(codes[:5])}), but source.spm keeps the "
            "spaces behind them, which cannot be carried"
        )
    return (
        _side(models[0], source, lacking, of_source=True),
        _side(models[1], target, lacking if shared else [], of_source=False),
    )


def _read(file: bytes, name: str) -> Any:
    """Read a sentencepiece file; refuse what would be cut, or put together, otherwise here."""
    try:
        model = ModelProto.FromString(file)
        sentencepiece.SentencePieceProcessor().LoadFromSerializedProto(file)
    except (DecodeError, RuntimeError):
        raise TransduceError(f"{name} is not a sentencepiece model") from None
    rules = model.normalizer_spec
    symbols = [entry.piece for entry in model.pieces if entry.type == Piece.USER_DEFINED]
    own = [piece for piece in symbols if not CODE.fullmatch(piece)]
    problem = ""
    if model.trainer_spec.treat_whitespace_as_suffix:
        problem = "marks spaces behind words (treat_whitespace_as_suffix)"
    elif not rules.escape_whitespaces:
        problem = "does not mark spaces (escape_whitespaces)"
    elif model.denormalizer_spec.precompiled_charsmap:
        problem = "changes characters of its outputs (denormalizer_spec)"
    elif own and own_rules(model):
        problem = f"has pieces that the user defined: {', '.join(own[:5])}"
    elif not rules.add_dummy_prefix and not own_rules(model):
        problem = "does not begin texts with a space (add_dummy_prefix)"
    if problem:
        raise TransduceError(f"{name} {problem}, which cannot be carried")
    return model


def _check(vocabulary: Vocabulary, name: str) -> None:
    """Refuse a vocabulary that is none: its ids must be 0, 1, 2, ... and it needs our four."""
    if sorted(vocabulary.values()) != list(range(len(vocabulary))):
        raise TransduceError(f"{name}: the ids of {len(vocabulary)} pieces must be 0, 1, 2, ...")
    for piece in (END, UNKNOWN, PADDING):
        if piece not in vocabulary:
            raise TransduceError(f"{name} lacks the piece {piece}")
    if "" in vocabulary:
        raise TransduceError(f"{name} has an empty piece")
    if NO_TEXT.search("".join(vocabulary)):
        raise TransduceError(
            f"{name} has a piece that is no text: a zero byte, or half a character"
        )


def _side(model: Any, vocabulary: Vocabulary, lacking: Sequence[str], of_source: bool) -> Side:
    names = [p for p in sorted(vocabulary, key=vocabulary.__getitem__) if p not in RESERVED]
    codes = [piece for piece in names if CODE.fullmatch(piece)]
    ours = [UNUSED if UNUSED in vocabulary else PADDING, UNKNOWN, PADDING, END]
    rows = [vocabulary[piece] for piece in [*ours, *names, *[UNKNOWN] * len(lacking)]]
    copies = [] if UNUSED in vocabulary else [PAD]
    copies += range(len(rows) - len(lacking), len(rows))

    known = {entry.piece: entry for entry in model.pieces}
    lowest = min((e.score for e in model.pieces if e.type == Piece.NORMAL), default=0.0) - 1
    there = {*names, *(lacking if of_source else ())}
    all_bytes = all(e.piece in there for e in model.pieces if e.type == Piece.BYTE)
    file = ModelProto()
    file.CopyFrom(model)
    file.DiscardUnknownFields()
    del file.pieces[:]
    for piece, type_ in zip(
        RESERVED, (Piece.CONTROL, Piece.UNKNOWN, Piece.CONTROL, Piece.CONTROL), strict=True
    ):
        file.pieces.add(piece=piece, score=0.0, type=type_)
    for piece in names:
        entry = known.get(piece)
        usable = (Piece.NORMAL, Piece.USER_DEFINED, *([Piece.BYTE] if all_bytes else []))
        if CODE.fullmatch(piece):
            file.pieces.add(piece=piece, score=0.0, type=Piece.USER_DEFINED)
        elif entry is not None and entry.type in usable:
            file.pieces.add().CopyFrom(entry)
        else:  # never cut out of a text, but read: and found where all else is unknown
            file.pieces.add(piece=piece, score=lowest, type=Piece.UNUSED)
    for piece in lacking:
        if of_source:
            file.pieces.add().CopyFrom(known[piece])
        else:
            file.pieces.add(piece=piece, score=0.0, type=Piece.CONTROL)
    spec = file.trainer_spec
    spec.pad_id, spec.unk_id, spec.bos_id, spec.eos_id = PAD, UNK, BOS, EOS
    spec.pad_piece, spec.unk_piece, spec.bos_piece, spec.eos_piece = RESERVED
    spec.vocab_size = len(file.pieces)
    spec.byte_fallback = spec.byte_fallback and all_bytes
    kind = KINDS.get(spec.model_type, "unigram")
    return Side(rows, copies, file.SerializeToString(), kind, spec.byte_fallback, codes)


def exported(tokenizer: Tokenizer, name: str) -> tuple[dict[str, int], bytes]:
    """Return a vocabulary with the ids of FIRST_IDS, and the sentencepiece file beside it.

    Raises:
        TransduceError: if MarianTokenizer would cut text in other ways.
    """
    if not isinstance(tokenizer, SentencePieceTokenizer):
        raise TransduceError(f"the {name} vocabulary is bytes: MarianTokenizer needs sentencepiece")
    model = ModelProto.FromString(tokenizer.proto)
    symbols = [entry.piece for entry in model.pieces if entry.type == Piece.USER_DEFINED]
    if symbols and not tokenizer.has_rules:
        codes = [piece for piece in symbols if CODE.fullmatch(piece)]
        if KINDS.get(model.trainer_spec.model_type) == "word":
            raise TransduceError(
                f"the {name} vocabulary has words and symbols ({', '.join(symbols[:5])}): "
                "MarianTokenizer would not find the symbols"
            )
        if codes:
            raise TransduceError(
                f"the {name} vocabulary has symbols of the form >>...<< ({', '.join(codes[:5])}): "
                "MarianTokenizer would put a space too many behind them"
            )
    if not tokenizer.has_rules:
        model.normalizer_spec.add_dummy_prefix = True  # the space that we put before each text
    pieces = tokenizer.pieces(range(len(tokenizer)))
    first = [END, UNKNOWN, PADDING, UNUSED]
    ids = {piece: id_ for id_, piece in enumerate([*first, *pieces[len(first) :]])}
    return ids, model.SerializeToString()
