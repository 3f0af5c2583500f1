"""Text before any tokenizer: the one form that all of it is brought into, and what makes it equal.

A pair's side is one line, whatever it was in its file: `one_line`. Tokenizers see the form that
`normalize` gives, in training and in use. Two texts count as the same sentence if their
`comparison_key` is the same.
"""

import re
import unicodedata
from typing import NamedTuple


class Pair(NamedTuple):
    """A source and its target, and the line (or row, or entry) they stand on, from 1."""

    src: str
    tgt: str
    line: int


class Skipped(NamedTuple):
    """An entry of a file that is no pair: a fuzzy translation, a header, ..."""

    reason: str
    line: int


_BREAKS = re.compile("[\t\n\x0b\x0c\r\x1c-\x1e\x85\u2028\u2029]+")
_REPLACED = str.maketrans(
    {code: None for code in [*range(0x20), *range(0x7F, 0xA0)]}
    | {"\ufeff": None, "\u00a0": " ", "\u2581": "_"}
)


def one_line(text: str) -> str:
    """Return the text with each run of line breaks and tabs as one space."""
    return _BREAKS.sub(" ", text)


def normalize(text: str, form: str) -> str:
    """Bring text into the one form that tokenizers see, in training and in use.

    The Unicode form (NFC, NFKC or none); no-break spaces, and each run of tabs and line breaks, as
    a space; control characters and byte-order marks removed; ▁ (U+2581), which marks spaces
    inside pieces, as an underscore.
    """
    # Most text has nothing of all that, which `isprintable` sees at once (▁ is printable).
    if not text.isprintable() or "\u2581" in text:
        text = _BREAKS.sub(" ", text).translate(_REPLACED)
    # Last, since what is removed may stand between a letter and its accent.
    return text if form == "none" else unicodedata.normalize(form, text)  # type: ignore[arg-type]


def comparison_key(text: str) -> str:
    """Return what is left of a text when case, spaces and the Unicode form do not count."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def is_blank(text: str) -> bool:
    """Say whether a line holds nothing but space."""
    return not text or text.isspace()
