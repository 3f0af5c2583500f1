"""Translators' formats: what is a pair in them, what is not, and what is refused."""

import io
import struct
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polib
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from transduce.data import exchange
from transduce.data.exchange import read_mo, read_po, read_tmx, read_xliff
from transduce.data.text import Pair, Skipped, one_line
from transduce.errors import TransduceError, UsageError

Write = Callable[[str, str | bytes], Path]
Found = list[Pair | Skipped]

EN_DE = ["en", "de"]


def opened(text: str | bytes) -> io.BytesIO:
    return io.BytesIO(text if isinstance(text, bytes) else text.encode())


def tmx(text: str | bytes, languages: list[str] | None = EN_DE) -> Found:
    return list(read_tmx(opened(text), "a.tmx", languages))


def xliff(text: str | bytes, languages: list[str] | None = EN_DE) -> Found:
    return list(read_xliff(opened(text), "a.xlf", languages))


def sides(found: Found) -> list[tuple[str, str]]:
    return [(one_line(x.src), one_line(x.tgt)) for x in found if isinstance(x, Pair)]


def reasons(found: Found) -> list[str]:
    return [x.reason for x in found if isinstance(x, Skipped)]


def unit(**texts: str) -> str:
    """Write a TMX unit; `en_US` stands for en-US."""
    return (
        "<tu>"
        + "".join(
            f'<tuv xml:lang="{language.replace("_", "-")}"><seg>{text}</seg></tuv>'
            for language, text in texts.items()
        )
        + "</tu>\n"
    )


def tmx_file(*units: str, srclang: str = "en", before: str = "") -> str:
    return (
        f'<?xml version="1.0"?>{before}<tmx version="1.4"><header srclang="{srclang}"/>\n<body>\n'
        + "".join(units)
        + "</body></tmx>\n"
    )


def xliff_1(*units: str, languages: str = 'source-language="en" target-language="de"') -> str:
    return (
        '<xliff version="1.2" xmlns="urn:oasis:names:tc:xliff:document:1.2">\n'
        f'<file original="x" datatype="plaintext" {languages}><body>\n'
        + "".join(f"{one}\n" for one in units)
        + "</body></file></xliff>"
    )


def xliff_2(*units: str, languages: str = 'srcLang="en" trgLang="de"') -> str:
    return (
        f'<x:xliff version="2.0" xmlns:x="urn:oasis:names:tc:xliff:document:2.0" {languages}>\n'
        '<x:file id="f1">\n' + "".join(f"{one}\n" for one in units) + "</x:file></x:xliff>"
    )


# --- the same pairs, whichever program wrote them -------------------------------------------------

PAIRS = [
    ("Open", "Öffnen"),
    ("Files & <folders>", 'Dateien & "Ordner"'),
    ("one two", "eins zwei"),
    ("\\n is a line end", "\\n ist ein Zeilenende"),
]


def _toolkit_tmx() -> bytes:
    from translate.storage.tmx import tmxfile

    store: Any = tmxfile(sourcelanguage="en", targetlanguage="de")
    for source, target in PAIRS:
        store.addtranslation(source, "en", target, "de")
    return bytes(store)


def _toolkit_xliff(version: int) -> bytes:
    from translate.storage.xliff import xlifffile
    from translate.storage.xliff2 import Xliff2File

    store: Any = (xlifffile if version == 1 else Xliff2File)()
    store.setsourcelanguage("en")
    store.settargetlanguage("de")
    for source, target in PAIRS:
        store.addsourceunit(source).settarget(target)
    return bytes(store)


def _toolkit_po() -> bytes:
    from translate.storage.pypo import pofile

    store: Any = pofile()
    store.updateheader(add=True, Content_Type="text/plain; charset=UTF-8")
    for source, target in PAIRS:
        store.addsourceunit(source).target = target
    return bytes(store)


def _toolkit_mo() -> bytes:
    from translate.storage.mo import mofile

    store: Any = mofile()
    for source, target in [("", "Content-Type: text/plain; charset=UTF-8\n"), *PAIRS]:
        store.addsourceunit(source).target = target
    return bytes(store)


