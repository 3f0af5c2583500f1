"""Text to ids and back: pieces learnt with sentencepiece, or the bytes of the text.

Every vocabulary begins with PAD, UNK, BEGIN, END. Symbols are cut out of a text before anything
else looks at it, so they stay whole whatever surrounds them. Tokenizers never see tensors.
"""

import io
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import sentencepiece
from google.protobuf.message import DecodeError
from sentencepiece.sentencepiece_model_pb2 import ModelProto

from transduce.config import BOS, EOS, PAD, UNK
from transduce.data.sampling import Dropout, Segmentations
from transduce.data.text import normalize
from transduce.errors import TransduceError, UsageError

Ids = npt.NDArray[np.int32]
SPACE = "▁"
RESERVED = ("<pad>", "<unk>", "<s>", "</s>")
TRAINING_LINES = 500_000
TRAINING_BYTES = 25_000_000
"""What a vocabulary is learnt from at most, in lines and in UTF-8: memory stays below 1.2 GB.

Unigram takes 20 bytes for each of the text (500,000 lines of 60 characters: 0.75 GB); bpe hardly
any where words are few, but 120 for each character of text without spaces (25 MB of Chinese: 1.1
GB)."""

_BYTE = re.compile("<0x([0-9A-F]{2})>")
_SKIPPED = "▅"  # sentencepiece's own sign in training: it skips lines that have it
_THREADS = 8  # sums depend on it, so it is the same everywhere
_NEVER = "(?!)"  # a pattern that matches nothing


class Tokenizer:
    """Pieces of one side's text, or of both sides'.

    `encode` takes any text; `encode_all` and `sample` take what `normalize` has made of it.

    Args:
        pieces: the vocabulary as `pieces` shows it, reserved ids included.
        spelled: the values of the ids that stand for bytes.
        symbols: the ids of the pieces that are never split.
        normalization: the Unicode form that text is brought into first.
    """

    start = ""
    """What is put before a text, and taken away again."""

    def __init__(
        self,
        pieces: Sequence[str],
        spelled: Mapping[int, int],
        symbols: Mapping[str, int],
        normalization: str,
    ) -> None:
        self.normalization = normalization
        self._pieces = pieces
        self._spelled = spelled
        self._symbols = {symbol: np.array([id_], dtype=np.int32) for symbol, id_ in symbols.items()}
        self._cut = _cutting(symbols)

    def __len__(self) -> int:
        """Return the size of the vocabulary, reserved ids included."""
        return len(self._pieces)

    @property
    def symbols(self) -> dict[str, int]:
        """The ids of the pieces that are never split, by what they look like in a text."""
        return {symbol: int(ids[0]) for symbol, ids in self._symbols.items()}

    def encode(self, text: str) -> list[int]:
        """Return the ids of the text's pieces, without BEGIN and END."""
        return self.encode_lines([text])[0]

    def encode_lines(self, texts: Sequence[str]) -> list[list[int]]:
        """Return for each text what `encode` does; many at once are much quicker."""
        normalised = [normalize(text, self.normalization) for text in texts]
        return [ids.tolist() for ids in self.encode_all(normalised)]

    def encode_part(self, text: str, spaced: bool) -> list[int]:
        """Return the ids of a part of a text, as behind a space (which they include) or not."""
        text = " " * spaced + normalize(text, self.normalization)
        ids: list[int] = self._around_symbols([text], self._encode)[0].tolist()
        return ids

    def encode_all(self, texts: Sequence[str]) -> list[Ids]:
        """Return the ids of many normalised texts, in one thread."""
        return self._around_symbols(self._started(texts), self._encode)

    def sample(self, texts: Sequence[str], rate: float, seed: int) -> list[Ids]:
        """Cut normalised texts in other ways too, drawn from the seed.

        Subwords have other ways: BPE-dropout at that rate, or unigram's segmentations with
        probabilities to the power of `rate`. Other kinds, and rate 0, give what `encode_all` does.
        """
        return self.encode_all(texts)

    def decode(self, ids: Iterable[int] | Ids) -> str:
        """Return the text of ids; reserved ids and broken byte sequences leave no trace."""
        text: list[str] = []
        spelled = bytearray()  # byte pieces spell a character together
        for id_ in ids:
            if id_ <= EOS:
                continue
            if id_ in self._spelled:
                spelled.append(self._spelled[id_])
                continue
            text.append(spelled.decode("utf-8", errors="ignore"))
            spelled.clear()
            text.append(self._pieces[id_].replace(SPACE, " "))
        text.append(spelled.decode("utf-8", errors="ignore"))
        return "".join(text).removeprefix(self.start)

    def pieces(self, ids: Iterable[int] | Ids) -> list[str]:
        """Return the pieces as the vocabulary spells them (▁ for a space, reserved ids too)."""
        return [self._pieces[id_] for id_ in ids]

    def spells_like(self, other: "Tokenizer") -> bool:
        """Say whether another tokenizer has the same pieces by the same ids."""
        return (self._pieces, self._spelled, self.normalization) == (
            other._pieces, other._spelled, other.normalization
        )  # fmt: skip

    @cached_property
    def spellings(self) -> list[bytes]:
        """What each id adds to a text, in UTF-8."""
        return [
            bytes([self._spelled[id_]])
            if id_ in self._spelled
            else piece.replace(SPACE, " ").encode() * (id_ > EOS)
            for id_, piece in enumerate(self._pieces)
        ]

    def parts(self, piece: str) -> list[int]:
        """Return the ids that a piece of another vocabulary would be cut into."""
        ids: list[int] = self._encode([piece.replace(SPACE, " ")])[0].tolist()
        return ids

    def _encode(self, texts: list[str]) -> list[Ids]:
        """Return the ids of texts, or parts of texts, without symbols."""
        raise NotImplementedError

    def _started(self, texts: Sequence[str]) -> list[str]:
        return [self.start + text if text else "" for text in texts]

    def _around_symbols(
        self, texts: list[str], encode: Callable[[list[str]], list[Ids]]
    ) -> list[Ids]:
        """Encode what lies between the symbols, and put it together with their ids."""
        if not self._symbols:
            return encode(texts)
        split = [self._cut.split(text) for text in texts]  # every other part is a symbol
        between = iter(encode([part for parts in split for part in parts[::2]]))
        return [
            next(between)
            if len(parts) == 1
            else np.concatenate(
                [self._symbols[part] if i % 2 else next(between) for i, part in enumerate(parts)]
            )
            for parts in split
        ]


