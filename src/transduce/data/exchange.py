"""The exchange formats of translators: TMX 1.4, XLIFF 1.2 and 2.x, gettext PO and MO.

The XML formats are read as a stream, so that memory does not grow with the file, and nothing that
a file names is ever loaded. Texts are given as they stand; what has no translation, or none that
is finished, is `Skipped` with its reason.
"""

import codecs
import re
import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable
from xml.sax import SAXParseException
from xml.sax.handler import ContentHandler, feature_external_ges

import polib
from defusedxml import EntitiesForbidden
from defusedxml.expatreader import create_parser

from transduce.data.text import Pair, Skipped, is_blank
from transduce.errors import TransduceError, UsageError

MAX_DEPTH = 100
"""Elements within each other; deeper is refused."""
MAX_SEGMENT = 1_000_000
"""Characters of a segment; of a longer one, one more is kept: cleaning sees that it is too long."""
MAX_SILENCE = 16 * 2**20
"""Bytes without an element or text (one gigantic tag); more is refused."""
MAX_LANGUAGES = 1_000
"""Languages in a TMX unit; more is refused."""
_MAX_NAME = 100  # characters of a language, state or element that are looked at
_CHUNK = 2**16

_NATIVE_CODE = {"bpt", "ept", "ph", "it", "ut"}


# --- XML: TMX and XLIFF ---------------------------------------------------------------------------


@runtime_checkable
class Readable(Protocol):
    """A file opened for bytes, be it compressed or in memory."""

    def read(self, size: int, /) -> bytes:
        """Return the next bytes, none at the end."""
        ...


def read_tmx(
    file: Readable, name: str, languages: Sequence[str] | None
) -> Iterator[Pair | Skipped]:
    """Yield the pairs of a TMX file.

    Without `languages`, the source is the header's source language (the first language, if the
    header names none) and the target the only other one.

    Args:
        file: the file.
        name: what to call it in messages.
        languages: the source's and the target's language; `en` also finds `en-US`.

    Raises:
        TransduceError: for broken XML, another root element, entities, hostile sizes, or if a
            language is in no unit.
        UsageError: if `languages` are not given and the file has more than two.
    """
    return _read_xml(file, _Tmx(name, languages))


def read_xliff(
    file: Readable, name: str, languages: Sequence[str] | None
) -> Iterator[Pair | Skipped]:
    """Yield the pairs of an XLIFF file (1.2 or 2.x); those the other way round are turned.

    Args:
        file: the file.
        name: what to call it in messages.
        languages: the source's and the target's language; `en` also finds `en-US`.

    Raises:
        TransduceError: for broken XML, another root element, entities, hostile sizes, or if no
            part of the file is in these languages.
        UsageError: if `languages` are not given and the file has more than one pair of them.
    """
    return _read_xml(file, _Xliff(name, languages))


def _read_xml(file: Readable, units: "_Units") -> Iterator[Pair | Skipped]:
    # "forbid_external" would refuse every file that names its DTD. With external entities off,
    # the parser passes over the DTD without opening it.
    parser = create_parser(forbid_dtd=False, forbid_entities=True, forbid_external=False)
    parser.setFeature(feature_external_ges, False)
    parser.setContentHandler(units)
    units.line = parser.getLineNumber
    parser.feed(b"")  # or an empty file would not be noticed
    more = True
    while more:
        chunk = file.read(_CHUNK)
        more = bool(chunk)
        units.silence += len(chunk)
        try:
            if more:
                parser.feed(chunk)
            else:
                parser.close()
        except EntitiesForbidden:
            raise units.error(
                "declares entities, which is refused: they can stand for other files or for "
                "endless text; remove the <!ENTITY ...> lines"
            ) from None
        except SAXParseException as error:
            raise units.error(f"broken XML ({error.getMessage()})", error.getLineNumber()) from None
        except (LookupError, ValueError) as error:  # of the encoding that the file names
            raise units.error(f"cannot be decoded ({error}); convert it to UTF-8") from None
        if units.silence > MAX_SILENCE:
            raise units.error(f"a tag or comment of more than {MAX_SILENCE} bytes")
        yield from units.found
        units.found.clear()