def test_files_of_the_translate_toolkit(write: Write) -> None:
    assert sides(tmx(_toolkit_tmx())) == PAIRS
    assert sides(xliff(_toolkit_xliff(1))) == PAIRS
    assert sides(xliff(_toolkit_xliff(2))) == PAIRS
    assert sides(list(read_po(write("a.po", _toolkit_po()), "a.po"))) == PAIRS
    assert sorted(sides(list(read_mo(write("a.mo", _toolkit_mo()), "a.mo")))) == sorted(PAIRS)


# --- TMX ------------------------------------------------------------------------------------------


def test_a_segment_is_one_line() -> None:
    """A11."""
    assert sides(tmx(tmx_file(unit(en="a&#10;b&#x2028;c", de="d")))) == [("a b c", "d")]


def test_lines_are_those_of_the_units() -> None:
    text = tmx_file(unit(en="a", de="b"), "\n\n<tu\n>\n</tu>", unit(en="c", de="d"))
    assert tmx(text) == [Pair("a", "b", 3), Skipped("no en text", 6), Pair("c", "d", 8)]


def test_lines_across_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "_CHUNK", 7)
    text = tmx_file(*(unit(en=f"a{i}", de="ü") for i in range(50)))
    assert tmx(text) == [Pair(f"a{i}", "ü", 3 + i) for i in range(50)]


@pytest.mark.parametrize(
    ("languages", "texts", "found"),
    [
        (["en", "de"], {"en_US": "a", "de": "b"}, ("a", "b")),
        (["EN_us", "de"], {"en_US": "a", "DE_at": "b"}, ("a", "b")),
        (["en", "de"], {"en_US": "a", "en": "A", "en_GB": "x", "de": "b"}, ("A", "b")),
        (["en-US", "de"], {"en": "a", "de": "b"}, ("a", "b")),
        (["en-US", "de"], {"en": "a", "en_US_posix": "A", "de": "b"}, ("A", "b")),
        (["de", "en"], {"en": "a", "de": "b"}, ("b", "a")),
        (["pt", "pt-BR"], {"pt": "a", "pt_BR": "b"}, ("a", "b")),
        (["pt-BR", "pt"], {"pt": "a", "pt_BR": "b"}, ("b", "a")),
        (["en", "de"], {"fr": "c", "de": "b", "en": "", "it": "x"}, ("", "b")),
    ],
)
def test_languages_that_are_asked_for(
    languages: list[str], texts: dict[str, str], found: tuple[str, str]
) -> None:
    assert sides(tmx(tmx_file(unit(**texts)), languages)) == [found]


def test_a_language_is_no_beginning_of_another() -> None:
    text = tmx_file(unit(eng="a", de="b"), unit(en_GB="c", de="d"), unit(en_US="e", de="f"))
    found = tmx(text, ["en-US", "de"])
    assert sides(found) == [("e", "f")]
    assert reasons(found) == ["no en-US text"] * 2


def test_units_that_lack_a_language() -> None:
    found = tmx(tmx_file(unit(en="a"), unit(de="b"), unit(en="c", de="d")))
    assert reasons(found) == ["no de text", "no en text"]
    assert sides(found) == [("c", "d")]


def test_the_old_attribute_for_the_language() -> None:
    text = tmx_file(unit(EN="a", DE="b")).replace("xml:lang", "lang")
    assert sides(tmx(text, None)) == [("a", "b")]


@pytest.mark.parametrize(
    ("srclang", "found"),
    [("en", ("b", "a")), ("EN-GB", ("b", "a")), ("*all*", ("a", "b")), ("", ("a", "b"))],
)
def test_languages_that_are_not_asked_for(srclang: str, found: tuple[str, str]) -> None:
    assert sides(tmx(tmx_file(unit(de="a", en_GB="b"), srclang=srclang), None)) == [found]


def test_three_languages_need_a_choice() -> None:
    text = tmx_file(unit(en="a", de="b"), unit(en="a", fr="c"))
    with pytest.raises(
        UsageError, match=r"a\.tmx, line 4: .*\(en, de, fr\).* data\.languages"
    ) as e:
        tmx(text, None)
    assert 'languages = ["en", "de"]' in str(e.value)
    assert sides(tmx(text)) == [("a", "b")]


def test_languages_that_are_nowhere() -> None:
    text = tmx_file(unit(en="a", de="b"))
    with pytest.raises(TransduceError, match=r"a\.tmx: no text in fr; the file has en, de: choose"):
        tmx(text, ["en", "fr"])
    with pytest.raises(TransduceError, match="no text in a second language; the file has en:"):
        tmx(tmx_file(unit(en="a")), None)
    with pytest.raises(TransduceError, match="no text in sv; the file has de, en"):
        tmx(tmx_file(unit(de="a", en="b"), srclang="sv"), None)
    assert tmx(tmx_file()) == tmx(tmx_file(), None) == []


