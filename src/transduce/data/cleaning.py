"""Which pairs training leaves out, and what is repaired in the others: nothing silently.

Every check has a name (its key in the [cleaning] table) and one of four actions: off, report (the
pair is kept and counted), fix and drop. Whatever a check finds goes to `Findings`.
"""

import html
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from html.entities import html5
from typing import Any, Literal

import regex

from transduce.config import CleaningConfig
from transduce.data.text import Pair, Skipped, comparison_key, normalize, one_line
from transduce.errors import TransduceError

Action = Literal["report", "fix", "drop", "skip"]
LISTED = 1_000  # line numbers kept for each check; dropped.tsv has all that were dropped
EXAMPLES = 5
CUT = 300  # characters of an example


@dataclass
class Finding:
    """What one check found: how often, on which lines first, and a few examples."""

    count: int = 0
    lines: list[str] = field(default_factory=list)
    examples: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class Findings:
    """What all checks found in a part of a corpus, by name and action."""

    found: dict[tuple[str, Action], Finding] = field(default_factory=dict)
    latest: str = ""
    """The check that found something last: for a pair that was left out, the reason."""

    def add(self, check: str, action: Action, file: str, pair: Pair | Skipped) -> None:
        """Record one pair; `file` is empty where there is only one."""
        finding = self.found.setdefault((check, action), Finding())
        finding.count += 1
        self.latest = check
        if len(finding.lines) < LISTED:
            finding.lines.append(f"{file}:{pair.line}" if file else str(pair.line))
        if len(finding.examples) < EXAMPLES and isinstance(pair, Pair):
            finding.examples.append(
                {"file": file, "line": pair.line, "src": pair.src[:CUT], "tgt": pair.tgt[:CUT]}
            )

    def count(self, action: Action) -> int:
        """Return how many pairs met with an action."""
        return sum(f.count for (_, done), f in self.found.items() if done == action)

    def merge(self, other: "Findings") -> None:
        """Take over what was found further on."""
        for key, theirs in other.found.items():
            ours = self.found.setdefault(key, Finding())
            ours.count += theirs.count
            ours.lines += theirs.lines[: LISTED - len(ours.lines)]
            ours.examples += theirs.examples[: EXAMPLES - len(ours.examples)]

    def to_json(self) -> list[dict[str, Any]]:
        """Return the findings as the report has them: drops first, then the most frequent."""
        order = ("skip", "drop", "fix", "report")
        return [
            {"name": name, "action": action, "count": f.count, "lines": f.lines,
             "examples": f.examples}
            for (name, action), f in sorted(
                self.found.items(), key=lambda i: (order.index(i[0][1]), -i[1].count, i[0][0])
            )
        ]  # fmt: skip

    @classmethod
    def from_json(cls, rows: Iterable[dict[str, Any]]) -> "Findings":
        """Read what `to_json` wrote."""
        return cls(
            {
                (row["name"], row["action"]): Finding(row["count"], row["lines"], row["examples"])
                for row in rows
            }
        )

    def summary(self) -> list[str]:
        """Return one sentence for each finding, with the first line numbers."""
        return [sentence(row) for row in self.to_json()]


_DONE = {
    "drop": "left out", "skip": "skipped", "fix": "repaired", "report": "kept, but suspicious",
}  # fmt: skip


def sentence(row: dict[str, Any]) -> str:
    """Say what a check found."""
    count, lines = row["count"], row["lines"]
    singular, plural = ("entry", "entries") if row["action"] == "skip" else ("pair", "pairs")
    said = f"{count:,} {singular if count == 1 else plural} {_DONE[row['action']]}: "
    said += row["name"].replace("_", " ")
    if lines:
        more = ", ..." if count > len(lines[:5]) else ""
        said += f" ({'line' if count == 1 else 'lines'} {', '.join(lines[:5])}{more})"
    return said