class _Units(ContentHandler):
    """What the elements of both formats have in common: depth, inline code, sizes, languages."""

    root: str

    def __init__(self, name: str, languages: Sequence[str] | None) -> None:
        super().__init__()
        self.name = name
        self.chosen = languages is not None
        self.languages: list[str | None] = list(languages) if languages else [None, None]
        self.found: list[Pair | Skipped] = []
        self.line: Callable[[], int]
        self.silence = 0
        self.path: list[str] = []
        self._text: list[str] = []
        self._length = 0
        self._collecting = 0  # the depth of the element whose text is collected, or 0
        self._code = 0  # the depth of the native code within it, or 0

    def opened(self, tag: str, attributes: Any) -> None:
        """See an element begin that is not within a text."""
        raise NotImplementedError

    def closed(self, tag: str) -> None:
        """See it end."""
        raise NotImplementedError

    def collected(self, tag: str, text: str) -> None:
        """Receive the text of an element for which `collect` was called when it was opened."""
        raise NotImplementedError

    def collect(self) -> None:
        self._collecting = len(self.path)
        self._text.clear()
        self._length = 0

    def error(self, reason: str, line: int | None = None) -> TransduceError:
        return TransduceError(f"{self.name}, line {line or self.line()}: {reason}")

    def startElement(self, name: str, attrs: Any) -> None:  # noqa: N802
        self.silence = 0
        tag = name.rpartition(":")[2][:_MAX_NAME]
        if not self.path and tag != self.root:
            raise self.error(
                f"the root element is <{tag}>, not <{self.root}>: "
                f"this is no {self.root.upper()} file"
            )
        self.path.append(tag)
        if len(self.path) > MAX_DEPTH:
            raise self.error(f"more than {MAX_DEPTH} elements within each other")
        if not self._collecting:
            self.opened(tag, attrs)
        elif not self._code and tag in _NATIVE_CODE:
            self._code = len(self.path)

    def characters(self, content: str) -> None:
        self.silence = 0
        if self._collecting and not self._code and self._length <= MAX_SEGMENT:
            self._text.append(content)
            self._length += len(content)

    def endElement(self, name: str) -> None:  # noqa: N802
        self.silence = 0
        depth, tag = len(self.path), self.path[-1]
        if not self._collecting:
            self.closed(tag)
        elif depth == self._collecting:
            self._collecting = 0
            self.collected(tag, "".join(self._text)[: MAX_SEGMENT + 1])
        elif depth == self._code:
            self._code = 0
        self.path.pop()

    def skippedEntity(self, name: str) -> None:  # noqa: N802
        raise self.error(
            f"uses the entity '{name[:_MAX_NAME]}', which the file does not explain; "
            "write the character itself"
        )


class _Tmx(_Units):
    root = "tmx"

    def __init__(self, name: str, languages: Sequence[str] | None) -> None:
        super().__init__(name, languages)
        self.seen: dict[str, str] = {}  # languages of the file: in plain form -> as written
        self.matched = [False, False]  # whether any unit has the source's, the target's language
        self._begin_unit()
        self.variant: tuple[int, int] | None = None  # distance and side of the open <tuv>

    def _begin_unit(self) -> None:
        self.unit_line = 0
        self.unit_languages: set[str] = set()
        self.texts: list[str | None] = [None, None]
        self.distances = [_FAR, _FAR]  # between the sides' languages and those of their texts

    def opened(self, tag: str, attributes: Any) -> None:
        match tag:
            case "header":
                source = attributes.get("srclang", "")[:_MAX_NAME]
                if not self.chosen and source.lower() not in ("", "*all*"):
                    self.languages[0] = source
            case "tu":
                self._begin_unit()
                self.unit_line = self.line()
            case "tuv":
                language = attributes.get("xml:lang") or attributes.get("lang") or ""
                self.variant = self._place(language[:_MAX_NAME])
            case "seg" if self.variant is not None and self.path[-2] == "tuv":
                self.collect()

    def collected(self, tag: str, text: str) -> None:
        assert self.variant is not None
        distance, side = self.variant
        self.texts[side], self.distances[side] = text, distance
        self.variant = None

    def closed(self, tag: str) -> None:
        if tag == "tuv":
            self.variant = None
        elif tag == "tu":
            src, tgt = self.texts
            if src is None or tgt is None:
                lacking = self.languages[0 if src is None else 1] or "target"
                self.found.append(Skipped(f"no {lacking} text", self.unit_line))
            else:
                self.found.append(Pair(src, tgt, self.unit_line))

    def _place(self, language: str) -> tuple[int, int] | None:
        """Return the side that a language is for, unless the unit has a better text for it."""
        plain = _plain(language)
        if not plain:
            return None
        self.unit_languages.add(plain)
        if len(self.unit_languages) > MAX_LANGUAGES:
            raise self.error(f"more than {MAX_LANGUAGES} languages in one unit")
        if len(self.seen) < MAX_LANGUAGES:
            self.seen.setdefault(plain, language)
        if not self.chosen:
            self._learn(language)
        distance, side = min(
            (_FAR if wanted is None else _distance(wanted, language), side)
            for side, wanted in enumerate(self.languages)
        )
        if distance == _FAR:
            return None
        self.matched[side] = True
        return (distance, side) if distance < self.distances[side] else None

    def _learn(self, language: str) -> None:
        source, target = self.languages
        if source is None:
            self.languages[0] = language
        elif target is None and _distance(source, language) == _FAR:
            self.languages[1] = language
        if len(self.seen) > 2:
            first, second, *_ = self.seen.values()
            raise UsageError(
                f"{self.name}, line {self.line()}: the file has more than two languages "
                f"({', '.join(self.seen.values())}); choose with data.languages, "
                f'e.g. languages = ["{first}", "{second}"]'
            )

    def endDocument(self) -> None:  # noqa: N802
        if self.seen and not all(self.matched):
            lacking = self.languages[self.matched.index(False)]
            raise TransduceError(
                f"{self.name}: no text in {lacking or 'a second language'}; the file has "
                f"{', '.join(self.seen.values())}: choose with data.languages"
            )