class SentencePieceTokenizer(Tokenizer):
    """Subwords, characters or words that were learnt.

    A file that was trained elsewhere may hold rules of its own for characters and spaces. They are
    applied to what stands between symbols; the pieces are then found without them.

    Args:
        proto: a trained sentencepiece model.
        normalization: the Unicode form that text is brought into first.

    Raises:
        TransduceError: if `proto` is no sentencepiece model with our reserved ids.
    """

    start = " "  # the first word looks like all others

    def __init__(self, proto: bytes, normalization: str) -> None:
        self.proto = proto
        self._spm: Any = sentencepiece.SentencePieceProcessor()
        try:
            model = ModelProto.FromString(proto)
            self._rules = own_rules(model)
            if self._rules:
                model.normalizer_spec.Clear()
                model.normalizer_spec.remove_extra_whitespaces = False
            model.normalizer_spec.add_dummy_prefix = False  # it would stand after symbols, too
            self._spm.LoadFromSerializedProto(model.SerializeToString())
        except (DecodeError, RuntimeError):
            raise TransduceError("not a sentencepiece model") from None
        reserved = (self._spm.pad_id(), self._spm.unk_id(), self._spm.bos_id(), self._spm.eos_id())
        if reserved != (PAD, UNK, BOS, EOS):
            raise TransduceError(
                f"the tokenizer's reserved ids are {reserved}, expected {(PAD, UNK, BOS, EOS)}"
            )
        spelled: dict[int, int] = {}
        symbols: dict[str, int] = {}
        scores: dict[str, float] = {}
        self._learnt: dict[str, int] = {}
        self._foreign: dict[str, int] = {}
        for id_, entry in enumerate(model.pieces):
            piece = entry.piece.replace(SPACE, " ")
            if entry.type == entry.BYTE:
                spelled[id_] = int(piece[3:5], 16)
            elif entry.type == entry.USER_DEFINED:
                symbols[piece] = id_
            elif entry.type == entry.NORMAL:
                scores[piece] = entry.score
                self._learnt[piece] = id_
            elif entry.type == entry.UNUSED:
                self._foreign[entry.piece] = id_
        super().__init__([entry.piece for entry in model.pieces], spelled, symbols, normalization)
        self._id_of_byte = {byte: id_ for id_, byte in spelled.items()}
        self._sampler: Dropout | Segmentations | None = None
        if model.trainer_spec.model_type == model.trainer_spec.BPE:
            self._sampler = Dropout(scores, self._spell)
        elif model.trainer_spec.model_type == model.trainer_spec.UNIGRAM:
            self._sampler = Segmentations(scores, self._spell)

    @property
    def has_rules(self) -> bool:
        """Whether the file has rules of its own for characters and spaces."""
        return self._rules is not None

    def encode_all(self, texts: Sequence[str]) -> list[Ids]:
        """See `Tokenizer.encode_all`."""
        return self._around_symbols(
            self._started(texts), lambda parts: self._encode(self._ruled(parts))
        )

    def encode_part(self, text: str, spaced: bool) -> list[int]:
        """See `Tokenizer.encode_part`."""
        if self._rules:
            text = self._ruled([normalize(text, self.normalization)])[0].removeprefix(" ")
        return super().encode_part(text, spaced)

    def sample(self, texts: Sequence[str], rate: float, seed: int) -> list[Ids]:
        """See `Tokenizer.sample`."""
        if not self._sampler or not rate:
            return self.encode_all(texts)
        draw = self._sampler.draw

        def drawn(parts: list[str]) -> list[Ids]:
            return [np.array(ids, dtype=np.int32) for ids in draw(self._ruled(parts), rate, seed)]

        return self._around_symbols(self._started(texts), drawn)

    def _started(self, texts: Sequence[str]) -> list[str]:
        return list(texts) if self._rules else super()._started(texts)  # the rules put it there

    def _ruled(self, parts: list[str]) -> list[str]:
        """Apply the file's own rules, if it has any, to what stands between symbols."""
        if not self._rules:
            return parts
        return [part.replace(SPACE, " ") for part in self._rules.Normalize(parts)]

    def _encode(self, texts: list[str]) -> list[Ids]:
        if len(texts) == 1:  # a tenth of the time
            found = [np.array(self._spm.encode(texts[0]), dtype=np.int32)]
        else:
            found = list(self._spm.encode(texts, return_type="numpy", num_threads=1))
        if self._foreign:  # the pieces of another side may spell what is unknown to this one
            for i in [i for i, ids in enumerate(found) if UNK in ids]:
                pieces = self._spm.encode(texts[i], out_type=str)
                known = zip(pieces, found[i], strict=True)
                found[i] = np.array([self._foreign.get(p, id_) for p, id_ in known], dtype=np.int32)
        return found

    def _spell(self, pieces: Iterable[str]) -> list[int]:
        """Return the ids of learnt pieces; characters without one in bytes, or as one unknown."""
        ids: list[int] = []
        for piece in pieces:
            if (id_ := self._learnt.get(piece)) is not None:
                ids.append(id_)
            elif self._id_of_byte:
                ids += [self._id_of_byte[byte] for byte in piece.encode()]
            elif ids[-1:] != [UNK]:
                ids.append(UNK)
        return ids