def test_code_within_a_segment_is_no_text() -> None:
    text = unit(
        en='<ph x="1">%s<sub>s</sub></ph>a <bpt i="1">&lt;b></bpt>b<ept i="1">&lt;/b></ept>'
        '<it pos="begin">&lt;i></it> <hi>c <hi>d</hi><ut>u</ut></hi>',
        de="x<hi/>",
    )
    assert sides(tmx(tmx_file(text))) == [("a b c d", "x")]
    notes = "<prop>p</prop><note>n</note>"
    text = unit(en="a", de="b").replace("<seg>", f"{notes}<seg>").replace("<tu>", f"<tu>{notes}")
    assert sides(tmx(tmx_file(f"{notes}{text}"))) == [("a", "b")]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "iso-8859-1", "cp1252"])
def test_encodings(encoding: str) -> None:
    declared = encoding.removesuffix("-sig")
    text = tmx_file(unit(en="café", de="Öl")).replace('"1.0"', f'"1.0" encoding="{declared}"')
    assert sides(tmx(text.encode(encoding))) == [("café", "Öl")]


def test_encodings_that_are_none() -> None:
    text = tmx_file(unit(en="a", de="b"))
    for encoding in ["nonsense", "shift_jis", "zlib", "undefined"]:
        declared = text.replace('"1.0"', f'"1.0" encoding="{encoding}"')
        with pytest.raises(TransduceError, match=r"a\.tmx, line 1: .*(decoded|encoding)"):
            tmx(declared)


# --- hostile XML ----------------------------------------------------------------------------------


def test_a_dtd_is_accepted_but_not_loaded(tmp_path: Path) -> None:
    """A11: the DTD would break the file if it were read."""
    dtd = tmp_path / "tmx14.dtd"
    dtd.write_text("<!ENTITY broken", encoding="utf-8")
    for location in ["tmx14.dtd", dtd.as_uri(), str(dtd), "http://localhost:1/tmx14.dtd"]:
        text = tmx_file(unit(en="a", de="b"), before=f'<!DOCTYPE tmx SYSTEM "{location}">')
        assert sides(tmx(text)) == [("a", "b")]


def test_entities_are_refused(tmp_path: Path) -> None:
    """A11: a local file, a document elsewhere, and endless text."""
    secret = tmp_path / "secret.txt"
    secret.write_text("swordfish", encoding="utf-8")
    for declaration in [
        f'<!ENTITY e SYSTEM "{secret.as_uri()}">',
        f'<!ENTITY % e SYSTEM "{secret.as_uri()}"> %e;',
        f'<!ENTITY e SYSTEM "{secret.as_uri()}" NDATA n>',
        '<!ENTITY e "harmless">',
        '<!ENTITY a "lol">' + '<!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;">' * 9,
    ]:
        for root, read in [("tmx", tmx), ("xliff", xliff)]:
            text = f"<!DOCTYPE {root} [\n{declaration}\n]><{root}>&e;</{root}>"
            with pytest.raises(
                TransduceError, match="line 2: declares entities, which is refused"
            ) as e:
                read(text)
            assert "swordfish" not in str(e.value)


def test_entities_that_nobody_explains() -> None:
    unknown = unit(en="a&nbsp;b", de="c")
    with pytest.raises(TransduceError, match=r"line 3: broken XML \(undefined entity\)"):
        tmx(tmx_file(unknown))
    with pytest.raises(TransduceError, match="line 3: uses the entity 'nbsp'"):
        tmx(tmx_file(unknown, before='<!DOCTYPE tmx SYSTEM "tmx14.dtd">'))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: broken XML \\(no element found"),
        ("hello", "line 1: broken XML"),
        ("<tmx>\n<body>\n", "line 3: broken XML \\(no element found"),
        ("<tmx>\n<body></tmx>", "line 2: broken XML \\(mismatched tag"),
        ("\n<html/>", "line 2: the root element is <html>, not <tmx>: this is no TMX file"),
        ("<tmx>\ud800</tmx>".encode("utf-8", "surrogatepass"), "line 1: broken XML"),
        ("<tmx>" + "<a>" * 100, "line 1: more than 100 elements within each other"),
    ],
)
def test_broken_files_are_refused(text: str | bytes, message: str) -> None:
    with pytest.raises(TransduceError, match=rf"a\.tmx, {message}"):
        tmx(text)