class _Xliff(_Units):
    root = "xliff"

    def __init__(self, name: str, languages: Sequence[str] | None) -> None:
        super().__init__(name, languages)
        self.seen: dict[str, None] = {}  # pairs of languages in the file
        self.matched = False
        self.same_throughout = False  # XLIFF 2 has one pair of languages, of the whole document
        self.pair = ""  # the languages that apply here
        self.turned: bool | None = (
            False  # whether they are the wanted ones in reverse; None: others
        )
        self.translate = [True]  # whether to translate what is here, and what is around it
        self._begin_unit("")

    def _begin_unit(self, state: str) -> None:
        self.unit_line = self.line() if self.path else 0
        self.state = state
        self.texts = {"source": "", "target": ""}

    def opened(self, tag: str, attributes: Any) -> None:
        if tag in ("file", "group", "unit", "trans-unit"):
            said = {"yes": True, "no": False}.get(attributes.get("translate"))
            self.translate.append(self.translate[-1] if said is None else said)
        match tag:
            case "xliff" if "srcLang" in attributes:
                self.same_throughout = True
                self._compare(attributes["srcLang"], attributes.get("trgLang", ""))
            case "file" if not self.same_throughout:
                self._compare(
                    attributes.get("source-language", ""), attributes.get("target-language", "")
                )
            case "trans-unit" | "segment":
                self._begin_unit(attributes.get("state", "")[:_MAX_NAME])
            case "source" | "target" if self.path[-2:-1] in (["trans-unit"], ["segment"]):
                if tag == "target":
                    self.state = attributes.get("state", self.state)[:_MAX_NAME]
                self.collect()

    def collected(self, tag: str, text: str) -> None:
        self.texts[tag] = text

    def closed(self, tag: str) -> None:
        if tag in ("trans-unit", "segment"):
            self.found.append(self._unit())
        if tag in ("file", "group", "unit", "trans-unit"):
            self.translate.pop()

    def _unit(self) -> Pair | Skipped:
        if self.turned is None:
            return Skipped(f"other languages ({self.pair})", self.unit_line)
        if not self.translate[-1]:
            return Skipped("not to be translated", self.unit_line)
        if self.state in ("new", "initial") or self.state.startswith("needs-"):
            return Skipped(f"not finished (state {self.state})", self.unit_line)
        src, tgt = self.texts["source"], self.texts["target"]
        if is_blank(tgt):
            return Skipped("empty translation", self.unit_line)
        return Pair(tgt, src, self.unit_line) if self.turned else Pair(src, tgt, self.unit_line)

    def _compare(self, source: str, target: str) -> None:
        """Note the languages of what follows, and whether they are the wanted ones."""
        source, target = source[:_MAX_NAME], target[:_MAX_NAME]
        self.pair = f"{source or '?'}-{target or '?'}"
        if len(self.seen) < MAX_LANGUAGES:
            self.seen[self.pair] = None
        if self.languages == [None, None] and source and target:
            self.languages = [source, target]
        # A language that a file leaves open may be any; a target-language is optional.
        along, back = (
            sum(
                0 if wanted is None or not found else _distance(wanted, found)
                for wanted, found in zip(self.languages, pair, strict=True)
            )
            for pair in [(source, target), (target, source)]
        )
        self.turned = None if min(along, back) >= _FAR else back < along
        if self.turned is not None:
            self.matched = True
        elif not self.chosen:
            raise UsageError(
                f"{self.name}, line {self.line()}: the file has more than one pair of languages "
                f"({', '.join(self.seen)}); choose with data.languages, "
                f'e.g. languages = ["{self.languages[0]}", "{self.languages[1]}"]'
            )

    def endDocument(self) -> None:  # noqa: N802
        if self.seen and not self.matched:
            raise TransduceError(
                f"{self.name}: nothing in {self.languages[0]} and {self.languages[1]}; the file "
                f"has {', '.join(self.seen)}: choose with data.languages"
            )