def own_rules(model: Any) -> Any:
    """Return what brings text into the form that a sentencepiece model expects, or None.

    Files that were trained here leave characters and spaces as they are.
    """
    spec = model.normalizer_spec
    if not spec.precompiled_charsmap and not spec.remove_extra_whitespaces:
        return None
    return sentencepiece.SentencePieceNormalizer(normalizer_spec=spec)


class ByteTokenizer(Tokenizer):
    """The bytes of the UTF-8 text after the reserved ids, then the symbols; nothing is learnt.

    Args:
        symbols: pieces that are never split.
        normalization: the Unicode form that text is brought into first.

    Raises:
        UsageError: if a symbol is impossible, see `check_symbols`.
    """

    def __init__(self, symbols: Sequence[str], normalization: str) -> None:
        distinct = check_symbols(symbols, normalization)
        shown = [chr(b) if 0x20 < b < 0x7F else f"<0x{b:02X}>" for b in range(256)]
        shown[0x20] = SPACE
        first = EOS + 1
        super().__init__(
            [*RESERVED, *shown, *distinct],
            {first + b: b for b in range(256)},
            {symbol: first + 256 + i for i, symbol in enumerate(distinct)},
            normalization,
        )

    def _encode(self, texts: list[str]) -> list[Ids]:
        first = EOS + 1
        return [np.frombuffer(text.encode(), np.uint8).astype(np.int32) + first for text in texts]


def check_symbols(symbols: Iterable[str], normalization: str) -> list[str]:
    """Return the symbols without repetitions.

    Raises:
        UsageError: if one could never be found in a normalised text, or is the name of a reserved
            id or of a byte.
    """
    distinct = list(dict.fromkeys(symbols))
    for symbol in distinct:
        if not symbol:
            what = "is empty"
        elif any(character.isspace() for character in symbol):
            what = "has a space in it"
        elif symbol in RESERVED or _BYTE.fullmatch(symbol):
            what = "is the name of another piece"
        elif normalize(symbol, normalization) != symbol:
            what = f"is written otherwise once text is normalised ({normalization})"
        else:
            continue
        raise UsageError(f"tokenizer.symbols: {symbol!r} {what}; choose another one")
    return distinct