def test_only_xliff_is_xliff() -> None:
    with pytest.raises(TransduceError, match="<tmx>, not <xliff>: this is no XLIFF file"):
        xliff(tmx_file())


def test_a_hundred_elements_within_each_other_are_fine() -> None:
    deep = "<hi>" * 95 + "a" + "</hi>" * 95  # and tmx, body, tu, tuv, seg
    assert sides(tmx(tmx_file(unit(en=deep, de="b")))) == [("a", "b")]


def test_a_segment_is_cut_where_it_is_too_long() -> None:
    (pair,) = tmx(tmx_file(unit(en=("a" * 99 + "\n") * 11_000, de="b" * 1_000_000)))
    assert isinstance(pair, Pair)
    assert (len(pair.src), len(pair.tgt)) == (1_000_001, 1_000_000)


def test_a_thousand_languages_in_a_unit() -> None:
    many = {f"x_{number}": "a" for number in range(998)}
    assert sides(tmx(tmx_file(unit(**many, en="a", de="b")))) == [("a", "b")]
    with pytest.raises(TransduceError, match="line 3: more than 1000 languages in one unit"):
        tmx(tmx_file(unit(**many, en="a", de="b", fr="c")))


@pytest.mark.parametrize(
    "opening", [b'<tmx a="', b"<tmx ", b"<tmx><!--", b"<tmx><", b"<!DOCTYPE x ["]
)
def test_a_gigantic_tag(opening: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "MAX_SILENCE", 2**20)
    with pytest.raises(TransduceError, match="a tag or comment of more than 1048576 bytes"):
        list(read_tmx(_Endless(opening, lambda: b"a" * 2**16), "a.tmx", None))


class _Endless(io.BytesIO):
    """A file that is made as it is read, up to a size."""

    def __init__(self, opening: bytes, more: Callable[[], bytes], size: int = 2**25) -> None:
        super().__init__()
        self.parts = self._parts(opening, more, size)
        self.rest = b""

    def _parts(self, opening: bytes, more: Callable[[], bytes], size: int) -> Iterator[bytes]:
        yield opening
        while size > 0:
            part = more()
            size -= len(part)
            yield part

    def read(self, size: int | None = -1) -> bytes:
        assert size is not None
        assert size > 0, "the whole file at once"
        while len(self.rest) < size and (part := next(self.parts, b"")):
            self.rest += part
        answer, self.rest = self.rest[:size], self.rest[size:]
        return answer


def test_memory_does_not_grow_with_the_file() -> None:
    size = 32 * 2**20
    units = unit(en="word " * 2000, de="Wort " * 2000, fr="mot " * 4000).encode()
    file = _Endless(b"<tmx><body>", lambda: units, size)
    count = 0
    tracemalloc.start()
    try:
        with pytest.raises(TransduceError, match="no element found"):  # the file just ends
            for found in read_tmx(file, "a.tmx", EN_DE):
                assert isinstance(found, Pair)
                count += 1
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert count > 800
    assert peak < 2 * 2**20


# --- XLIFF ----------------------------------------------------------------------------------------


def test_xliff_1() -> None:
    text = xliff_1(
        '<trans-unit id="1"><source>a</source><seg-source><mrk mtype="seg">S</mrk></seg-source>'
        "<target>b</target><note>n</note><alt-trans><source>A</source><target>B</target></alt-trans>"
        "</trans-unit>",
        '<group><trans-unit id="2" translate="no"><source>x</source><target>y</target></trans-unit>'
        "</group>",
        '<trans-unit id="3"><source>x</source></trans-unit>',
        '<trans-unit id="4"><source>x</source><target> \n </target></trans-unit>',
        '<trans-unit id="5"><source>x</source><target state="new">y</target></trans-unit>',
        '<trans-unit id="6"><source>x</source><target state="needs-l10n">y</target></trans-unit>',
        '<trans-unit id="7"><source>c</source><target state="final">d</target></trans-unit>',
        '<group translate="no"><trans-unit id="8"><source>x</source><target>y</target></trans-unit>'
        '<trans-unit id="9" translate="yes"><source>e</source><target>f</target></trans-unit>'
        "</group>",
        '<trans-unit id="10"><target>h</target><source>g</source></trans-unit>',
    )
    assert xliff(text, None) == [
        Pair("a", "b", 3),
        Skipped("not to be translated", 4),
        Skipped("empty translation", 5),
        Skipped("empty translation", 6),
        Skipped("not finished (state new)", 8),
        Skipped("not finished (state needs-l10n)", 9),
        Pair("c", "d", 10),
        Skipped("not to be translated", 11),
        Pair("e", "f", 11),
        Pair("g", "h", 12),
    ]