_FAR = 100


def _plain(language: str) -> str:
    return language.strip().lower().replace("_", "-")


def _distance(wanted: str, found: str) -> int:
    """Say how far a language found is from the one wanted.

    0: the same; 1: a variety of it (`en-US` for `en`); 2: what it is a variety of (`en` for
    `en-US`); `_FAR`: another language.
    """
    wanted, found = _plain(wanted), _plain(found)
    if wanted == found:
        return 0
    if found.startswith(wanted + "-"):
        return 1
    return 2 if wanted.startswith(found + "-") else _FAR


# --- gettext: PO and MO ---------------------------------------------------------------------------


def read_po(path: Path, name: str) -> Iterator[Pair | Skipped]:
    """Yield the pairs of a gettext PO file; the whole file is held in memory.

    A plural entry gives two pairs: the singular with the first form, the plural with the last.

    Raises:
        TransduceError: if the file cannot be read or decoded, or is no PO file (names the line).
    """
    data = _read_bytes(path, name).removeprefix(codecs.BOM_UTF8)
    lines = list(_po_lines(data, name))
    first = next((number for number, line in enumerate(lines, start=1) if line), 1)
    try:
        # The line end tells the parser that this is the content and not a path.
        catalogue = polib.pofile("\n".join(lines) + "\n", encoding="utf-8", klass=_Catalogue)
    except (OSError, ValueError, LookupError) as error:
        line = re.search(r"line (\d+)", str(error))
        place = f"{name}, line {line[1]}" if line else name
        raise TransduceError(f"{place}: this does not follow in a PO file") from None
    for entry in catalogue:
        line_number = max(entry.linenum, first)
        header = not entry.msgid and entry.msgctxt is None
        if entry.obsolete or header or entry.fuzzy:
            reason = "obsolete" if entry.obsolete else "header" if header else "fuzzy"
            yield Skipped(reason, line_number)
        elif entry.msgstr_plural:
            forms = [form for _, form in sorted(entry.msgstr_plural.items())]
            yield from _message([entry.msgid, entry.msgid_plural], forms, line_number)
        else:
            yield from _message([entry.msgid], [entry.msgstr], line_number)


class _Catalogue(polib.POFile):  # type: ignore[misc]
    def find(self, *_: object, **__: object) -> None:
        """Find no header, so that it stays in its place among the entries."""


_PO_STRING = re.compile(
    r"(\#~)?\s*  (msgctxt|msgid|msgid_plural|msgstr|msgstr\[\d\])?\s*  (\"(?:[^\"\\]|\\.)*\")",
    re.VERBOSE,
)
_OTHER_BREAKS = re.compile("[\x0b\x0c\r\x1c-\x1e\x85\u2028\u2029]")


def _po_lines(data: bytes, name: str) -> Iterator[str]:
    charset = _charset(data, name)
    length = 0  # of a string that goes on and on; the parser's time grows with its square
    for number, raw in enumerate(data.split(b"\n"), start=1):
        where = f"{name}, line {number}"
        line = _po_line(_decode(raw, charset, where), where)
        if line.startswith(('"', '#~ "')):
            length += len(line)
        elif line:
            length = 0
        if length > MAX_SEGMENT:
            raise TransduceError(f"{where}: a text of more than {MAX_SEGMENT} characters")
        yield line


def _po_line(line: str, where: str) -> str:
    """Return a line as the parser knows it: spaced, without comments, its string complete.

    The parser would also cut lines at U+2028 and the like; as a tab they count the same.
    """
    line = _OTHER_BREAKS.sub("\t", line).strip()
    if line.startswith("#,"):
        return f"#, {line[2:]}" if line[2:].strip() else ""
    if string := _PO_STRING.fullmatch(line):
        return " ".join(part for part in string.groups() if part)
    if line and not line.startswith("#"):
        raise TransduceError(
            f'{where}: not a line of a PO file: expected a comment or msgid "text", msgstr "text"'
        )
    return ""


