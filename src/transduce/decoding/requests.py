"""What is asked of an output, in words, and the rules for search that follow from it."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property

import regex
from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from transduce.config import UNK, DecodingConfig
from transduce.data.text import normalize
from transduce.data.tokenizer import Tokenizer
from transduce.decoding.constraints import Constraints, Phrase, nothing_banned
from transduce.errors import UsageError, did_you_mean

_NO_SPACES = r"\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}"
"""Scripts whose words are not separated by spaces."""
_BEGINS_WITHOUT_SPACE = regex.compile(rf"[{_NO_SPACES}]")
_ENDS_IN_A_WORD = regex.compile(rf"[[\p{{L}}\p{{M}}\p{{N}}]--[{_NO_SPACES}]]\Z", regex.V1)


@dataclass(frozen=True, config=ConfigDict(extra="forbid", strict=True))
class Request:
    """A line to translate, and what its output must look like."""

    source: str
    prefix: str = ""
    """How the output begins."""
    require: tuple[str, ...] = ()
    """What occurs in the output, as whole words; what is named twice, twice."""
    forbid: tuple[str, ...] = ()
    """What does not occur in the output, not even as a part of a word."""

    def also(self, for_all: "Request") -> "Request":
        """Return the request with what is asked of all lines on top; its own prefix goes first."""
        return Request(
            self.source,
            self.prefix or for_all.prefix,
            self.require + for_all.require,
            self.forbid + for_all.forbid,
        )


def read_requests(lines: Iterable[str], name: str) -> Iterator[Request]:
    """Read requests from JSON objects, one a line: a source and, if wanted, the other fields.

    Raises:
        UsageError: naming the line that is none.
    """
    adapter = TypeAdapter(Request)
    known = list(Request.__dataclass_fields__)
    for number, line in enumerate(lines, start=1):
        try:
            yield adapter.validate_json(line)
        except ValidationError as error:
            problem = error.errors()[0]
            key = str(problem["loc"][0]) if problem["loc"] else ""
            if problem["type"] == "unexpected_keyword_argument":
                what = (
                    f"unknown key {key!r}{did_you_mean(key, known)} (there are: {', '.join(known)})"
                )
            elif problem["type"] == "json_invalid":
                what = f"not JSON: {problem['msg']}"
            else:
                what = f"{key or 'a request'}: {problem['msg']}"
            raise UsageError(f"{name}, line {number}: {what}") from None


class Banned:
    """Knows which pieces would bring forbidden text about.

    Args:
        texts: what must not occur.
        spellings: what each piece adds to a text.
    """

    def __init__(self, texts: Sequence[bytes], spellings: Sequence[bytes]) -> None:
        self.spellings = spellings
        self.always = {
            id_ for id_, added in enumerate(spellings) if any(text in added for text in texts)
        }
        """Pieces that contain such text."""
        self.after = {
            text[:k]: [id_ for id_, added in enumerate(spellings) if added.startswith(text[k:])]
            for text in texts
            for k in range(1, len(text))
        }
        """What would complete such text, by how it begins."""

    def __call__(self, tokens: Sequence[int]) -> Iterable[int]:
        """Return the pieces that must not follow `tokens`."""
        written = b"".join(self.spellings[token] for token in tokens)
        shown = written.decode(errors="ignore").encode()  # broken bytes leave no trace
        found = [ids for begin, ids in self.after.items()
                 if written.endswith(begin) or shown.endswith(begin)]  # fmt: skip
        return self.always.union(*found)


class Rules:
    """Makes rules for search out of requests.

    Args:
        target: the output's tokenizer.
        decoding: says what holds for every line.
    """

    def __init__(self, target: Tokenizer, decoding: DecodingConfig) -> None:
        self.target = target
        self.decoding = decoding
        self.placeholders = [re.compile(pattern) for pattern in decoding.placeholders]
        self._banned: dict[tuple[str, ...], Banned] = {}

    @cached_property
    def inside(self) -> frozenset[int]:
        """Pieces that go on with a word; bytes above ASCII are parts of letters, mostly."""
        return frozenset(
            id_
            for id_, added in enumerate(self.target.spellings)
            if added[:1] >= b"\x80" or added[:1].isalnum() or added[:1] == b"_"
        )

    def of(self, request: Request, limit: int, where: str) -> Constraints:
        """Return the rules for one line.

        Placeholders that cannot be written, or for which there is no room, are left out.

        Args:
            request: the line, and what is asked of its output.
            limit: the number of tokens that the output may have, END included.
            where: names the line in messages.

        Raises:
            UsageError: if the output cannot be as it is asked for.
        """
        form = self.target.normalization
        forbidden = tuple(normalize(text, form) for text in request.forbid if text)
        asked = [text for text in (request.prefix, *request.require) if text]
        for text in asked:
            if unwanted := next((t for t in forbidden if t in normalize(text, form)), None):
                raise UsageError(f"{where}: {text!r} is asked for, but {unwanted!r} is forbidden")
        if request.require and self.decoding.method == "sample":
            raise UsageError(f"{where}: nothing can be required of what is drawn at random")
        prefix = tuple(self.target.encode(request.prefix.rstrip())) if request.prefix else ()
        phrases = [(text, self.phrase(text)) for text in request.require if text.strip()]
        for text, ids in (request.prefix, prefix), *((text, p.tokens) for text, p in phrases):
            if UNK in ids:
                raise UsageError(f"{where}: the model's vocabulary cannot spell {text!r}")
        required = [phrase for _, phrase in phrases]
        room = limit - 1 - len(prefix) - sum(len(phrase.tokens) for phrase in required)
        if room < 0:
            raise UsageError(
                f"{where}: what is asked for has {limit - room} pieces with END, but the output "
                f"may have {limit} (decoding.max_extra)"
            )
        for text, spaced in self.copied(request.source):
            phrase = self.phrase(text, spaced)
            if UNK not in phrase.tokens and len(phrase.tokens) <= room:
                required.append(phrase)
                room -= len(phrase.tokens)
        return Constraints(
            prefix,
            tuple(required),
            self.inside if required else frozenset(),
            self.banned(forbidden),
            self.decoding.no_repeat,
            min(self.decoding.min_length, limit),
        )

    def copied(self, source: str) -> Iterator[tuple[str, bool]]:
        """Yield the placeholders of a source, and whether each stands behind a space."""
        if self.decoding.method == "beam":
            for pattern in self.placeholders:
                for found in pattern.finditer(source):
                    if found.group():
                        yield found.group(), not source[: found.start()].rpartition(" ")[2]

    def phrase(self, text: str, spaced: bool | None = None) -> Phrase:
        """Return a text as it is spelled within another, behind a space or not."""
        text = text.strip()
        if spaced is None:
            spaced = not _BEGINS_WITHOUT_SPACE.match(text)
        ids = self.target.encode_part(text, spaced)
        if UNK in ids and not spaced:  # words are only known with their space
            ids = self.target.encode_part(text, spaced=True)
        return Phrase(tuple(ids), word=bool(_ENDS_IN_A_WORD.search(text)))

    def banned(self, texts: tuple[str, ...]) -> Callable[[Sequence[int]], Iterable[int]]:
        """Return what keeps texts out of an output."""
        if not texts:
            return nothing_banned
        if texts not in self._banned:
            # A line break in an output is shown as a space.
            spellings = [re.sub(b"[\r\n]", b" ", added) for added in self.target.spellings]
            self._banned[texts] = Banned([text.encode() for text in texts], spellings)
        return self._banned[texts]

    def met(self, request: Request, output: str) -> bool:
        """Say whether an output holds everything that it must."""
        required = [*request.require, *(text for text, _ in self.copied(request.source))]
        if not required:
            return True
        counts = Counter(normalize(text.strip(), self.target.normalization) for text in required)
        return all(
            len(re.findall(re.escape(text) + _end_of(text), output)) >= count
            for text, count in counts.items()
            if text
        )


def _end_of(text: str) -> str:
    """Return a pattern for the end of a word, if the text ends in one."""
    return r"(?!\w)" if _ENDS_IN_A_WORD.search(text) else ""