class Cleaner:
    """Cleans pairs one at a time.

    Args:
        cleaning: the [cleaning] table.
        normalization: the Unicode form.
        languages: of source and target, if known.
        symbols: reserved pieces such as `<2de>`, which are no mark-up.
        acts: whether pairs are dropped and repaired as the table says (training pairs); where not
            (validation and test pairs), what the table names is only counted.

    Raises:
        TransduceError: if a check needs a library that is not installed, or a language.
    """

    def __init__(
        self,
        cleaning: CleaningConfig,
        normalization: str,
        languages: tuple[str, str] | None = None,
        symbols: Iterable[str] = (),
        acts: bool = True,
    ) -> None:
        self.cleaning = cleaning
        self.normalization = normalization
        self.symbols = set(symbols)
        self.acts = acts
        self.checks: list[tuple[str, Action, Callable[[str, str], bool]]] = []
        candidates: list[tuple[str, str, Callable[[str, str], bool]]] = [
            ("ratio", cleaning.ratio, self._ratio),
            ("symbols", cleaning.symbols, self._symbols),
            ("identical", cleaning.identical, _identical),
        ]
        if languages:
            candidates.append(("script", cleaning.script, _ScriptCheck(languages)))
            if cleaning.language != "off":
                candidates.append(("language", cleaning.language, _LanguageCheck(languages)))
        for name, action, check in candidates:
            if action in ("report", "drop"):
                self.checks.append((name, "drop" if action == "drop" and acts else "report", check))

    def clean(self, entry: Pair | Skipped, file: str, findings: Findings) -> Pair | None:
        """Return the pair, repaired and normalised; None if it is left out.

        What is found is added to `findings`, under the pair as it stood in the file.
        """
        if isinstance(entry, Skipped):
            findings.add(entry.reason, "skip", file, entry)
            return None
        src, tgt, line = entry
        longest = self.cleaning.max_characters
        if max(len(src), len(tgt)) > 4 * longest:  # before anything is computed on it
            findings.add(self._too_long, "drop", file, entry)
            return None
        repairs: dict[str, Action] = {}
        src, tgt = self._repair(src, repairs), self._repair(tgt, repairs)
        if repairs:
            for name, action in repairs.items():
                findings.add(name, action, file, entry)
                if action == "drop":
                    return None
        if not src:
            findings.add("empty source", "drop", file, entry)
            return None
        if not tgt:
            findings.add("empty target", "drop", file, entry)
            return None
        if max(len(src), len(tgt)) > longest:
            findings.add(self._too_long, "drop", file, entry)
            return None
        for name, action, check in self.checks:
            if check(src, tgt):
                findings.add(name, action, file, entry)
                if action == "drop":
                    return None
        return Pair(src, tgt, line)

    @property
    def _too_long(self) -> str:
        return f"longer than {self.cleaning.max_characters:,} characters"

    def _repair(self, text: str, done: dict[str, Action]) -> str:
        """Return the text in its final form; note in `done` what was found on the way."""
        # Most text is ordinary, and that is quickly seen.
        if not (text.isascii() and text.isprintable()) or "&" in text or "<" in text:
            text = self._repair_unusual(text, done)
        clean = normalize(text, self.normalization)
        stripped = clean.strip()
        if len(stripped) != len(clean) and stripped:
            done["spaces at the ends"] = "fix"
        return stripped

    def _repair_unusual(self, text: str, done: dict[str, Action]) -> str:
        flat = one_line(text)
        if flat != text:
            done["line breaks or tabs inside"] = "fix"
        if _DAMAGE.search(flat):
            flat = self._found("encoding", _damaged, flat, _mended, done)
        if "&" in flat:
            flat = self._found("entities", _has_entity, flat, _without_entities, done)
        if "<" in flat:
            flat = self._found("markup", self._markup, flat, self._without_markup, done)
        if not flat.isprintable() and _CONTROL.search(flat):
            done["control characters"] = "fix"
        return flat

    def _found(
        self,
        name: Literal["encoding", "entities", "markup"],
        there: Callable[[str], bool],
        text: str,
        fix: Callable[[str], str],
        done: dict[str, Action],
    ) -> str:
        action = getattr(self.cleaning, name)
        if action == "off" or not there(text):
            return text
        if action == "report" or not self.acts:
            done.setdefault(name, "report")
        elif action == "drop":
            done[name] = "drop"
        else:
            fixed = one_line(fix(text))
            done[name] = "fix" if fixed != text else done.get(name, "report")
            return fixed
        return text

    def _markup(self, text: str) -> bool:
        return any(tag[0] not in self.symbols for tag in _TAG.finditer(text))

    def _without_markup(self, text: str) -> str:
        def instead(tag: re.Match[str]) -> str:
            if tag[0] in self.symbols:
                return tag[0]
            return " " if tag[1].lower() in _BREAKING else ""

        return re.sub(" {2,}", " ", _TAG.sub(instead, text))

    def _ratio(self, src: str, tgt: str) -> bool:
        # Ten more on both sides: what is short varies by more.
        a, b = weighted_length(src) + 10, weighted_length(tgt) + 10
        return max(a, b) > self.cleaning.max_ratio * min(a, b)

    def _symbols(self, src: str, tgt: str) -> bool:
        least = self.cleaning.min_letters
        return (letters(src) < least) != (letters(tgt) < least)