_MO_BYTE_ORDERS = {b"\xde\x12\x04\x95": "<", b"\x95\x04\x12\xde": ">"}


def read_mo(path: Path, name: str) -> Iterator[Pair | Skipped]:
    """Yield the pairs of a compiled gettext catalogue; the whole file is held in memory.

    A pair's line is the number of its entry. Plural entries are as in `read_po`.

    Raises:
        TransduceError: if the file cannot be read or decoded, is no MO file, or is cut short.
    """
    data = _read_bytes(path, name)
    order = _MO_BYTE_ORDERS.get(data[:4])
    if order is None:
        raise TransduceError(f"{name}: not a compiled gettext catalogue (MO file)")
    messages = _mo_messages(data, order, name)
    header = next((translation for source, translation in messages if not source), b"")
    charset = _charset(header, name)
    for number, (source, translation) in enumerate(messages, start=1):
        if not source:
            yield Skipped("header", number)
            continue
        where = f"{name}, entry {number}"
        context, separator, text = _decode(source, charset, where).partition("\x04")
        sources = (text if separator else context).split("\0")[:2]
        forms = _decode(translation, charset, where).split("\0")
        yield from _message(sources, forms, number)


def _mo_messages(data: bytes, order: str, name: str) -> list[tuple[bytes, bytes]]:
    damaged = TransduceError(f"{name}: the catalogue is damaged or cut short; compile it again")
    try:
        version, count, *tables = struct.unpack_from(f"{order}4I", data, 4)
        if version >> 16 > 1:
            raise TransduceError(f"{name}: an MO file of an unknown version ({version >> 16})")
        if count * 8 > len(data):
            raise damaged
        spans = [struct.unpack_from(f"{order}{2 * count}I", data, table) for table in tables]
    except struct.error:
        raise damaged from None
    texts = []
    for lengths, offsets in ((span[::2], span[1::2]) for span in spans):
        # Equal texts may share their place, but a small file must not stand for endless text.
        if sum(lengths) > 10 * len(data):
            raise damaged
        if any(
            offset + length > len(data) for length, offset in zip(lengths, offsets, strict=True)
        ):
            raise damaged
        texts.append(
            [data[offset : offset + n] for n, offset in zip(lengths, offsets, strict=True)]
        )
    return list(zip(*texts, strict=True))


def _message(sources: list[str], forms: list[str], line: int) -> Iterator[Pair | Skipped]:
    """Yield a message and its translation; of a plural one, singular and plural."""
    translations = [forms[0], forms[-1]][: len(sources)]
    if any(is_blank(translation) for translation in translations):
        yield Skipped("empty translation", line)
        return
    for source, translation in zip(sources, translations, strict=True):
        yield Pair(source, translation, line)


def _read_bytes(path: Path, name: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise TransduceError(f"cannot read {name}: {error.strerror or error}") from None


# Of the charsets that Python knows, those that gettext allows; the rest is UTF-16, EBCDIC and such,
# in which a catalogue cannot be written, and things that are no charsets at all.
_CHARSETS = re.compile(
    r"ascii|utf-8(-sig)?|iso8859-\d+|koi8-\w|cp(8[56]\d|874|9\d\d|125\d)|mac-\w+|gb\w+|big5\w*|euc_\w+"
    r"|shift_jis|johab|tis-620"
)


def _charset(header: bytes, name: str) -> str:
    """Return the charset that a catalogue's header names, UTF-8 if it names none."""
    named = re.search(rb'(?:^|"|\\n)Content-Type:[^"\n]*charset=([\w.:-]+)', header, re.MULTILINE)
    charset = named[1].decode("ascii") if named else "utf-8"
    if charset == "CHARSET":  # what a template says before anyone has filled it in
        return "utf-8"
    try:
        if _CHARSETS.fullmatch(codecs.lookup(charset).name):
            return charset
    except LookupError:
        pass
    raise TransduceError(f"{name}: the charset '{charset}' is unknown; convert the file to UTF-8")


def _decode(data: bytes, charset: str, where: str) -> str:
    try:
        return data.decode(charset)
    except ValueError:
        raise TransduceError(f"{where}: not {charset}; convert the file to UTF-8") from None