def test_xliff_2() -> None:
    segment = "<x:segment{}><x:source>{}</x:source><x:target>{}</x:target></x:segment>"
    text = xliff_2(
        '<x:unit id="1"><x:originalData><x:data id="d">D</x:data></x:originalData>'
        + segment.format("", "a", "b")
        + "<x:ignorable><x:source>I</x:source><x:target>J</x:target></x:ignorable>\n"
        + segment.format(' state="final"', "c", "d")
        + '<m:matches xmlns:m="urn:m"><m:match><x:source>M</x:source><x:target>N</x:target>'
        "</m:match></m:matches></x:unit>",
        '<x:group id="g"><x:unit id="2">' + segment.format(' state="initial"', "x", "y"),
        "<x:segment><x:source>x</x:source></x:segment></x:unit></x:group>",
        '<x:unit id="3" translate="no">' + segment.format("", "x", "y") + "</x:unit>",
    )
    assert xliff(text, None) == [
        Pair("a", "b", 3),
        Pair("c", "d", 4),
        Skipped("not finished (state initial)", 5),
        Skipped("empty translation", 6),
        Skipped("not to be translated", 7),
    ]


def test_code_within_xliff_is_no_text() -> None:
    inline = (
        '<g id="1">a <mrk mtype="term">b</mrk></g><x id="2"/><bx id="3"/><ex id="3"/>'
        '<ph id="4">P<sub>s</sub></ph><bpt id="5">B</bpt><ept id="5">E</ept><it id="6">T</it> c'
    )
    text = xliff_1(f"<trans-unit id='1'><source>{inline}</source><target>d</target></trans-unit>")
    assert sides(xliff(text)) == [("a b c", "d")]
    inline = (
        '<x:pc id="1">a <x:mrk id="2">b</x:mrk></x:pc><x:ph id="3"/><x:sc id="4"/><x:ec/>'
        '<x:sm id="5"/><x:em/><x:cp hex="0007"/> c'
    )
    text = xliff_2(
        f"<x:unit id='1'><x:segment><x:source>{inline}</x:source><x:target>d</x:target>"
        "</x:segment></x:unit>"
    )
    assert sides(xliff(text)) == [("a b c", "d")]


def _one(languages: str) -> str:
    unit = "<trans-unit><source>a</source><target>b</target></trans-unit>"
    return f"\n<file {languages}><body>{unit}</body></file>"


def _several(*languages: str) -> str:
    return f"<xliff version='1.2'>{''.join(_one(one) for one in languages)}</xliff>"


EN_TO_DE = 'source-language="en-US" target-language="de"'
DE_TO_EN = 'source-language="de-AT" target-language="en"'
FR_TO_IT = 'source-language="fr" target-language="it"'


def test_languages_of_xliff() -> None:
    text = _several(EN_TO_DE, DE_TO_EN, FR_TO_IT, 'source-language="en"', 'source-language="de"')
    assert xliff(text) == [
        Pair("a", "b", 2),
        Pair("b", "a", 3),
        Skipped("other languages (fr-it)", 4),
        Pair("a", "b", 5),
        Pair("b", "a", 6),
    ]
    assert sides(xliff(_several(EN_TO_DE, DE_TO_EN), None)) == [("a", "b"), ("b", "a")]
    british = _several('source-language="en-GB" target-language="en"')
    assert sides(xliff(british, ["en", "en-GB"])) == [("b", "a")]
    with pytest.raises(UsageError, match=r"line 3: .*\(en-US-de, fr-it\).* data\.languages"):
        xliff(_several(EN_TO_DE, FR_TO_IT), None)
    with pytest.raises(TransduceError, match="nothing in en and de; the file has fr-it: choose"):
        xliff(_several(FR_TO_IT))