_ENTITY = re.compile(r"&(?:#\d{1,7}|#[xX][0-9a-fA-F]{1,6}|[a-zA-Z][a-zA-Z0-9]{1,31});")
# A name, and attributes only with a value: `if x<y and y>z` has no tag, nor has `<John Smith>`.
_TAG = re.compile(r"</?([a-zA-Z][a-zA-Z0-9:-]*)(?:\s[^<>=]{0,100}=[^<>]{0,1000})?\s{0,10}/?>")
_BREAKING = {"br", "p", "div", "li", "td", "th", "tr", "hr", "h1", "h2", "h3", "h4", "h5", "h6"}
_CONTROL = re.compile("[\x00-\x08\x0e-\x1b\x1f\x7f-\x84\x86-\x9f\ufeff]")
# Worth a closer look by `_damaged`: the replacement character, control characters that are none in
# Windows-1252, and whole characters of UTF-8 as they look when they are read as Latin-1 or
# Windows-1252, or two of them as Windows-1251. Most such text is well: German closes with ß“.
_LATIN = (
    "[\u0080-\u00bf\u0152\u0153\u0160\u0161\u0178\u017d\u017e\u0192\u02c6\u02dc\u2013\u2014"
    "\u2018-\u201a\u201c-\u201e\u2020-\u2022\u2026\u2030\u2039\u203a\u20ac\u2122]"
)
_CYRILLIC = (
    "[\u0401-\u040f\u0451-\u045f\u0490\u0491\u0080-\u00bf\u2013-\u2022\u2026\u2030\u2039\u203a\u20ac"
    "\u2116\u2122]"
)
_DAMAGE = re.compile(
    rf"\ufffd|[\x80-\x84\x86-\x9f]|[\u00c2-\u00df]{_LATIN}|\u00c3 |\u00e2\u20ac"
    rf"|[\u00e0-\u00ef]{_LATIN}{{2}}|[\u00f0-\u00f4]{_LATIN}{{3}}"
    rf"|(?:[\u0420\u0421]{_CYRILLIC}){{2}}"
)
_WIDE = re.compile("[\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")
_HALF_WIDE = re.compile("[\u3040-\u30ff\uac00-\ud7af]")
_EASTERN = re.compile("[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff]")
_NO_LETTER = regex.compile(r"[\p{N}\p{P}\p{S}]")
_ASCII_LETTERS = b" abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"  # and the space


def _has_entity(text: str) -> bool:
    return any(entity[0][1] == "#" or entity[0][1:] in html5 for entity in _ENTITY.finditer(text))


def _without_entities(text: str) -> str:
    """Write the characters that entities stand for, also those of entities of entities."""
    for _ in range(3):
        text = _ENTITY.sub(_character, text)
    return text


def _character(entity: re.Match[str]) -> str:
    name = entity[0][1:]
    if name[0] != "#":
        # Not html.unescape, which takes &notable; for &not and "able;".
        return html5.get(name, entity[0])
    character = html.unescape(entity[0])
    return entity[0] if character == "\ufffd" else character


def _damaged(text: str) -> bool:
    return "\ufffd" in text or _mended(text) != text


def _mended(text: str) -> str:
    import ftfy  # here, since it takes a while and is rarely needed

    return ftfy.fix_encoding(text)


def weighted_length(text: str) -> int:
    """Return the number of characters, Han counting three, kana and Hangul two."""
    if text.isascii() or not _EASTERN.search(text):
        return len(text)
    return len(text) + 2 * len(_WIDE.findall(text)) + len(_HALF_WIDE.findall(text))


def letters(text: str) -> float:
    """Return the share of characters, spaces apart, that are neither digit nor symbol."""
    visible = len(text) - text.count(" ")
    # Most are ASCII letters, which are soon taken out of the bytes of UTF-8.
    rest = text.encode("utf-8", "surrogatepass").translate(None, _ASCII_LETTERS)
    return 1 - len(_NO_LETTER.findall(rest.decode("utf-8", "surrogatepass"))) / max(1, visible)


