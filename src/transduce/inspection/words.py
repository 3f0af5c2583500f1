"""Which pieces make which word: pieces are what a model sees, words what a person wrote."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from transduce.config import UNK
from transduce.data.tokenizer import Tokenizer

_SPACES = " \u00a0"  # both are spaces to tokenizers (`normalize`)
_SPACED = re.compile(f"[{_SPACES}]*[^{_SPACES}]+(?:[{_SPACES}]+$)?")


@dataclass(frozen=True)
class Word:
    """A word, and the places of its pieces."""

    text: str
    pieces: tuple[int, ...]


def words(tokenizer: Tokenizer, ids: Sequence[int], text: str | None = None) -> list[Word]:
    """Return the words of a text, with the pieces that each is made of; every piece is in one.

    Words are what stands between spaces: a line written without any is one word. With the text
    they are its words as they stand there, whatever a tokenizer makes of them, also where it makes
    nothing of one, or one unknown piece of several (then the first has it). A space that is a piece
    by itself belongs to the word after it.

    Args:
        tokenizer: of that side.
        ids: of the pieces, without BEGIN and END.
        text: the line that they come from; of an output, which has no unknown pieces, None.
    """
    if text is not None and (found := _by_text(tokenizer, ids, text)) is not None:
        return found
    return _grouped(
        tokenizer, ids, lambda before, piece: before.endswith(b" ") or piece.startswith(b" ")
    )


def pieces(tokenizer: Tokenizer, ids: Sequence[int]) -> list[Word]:
    """Return the pieces of a text as if they were words: letters, say, where pieces are letters.

    Bytes that spell a character stay together, and a space that is a piece by itself belongs to
    the piece after it: the first letter of a word is one unit, not two.
    """
    return _grouped(tokenizer, ids, lambda before, piece: not (piece and 0x80 <= piece[0] < 0xC0))


def _by_text(tokenizer: Tokenizer, ids: Sequence[int], text: str) -> list[Word] | None:
    """Encode word by word; None if that does not give the pieces of the whole text."""
    found: list[Word] = []
    at = 0
    for part in _SPACED.findall(tokenizer.start + text):
        start = at
        spaced = part[0] in _SPACES
        for id_ in tokenizer.encode_part(part[spaced:], spaced):
            if at < len(ids) and ids[at] == id_:
                at += 1
            elif id_ != UNK or not at or ids[at - 1] != UNK:  # unknown words in a row are one piece
                return None
        found.append(Word(part.strip(_SPACES), tuple(range(start, at))))
    return found if at == len(ids) else None


def _grouped(
    tokenizer: Tokenizer, ids: Sequence[int], begins: Callable[[bytes, bytes], bool]
) -> list[Word]:
    """Join neighbouring pieces; `begins` says whether one begins a word, given the one before."""
    groups: list[list[int]] = []
    before, blank = b"", False
    for i, id_ in enumerate(ids):
        spelled = tokenizer.spellings[id_]
        if not groups or (not blank and begins(before, spelled)):
            groups.append([])
            blank = True
        groups[-1].append(i)
        blank = blank and spelled != b"" and not spelled.strip(b" ")
        before = spelled
    if blank and len(groups) > 1:  # nothing but spaces at the end
        groups[-2:] = [groups[-2] + groups[-1]]
    found = []
    for group in groups:
        own = [ids[i] for i in group]
        text = tokenizer.decode(own).strip(" ") or "".join(tokenizer.pieces(own))
        found.append(Word(text, tuple(group)))
    return found