def train_tokenizer(
    texts: Iterable[str],
    kind: str,
    vocabulary: int,
    *,
    normalization: str,
    name: str = "vocabulary",
    byte_fallback: bool = True,
    character_coverage: float | None = None,
    symbols: Sequence[str] = (),
) -> Tokenizer:
    """Learn a vocabulary from normalised texts; the same texts give the same vocabulary.

    Where the data has fewer pieces than asked for, the vocabulary is as large as it can be. Of
    more words than it holds, the most frequent are kept.

    Args:
        texts: the lines to learn from, see TRAINING_LINES. They are gone through twice and
            must therefore be a fresh iterable each time it is iterated.
        kind: bpe, unigram, char, word or byte.
        vocabulary: number of pieces, reserved ones included.
        normalization: the Unicode form of the texts.
        name: what to call the vocabulary in messages.
        byte_fallback: whether to spell unknown characters as bytes (bpe, unigram, char).
        character_coverage: share of the text's characters that get a piece of their own; unless
            given 0.9995 with byte pieces and 1 without.
        symbols: pieces that are never split and never learnt.

    Raises:
        UsageError: if a symbol is impossible, or if the vocabulary cannot hold the alphabet; says
            what the smallest is.
        TransduceError: if nothing can be learnt from the texts.
    """
    if kind == "byte":
        return ByteTokenizer(symbols, normalization)
    symbols = check_symbols(symbols, normalization)
    spelled = byte_fallback and kind != "word"
    if kind == "word":
        needed = EOS + 1 + 2 * len(symbols) + 1  # each symbol with and without a space before it
        lines = _lines(texts, _cutting([*symbols, *(f" {symbol}" for symbol in symbols)]))
    else:
        cut = _cutting(symbols)
        if character_coverage is None:
            character_coverage = 0.9995 if spelled else 1.0
        alphabet = _alphabet(_lines(texts, cut), character_coverage)
        needed = EOS + 1 + len(symbols) + 256 * spelled + len(alphabet)
        lines = _lines(texts, cut, f"[^{re.escape(alphabet)}]")
    if vocabulary < needed:
        raise UsageError(
            f"{name}: a vocabulary of {vocabulary} pieces cannot hold the text's characters; "
            f"it needs at least {needed} (tokenizer.vocabulary)"
        )
    proto = _trained(lines, kind, vocabulary, spelled, symbols, name)
    return SentencePieceTokenizer(without_stray_marks(proto), normalization)


def grow_tokenizer(
    old: SentencePieceTokenizer,
    texts: Iterable[str],
    most: int | None = None,
    *,
    name: str = "vocabulary",
    character_coverage: float | None = None,
    symbols: Sequence[str] = (),
) -> SentencePieceTokenizer:
    """Put what normalised texts have and a vocabulary lacks at its end; old ids do not change.

    A new piece has a character in it that no old one has (of a word vocabulary: is another word),
    so all text that the old vocabulary had pieces for is cut as before, but for new symbols.

    Args:
        old: the vocabulary.
        texts: the lines to look at, a fresh iterable each time it is iterated.
        most: at most so many new pieces: the most frequent characters (or words) and, of bpe and
            unigram, subwords made of them. Unless given, all characters, and no subwords.
        name: what to call the vocabulary in messages.
        character_coverage: share of the new characters' text that gets pieces; unless given, as
            in `train_tokenizer`.
        symbols: pieces that are never split, besides the old ones; `most` does not count them.

    Raises:
        UsageError: if a symbol is impossible, or a piece that was learnt.
        TransduceError: if nothing can be learnt from the texts.
    """
    model = ModelProto.FromString(old.proto)
    kind = ("unigram", "bpe", "word", "char")[model.trainer_spec.model_type - 1]
    scores = {entry.piece: entry.score for entry in model.pieces if entry.type == entry.NORMAL}
    reserved = [entry.piece for entry in model.pieces if entry.type == entry.USER_DEFINED]
    spelled = any(entry.type == entry.BYTE for entry in model.pieces)
    for symbol in check_symbols(symbols, old.normalization):
        for form in [symbol, SPACE + symbol] if kind == "word" else [symbol]:
            if form in scores:
                raise UsageError(
                    f"tokenizer.symbols: {symbol!r} is a piece that the old {name} has learnt; "
                    "choose another one"
                )
            if form not in reserved:
                reserved.append(form)
                model.pieces.add(piece=form, score=0.0, type=ModelProto.SentencePiece.USER_DEFINED)
    cut = _cutting(symbol.replace(SPACE, " ") for symbol in reserved)
    counts: Counter[str] = Counter()
    for line in _lines(texts, cut):
        if kind == "word":
            counts.update(word.replace(" ", SPACE) for word in re.findall(" ?[^ ]+", line))
        else:
            counts.update(line)
    there = {entry.piece for entry in model.pieces} if kind == "word" else set("".join(scores))
    for one in there | {" ", _SKIPPED}:
        del counts[one]
    if character_coverage is None:
        character_coverage = 0.9995 if spelled else 1.0
    found = _most_frequent(counts, character_coverage)[:most]
    lowest = min(scores.values(), default=0.0)
    new = dict.fromkeys(found, lowest)
    if found and most is not None and kind in ("bpe", "unigram"):
        # From stretches of new characters alone, so that each piece can be built of new pieces.
        lines = _lines(texts, cut, f"[^ {re.escape(''.join(found))}]")
        proto = without_stray_marks(_trained(lines, kind, EOS + 2 + most, False, [], name))
        new = {
            entry.piece: max(entry.score, lowest)
            for entry in ModelProto.FromString(proto).pieces
            if entry.type == entry.NORMAL and not set(entry.piece).isdisjoint(found)
        }
    for place, (piece, score) in enumerate(new.items(), start=1):
        score = lowest - place if kind == "bpe" else score  # old pieces are merged first
        model.pieces.add(piece=piece, score=score, type=ModelProto.SentencePiece.NORMAL)
    model.trainer_spec.vocab_size = len(model.pieces)
    return SentencePieceTokenizer(model.SerializeToString(), old.normalization)