def _identical(src: str, tgt: str) -> bool:
    first, other = src[0], tgt[0]
    if first.isascii() and other.isascii() and first.lower() != other.lower():
        return False  # as most are
    return src == tgt or (
        len(src) < 2 * len(tgt) + 9 and comparison_key(src) == comparison_key(tgt)
    )


class _ScriptCheck:
    """Finds sides whose letters are mostly of another script than their language's."""

    def __init__(self, languages: tuple[str, str]) -> None:
        self.sides = [
            (foreign, foreign is not None and not foreign.search("a"))
            for foreign in map(foreign_letters, languages)
        ]

    def __call__(self, src: str, tgt: str) -> bool:
        for text, (foreign, latin) in zip((src, tgt), self.sides, strict=True):
            if foreign is None or (latin and (text.isascii() or not _BEYOND_LATIN.search(text))):
                continue
            # By their weighted length: a long name in another script stands for one or two words.
            found = weighted_length("".join(foreign.findall(text)))
            if found and 2 * found > weighted_length("".join(_LETTER.findall(text))):
                return True
        return False


_LETTER = regex.compile(r"\p{L}")
_BEYOND_LATIN = re.compile("[^\x00-\u024f\u2000-\u206f]")  # before these, all letters are Latin
_SCRIPTS = {"Hans": "Han", "Hant": "Han", "Jpan": "Han Hira Kana", "Kore": "Hang Han"}
_TWO_SCRIPTS = {
    "az": "Latn Cyrl", "bs": "Latn Cyrl", "kk": "Cyrl Latn", "ku": "Latn Arab", "pa": "Guru Arab",
    "sh": "Latn Cyrl", "sr": "Cyrl Latn", "uz": "Latn Cyrl",
}  # fmt: skip
"""Of languages that are written in either, unless the tag says in which."""


@lru_cache
def foreign_letters(language: str) -> Any:
    """Return a pattern for the letters that are not of a language's script; None if unknown."""
    import langcodes

    if not langcodes.tag_is_valid(language):
        return None
    tag = langcodes.Language.get(language)
    script = tag.maximize().script
    if not script:
        return None
    scripts = _SCRIPTS.get(script, script)
    if not tag.script:
        scripts = _TWO_SCRIPTS.get(str(tag.language), scripts)
    own = "".join(rf"\p{{Script={name}}}" for name in [*scripts.split(), "Common"])
    try:
        return regex.compile(rf"(?V1)[\p{{L}}--[{own}\p{{Lm}}]]")
    except regex.error:  # a script that the library does not know
        return None


def _language_code(language: str) -> str:
    """Return `de` of `de-AT` or `deu`; an unknown tag as it is."""
    import langcodes

    if not langcodes.tag_is_valid(language):
        return language
    return str(langcodes.Language.get(language).language)


class _LanguageCheck:
    """Finds sides that are surely in another language than they should be."""

    SURE = 0.9
    SHORTEST = 20  # weighted characters; a guess about less is worth little

    def __init__(self, languages: tuple[str, str]) -> None:
        try:
            from py3langid.langid import MODEL_FILE, LanguageIdentifier
        except ImportError:
            raise TransduceError(
                "cleaning.language needs a language identifier: pip install 'transduce[language]'"
            ) from None
        self.identifier = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
        self.expected = [_language_code(language) for language in languages]
        known = set(self.identifier.nb_classes)
        for language in self.expected:
            if language not in known:
                raise TransduceError(
                    f"cleaning.language: {language!r} is not among the languages that can be "
                    f"identified ({', '.join(sorted(known))})"
                )

    def __call__(self, src: str, tgt: str) -> bool:
        for text, expected in zip((src, tgt), self.expected, strict=True):
            if weighted_length(text) >= self.SHORTEST:
                found, sure = self.identifier.classify(text)
                if found != expected and sure > self.SURE:
                    return True
        return False


def cleaned(
    entries: Iterable[Pair | Skipped], cleaner: Cleaner, file: str, findings: Findings
) -> Iterator[Pair]:
    """Yield the pairs that are left, normalised."""
    for entry in entries:
        pair = cleaner.clean(entry, file, findings)
        if pair is not None:
            yield pair