def test_languages_of_xliff_2() -> None:
    segment = "<x:segment><x:source>a</x:source><x:target>b</x:target></x:segment>"
    unit = f'<x:unit id="1">{segment}</x:unit>'
    assert sides(xliff(xliff_2(unit, languages='srcLang="de" trgLang="en-GB"'))) == [("b", "a")]
    assert sides(xliff(xliff_2(unit, languages='srcLang="fr" trgLang="it"'), None)) == [("a", "b")]
    with pytest.raises(TransduceError, match="the file has fr-it"):
        xliff(xliff_2(unit, languages='srcLang="fr" trgLang="it"'))


# --- gettext --------------------------------------------------------------------------------------

CATALOGUE = r"""# A catalogue.
msgid ""
msgstr ""
"Content-Type: text/plain; charset=UTF-8\n"
"Plural-Forms: nplurals=2; plural=(n != 1);\n"

#: menu.c:1
msgid "Open"
msgstr "Öffnen"

#, python-format, fuzzy
msgid "Save %s"
msgstr "Laden %s"
msgid "Close"
msgstr "Schließen"

msgctxt ""
"menu"
msgid "File"
msgstr "Datei"

#, c-format
msgid "%d file"
msgid_plural "%d files"
msgstr[0] "%d Datei"
msgstr[1] "%d Dateien"

msgid "Not done"
msgstr ""

msgid ""
"Line one\n"
"Line two"
msgstr ""
"Zeile eins\n"
"Zeile zwei"

#~ msgid "Old"
#~ msgstr "Alt"
"""
CATALOGUE_PAIRS = [
    ("Open", "Öffnen"),
    ("Close", "Schließen"),
    ("File", "Datei"),
    ("%d file", "%d Datei"),
    ("%d files", "%d Dateien"),
    ("Line one Line two", "Zeile eins Zeile zwei"),
]
HEADER = 'msgid ""\nmsgstr "Content-Type: text/plain; charset={}\\n"\n\n'


def po(write: Write, text: str | bytes) -> Found:
    return list(read_po(write("a.po", text), "a.po"))


def mo(write: Write, data: bytes) -> Found:
    return list(read_mo(write("a.mo", data), "a.mo"))


def compiled(text: str) -> bytes:
    return bytes(polib.pofile(text).to_binary())


def test_what_a_catalogue_holds(write: Write) -> None:
    """A12."""
    found = po(write, CATALOGUE)
    assert sides(found) == CATALOGUE_PAIRS
    assert reasons(found) == ["header", "fuzzy", "empty translation", "obsolete"]
    assert [one.line for one in found] == [2, 8, 11, 14, 17, 22, 22, 28, 31, 38]


def test_what_a_compiled_catalogue_holds(write: Write) -> None:
    found = mo(write, compiled(CATALOGUE))
    assert found[0] == Skipped("header", 1)
    assert [one.line for one in found] == [1, 2, 2, 3, 4, 5, 6]
    assert sorted(sides(found)) == sorted(CATALOGUE_PAIRS)


def test_a_compiled_catalogue_of_the_other_byte_order(write: Write) -> None:
    data = compiled(CATALOGUE)
    count, *tables = struct.unpack_from("<3I", data, 8)
    turned = bytearray(data)
    for place in [*range(0, 28, 4), *(t + 4 * i for t in tables for i in range(2 * count))]:
        turned[place : place + 4] = data[place : place + 4][::-1]
    assert mo(write, bytes(turned)) == mo(write, data)


def test_plural_entries(write: Write) -> None:
    one = 'msgid "f"\nmsgid_plural "fs"\nmsgstr[0] "g"\n'
    three = one + 'msgstr[1] "x"\nmsgstr[2] "h"\n'
    unfinished = one + 'msgstr[1] ""\n'
    for text, found in [(one, [("f", "g"), ("fs", "g")]), (three, [("f", "g"), ("fs", "h")])]:
        assert sides(po(write, text)) == found
        assert sides(mo(write, compiled(text))) == found
    assert po(write, unfinished) == [Skipped("empty translation", 1)]