def _trained(
    lines: Iterator[str],
    kind: str,
    vocabulary: int,
    spelled: bool,
    symbols: Sequence[str],
    name: str,
) -> bytes:
    """Have sentencepiece learn a vocabulary."""
    proto = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=lines,
            model_writer=proto,
            model_type=kind,
            vocab_size=vocabulary,
            byte_fallback=spelled,
            user_defined_symbols=symbols,
            character_coverage=1.0,
            hard_vocab_limit=False,
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            add_dummy_prefix=False,
            max_sentence_length=2**30,
            num_threads=_THREADS,
            pad_id=PAD,
            unk_id=UNK,
            bos_id=BOS,
            eos_id=EOS,
            minloglevel=2,
        )
    except RuntimeError as error:
        raise TransduceError(
            f"{name}: no vocabulary can be learnt from this text: {error}"
        ) from None
    return proto.getvalue()


def _cutting(symbols: Iterable[str]) -> re.Pattern[str]:
    """Return a pattern that finds symbols, of those that begin alike the longest."""
    longest_first = sorted(symbols, key=len, reverse=True)
    return re.compile(f"({'|'.join(map(re.escape, longest_first)) or _NEVER})")


def _lines(texts: Iterable[str], symbols: re.Pattern[str], unlearnt: str = _NEVER) -> Iterator[str]:
    """Yield what lies between the symbols, as a tokenizer sees it, and the unlearnt characters."""
    others = re.compile(unlearnt)
    for text in texts:
        for part in symbols.split(" " + text)[::2]:
            yield from filter(None, others.split(part))


def _alphabet(lines: Iterable[str], coverage: float) -> str:
    """Return the most frequent characters that make up such a share of the text; always a space.

    Not left to sentencepiece, which knows no share below 0.98 and leaves out the space of text
    that has few.
    """
    counts: Counter[str] = Counter()
    for line in lines:
        counts.update(line)
    return "".join(sorted({" ", *_most_frequent(counts, coverage)} - {_SKIPPED}))


def _most_frequent(counts: Counter[str], coverage: float) -> list[str]:
    """Return the most frequent ones that make up such a share of all."""
    found, rest = [], counts.total() * coverage
    for one, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        if rest <= 0:
            break
        found.append(one)
        rest -= count
    return found


def without_stray_marks(proto: bytes) -> bytes:
    """Drop the learnt pieces that tie a combining mark to what follows it, not to its letter.

    A mark alone stays a piece. Without `̇e`, `u̇e` is still reached by way of `u̇`.
    """
    model = ModelProto.FromString(proto)
    kept = [
        entry
        for entry in model.pieces
        if entry.type != entry.NORMAL
        or len(entry.piece) == 1
        or not unicodedata.combining(entry.piece[0])
    ]
    if len(kept) == len(model.pieces):
        return proto
    del model.pieces[:]
    model.pieces.extend(kept)
    return bytes(model.SerializeToString())