@pytest.mark.parametrize(
    "text",
    [
        "#A comment without a space\n#:a.c:1\n#.x\n#\n#| msgid \"c\"\n#| \"d\"\n{}",
        "\ufeff{}",
        "{}#~|",
        "{}#:",
        "{}#,",
        "{}#, fuzzy",
        "{}# the end",
        "\n\n  {}",
    ],
)  # fmt: skip
@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_what_stands_around_entries(write: Write, text: str, line_end: str) -> None:
    text = text.format('msgid "a"\nmsgstr "b"\n').replace("\n", line_end)
    (pair,) = po(write, text)
    assert pair == Pair("a", "b", text.partition('msgid "a"')[0].count("\n") + 1)


def test_flags_and_obsolete_entries_however_spaced(write: Write) -> None:
    text = (
        '#,fuzzy\nmsgid"a"\nmsgstr"b"\n#~msgid "c"\n#~msgstr "d"\n#, fuzzy\n#~ msgid "e"\n'
        '#~ msgstr "f"\nmsgid "g"\nmsgstr "h"'
    )
    found = po(write, text)
    assert found == [
        Skipped("fuzzy", 1),
        Skipped("obsolete", 4),
        Skipped("obsolete", 6),
        Pair("g", "h", 9),
    ]


def test_only_a_line_feed_ends_a_line(write: Write) -> None:
    for mark in "\u2028\u2029\x85\x0b\x0c\x1c\r":
        assert sides(po(write, f'msgid "a{mark}b"\nmsgstr "c"\n')) == [("a b", "c")]


def test_escapes(write: Write) -> None:
    (pair,) = po(write, r'msgid "\"a\" \\n\t\n"' + '\nmsgstr "b\\\\"\n')
    assert pair == Pair('"a" \\n\t\n', "b\\", 1)


def test_the_header_is_counted_wherever_and_however(write: Write) -> None:
    assert po(write, 'msgid "a"\nmsgstr "b"\nmsgid ""\nmsgstr "Language: de\\n"\n') == [
        Pair("a", "b", 1),
        Skipped("header", 3),
    ]
    assert po(write, '#, fuzzy\nmsgid ""\nmsgstr ""\n') == [Skipped("header", 1)]
    assert po(write, "") == []


def test_charsets(write: Write) -> None:
    for charset in ["iso-8859-1", "utf-8", "gb18030", "CHARSET"]:
        text = HEADER.format(charset) + 'msgid "é"\nmsgstr "ü"\n'
        encoded = text.encode(charset.replace("CHARSET", "utf-8"))
        assert sides(po(write, encoded)) == [("é", "ü")]
        if charset != "CHARSET":
            catalogue = polib.pofile(text, encoding=charset)
            assert sides(mo(write, bytes(catalogue.to_binary()))) == [("é", "ü")]


@pytest.mark.parametrize(
    "charset",
    ["nonsense", "utf-16", "utf-7", "rot13", "zlib", "punycode", "unicode_escape", "idna",
     "raw_unicode_escape", "undefined", "cp037", "hex"],
)  # fmt: skip
def test_charsets_that_are_none(write: Write, charset: str) -> None:
    text = HEADER.format(charset) + 'msgid "a"\nmsgstr "b"\n'
    data = compiled(HEADER.format("utf-8; and as many more") + 'msgid "a"\nmsgstr "b"\n')
    named = charset.encode().ljust(23, b";")
    with pytest.raises(TransduceError, match=rf"a\.po: the charset '{charset}' is unknown"):
        po(write, text)
    with pytest.raises(TransduceError, match=r"a\.mo: the charset '.*' is unknown"):
        mo(write, data.replace(b"utf-8; and as many more", named))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('msgid "a"\nmsgstr "b\n', "line 2: not a line of a PO file"),
        ('msgid "a"\nmsgstr b\n', "line 2: not a line of a PO file"),
        ('msgid "a" b"\nmsgstr "c"\n', "line 1: not a line of a PO file"),
        ('msgid "a\\"\nmsgstr "c"\n', "line 1: not a line of a PO file"),
        ("<html>\n", "line 1: not a line of a PO file"),
        ('msgid "a"\nmsgid "b"\n', "line 2: this does not follow"),
        ('\nmsgstr "b"\n', "line 2: this does not follow"),
        ('"a"\n', "line 1: this does not follow"),
        (b'msgid "a"\nmsgstr "\xe9"\n', "line 2: not utf-8"),
        ("\0", "line 1: not a line of a PO file"),
    ],
)
def test_broken_catalogues(write: Write, text: str | bytes, message: str) -> None:
    with pytest.raises(TransduceError, match=rf"a\.po, {message}"):
        po(write, text)


def test_a_text_that_goes_on_and_on_is_refused(write: Write) -> None:
    lines = ('"' + "a" * 997 + '"\n\n') * 1002
    with pytest.raises(TransduceError, match=r"a\.po, line 2004: a text of more than 1000000"):
        po(write, f'msgid ""\n{lines}msgstr "b"\n')
    many = ('msgid "a"\nmsgstr ""\n"' + "b" * 997 + '"\n') * 1001
    assert len(po(write, many)) == 1001


def test_a_catalogue_never_stands_for_another_file(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = write('msgid "a"', 'msgid "secret"\nmsgstr "secret"\n')
    monkeypatch.chdir(other.parent)
    assert po(write, 'msgid "a"') == [Skipped("empty translation", 1)]
    with pytest.raises(TransduceError, match="not a line of a PO file"):
        po(write, str(other.absolute()))


def test_broken_compiled_catalogues(write: Write) -> None:
    data = compiled(CATALOGUE)
    with pytest.raises(TransduceError, match=r"a\.mo: not a compiled gettext catalogue"):
        mo(write, b"GIF89a" + data)
    with pytest.raises(TransduceError, match=r"a\.mo: not a compiled gettext catalogue"):
        mo(write, b"")
    for length in range(4, len(data) - 1):
        with pytest.raises(TransduceError, match=r"a\.mo: the catalogue is damaged or cut short"):
            mo(write, data[:length])
    with pytest.raises(TransduceError, match="unknown version"):
        mo(write, data[:6] + b"\x02" + data[7:])
    with pytest.raises(TransduceError, match=r"a\.mo, entry \d+: not UTF-8"):
        mo(write, data.replace("ß".encode(), b"\xff\xff"))


def test_a_small_compiled_catalogue_is_no_endless_text(write: Write) -> None:
    count = 100_000
    table = struct.pack("<2I", 8 * count, 28) * count
    header = struct.pack("<7I", 0x950412DE, 0, count, 28, 28, 0, 0)
    with pytest.raises(TransduceError, match="damaged"):
        mo(write, header + table)


def test_catalogues_that_cannot_be_read(tmp_path: Path) -> None:
    for read in (read_po, read_mo):
        with pytest.raises(TransduceError, match=r"cannot read nowhere: No such file"):
            list(read(tmp_path / "nowhere", "nowhere"))
        with pytest.raises(TransduceError, match="directory"):
            list(read(tmp_path, "here"))


# --- anything at all ------------------------------------------------------------------------------

VALID = {
    "tmx": tmx_file(
        unit(en="a <hi>b</hi>", de_AT="ü&#10;"),
        unit(en="c", fr="d"),
        before='<!DOCTYPE tmx SYSTEM "tmx14.dtd">',
    ).encode(),
    "utf-16": tmx_file(unit(en="a", de="ü")).encode("utf-16"),
    "xliff 1": xliff_1(
        "<trans-unit id='1'><source>a<g>b</g></source><target state='new'>ü</target></trans-unit>",
        "<trans-unit id='2' translate='yes'><source>a</source><target>b</target></trans-unit>",
    ).encode(),
    "xliff 2": xliff_2(
        "<x:unit id='1'><x:segment state='final'><x:source>a</x:source><x:target>ü</x:target>"
        "</x:segment></x:unit>"
    ).encode(),
    "po": CATALOGUE.encode(),
    "mo": compiled(CATALOGUE),
}


@pytest.mark.parametrize("kind", VALID)
@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_damaged_files(kind: str, write: Write, data: st.DataObject) -> None:
    damaged = bytearray(VALID[kind])
    place = st.integers(0, len(damaged) - 1)
    for where, what in data.draw(st.lists(st.tuples(place, st.integers(0, 255)), max_size=4)):
        damaged[where] = what
    content = bytes(damaged)[: data.draw(st.integers(0, len(damaged)))]
    languages = data.draw(st.sampled_from([EN_DE, ["de", "en-US"], None]))
    try:
        if kind == "po":
            po(write, content)
        elif kind == "mo":
            mo(write, content)
        elif "xliff" in kind:
            xliff(content, languages)
        else:
            tmx(content, languages)
    except TransduceError as error:
        assert str(error).partition(",")[0].partition(":")[0] in {"a.po", "a.mo", "a.xlf", "a.tmx"}
