"""Every check with what it must find and what it must leave alone; and how findings are told."""

import json
import sys
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transduce.config import CleaningConfig
from transduce.data.cleaning import (
    CUT,
    EXAMPLES,
    LISTED,
    Cleaner,
    Findings,
    cleaned,
    foreign_letters,
    letters,
    sentence,
    weighted_length,
)
from transduce.data.text import Pair, Skipped, normalize
from transduce.errors import TransduceError

Found = dict[str, tuple[str, int]]
REST: dict[str, Any] = {"ratio": "off", "symbols": "off", "identical": "off", "script": "off"}


def clean(
    *texts: tuple[str, str],
    languages: tuple[str, str] | None = None,
    form: str = "NFC",
    reserved: tuple[str, ...] = (),
    acts: bool = True,
    **cleaning: Any,
) -> tuple[list[tuple[str, str]], Found]:
    """Clean some pairs; also return the action and the count of each finding."""
    cleaner = Cleaner(CleaningConfig(**cleaning), form, languages, reserved, acts)
    findings = Findings()
    pairs = [Pair(src, tgt, number) for number, (src, tgt) in enumerate(texts, start=1)]
    left = [(pair.src, pair.tgt) for pair in cleaned(pairs, cleaner, "", findings)]
    return left, {
        name: (action, finding.count) for (name, action), finding in findings.found.items()
    }


def flagged(check: str, src: str, tgt: str = "x", /, **options: Any) -> bool:
    """Say whether one check reports a pair."""
    chosen: dict[str, Any] = {**REST, check: "report"}
    _, found = clean((src, tgt), **chosen, **options)
    assert set(found) <= {check, "control characters", "spaces at the ends"}
    return check in found


# --- pairs that are always dropped, and repairs that are always made -----------------------------


def test_pairs_are_dropped_as_pairs() -> None:
    """A04, A26."""
    texts = [("a", "A"), ("", "B"), ("c", "C"), ("  ", "D"), ("e", "\u3000\ufeff"), ("f", "\0")]
    left, found = clean(*texts)
    assert left == [("a", "A"), ("c", "C")]
    assert found["empty source"] == ("drop", 2) and found["empty target"] == ("drop", 2)
    assert "spaces at the ends" not in found


def test_marks_and_line_ends() -> None:
    """A03: no byte-order mark and no control character is left, and each is counted."""
    left, found = clean(("\ufeffhello world\r", "ab\x00cd"), ("a\u200bb", "x\x7fy"))
    assert left == [("hello world", "abcd"), ("a\u200bb", "xy")]
    assert found == {
        "line breaks or tabs inside": ("fix", 1),
        "spaces at the ends": ("fix", 1),
        "control characters": ("fix", 2),
    }


def test_line_breaks_and_spaces() -> None:
    """A11."""
    left, found = clean(("a\nb", "C\t\u2028D"), (" a", "\u00a0C"), ("a  b", "C\u00a0D"))
    assert left == [("a b", "C D"), ("a", "C"), ("a  b", "C D")]
    assert found == {"line breaks or tabs inside": ("fix", 1), "spaces at the ends": ("fix", 1)}


@pytest.mark.parametrize("form", ["NFC", "NFKC", "none"])
@given(
    text=st.text(
        st.characters(exclude_categories=["Cs"]) | st.sampled_from("&<>;#aé\0\n\x85Ãâ€™\ufffd ")
    )
)
def test_what_is_left_has_the_one_form(form: str, text: str) -> None:
    fix: dict[str, Any] = dict.fromkeys(("entities", "markup", "encoding"), "fix")
    for cleaning in (REST, fix):
        left, _ = clean((text, f"x{text}"), form=form, **cleaning)
        for side in (side for pair in left for side in pair):
            assert side == normalize(side, form).strip() != ""


def test_one_enormous_line() -> None:
    """A05: named, in no time."""
    before = time.monotonic()
    left, found = clean(("a", "x"), ("a " * 200_000, "&<" * 200_000), ("b", "B" * 30_000))
    assert time.monotonic() - before < 0.5
    assert left == [("a", "x")] and found == {"longer than 20,000 characters": ("drop", 2)}
    left, _ = clean(("abcde", "A"), (" abcd ", "A"), max_characters=4, **REST)
    assert left == [("abcd", "A")]


@pytest.mark.parametrize(
    "hostile",
    [
        "<a " * 25_000,
        "<a =" * 19_000,
        "&amp;" * 15_000,
        "<" * 75_000,
        "&#" * 37_000,
        "Ã" * 75_000,
        "<a " + " =" * 37_000,
        "</a>" * 18_000,
        "é”" * 37_000,
        "Â\u00a0" * 35_000,
    ],
)
def test_hostile_lines_take_no_time(hostile: str) -> None:
    before = time.monotonic()
    fix: dict[str, Any] = dict.fromkeys(("entities", "markup", "encoding"), "fix")
    clean((hostile, "x"), **fix)
    assert time.monotonic() - before < 3


# --- off, report, fix, drop ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("check", "src", "fixed"),
    [
        ("entities", "Tom &amp; Jerry", "Tom & Jerry"),
        ("markup", "a <b>bold</b> word", "a bold word"),
        ("encoding", "frÃ¼h", "früh"),
    ],
)
def test_actions_of_repairs(check: str, src: str, fixed: str) -> None:
    texts = [(src, "a translation"), ("plain", "plain one")]

    def done(action: str, acts: bool = True) -> tuple[list[str], Found]:
        options: dict[str, Any] = {check: action}
        left, found = clean(*texts, acts=acts, **options)
        return [one for one, _ in left], found

    assert done("off") == ([src, "plain"], {})
    assert done("report") == ([src, "plain"], {check: ("report", 1)})
    assert done("fix") == ([fixed, "plain"], {check: ("fix", 1)})
    assert done("drop") == (["plain"], {check: ("drop", 1)})
    for action in ("report", "fix", "drop"):  # validation and test pairs
        assert done(action, acts=False) == ([src, "plain"], {check: ("report", 1)})
    assert done("off", acts=False) == ([src, "plain"], {})


@pytest.mark.parametrize(
    ("check", "pair"),
    [
        ("ratio", ("ja", "This is a very long sentence that cannot be a translation of it.")),
        ("symbols", ("12:30, 14:45", "half past twelve")),
        ("identical", ("Not translated", "not  translated")),
        ("script", ("Здравствуйте", "Guten Tag")),
    ],
)
def test_actions_of_checks(check: str, pair: tuple[str, str]) -> None:
    fine = ("Good morning", "Guten Morgen")

    def done(action: str, acts: bool = True) -> tuple[int, Found]:
        options: dict[str, Any] = {**REST, check: action}
        left, found = clean(pair, fine, languages=("en", "de"), acts=acts, **options)
        return len(left), found

    assert done("off") == (2, {})
    assert done("report") == (2, {check: ("report", 1)})
    assert done("drop") == (1, {check: ("drop", 1)})
    assert done("drop", acts=False) == (2, {check: ("report", 1)})


def test_a_pair_may_meet_with_several_findings() -> None:
    left, found = clean(
        (" &lt;i&gt;frÃ¼h&lt;/i&gt;\0", "<b>früh</b>"), entities="fix", markup="fix"
    )
    assert left == [("frÃ¼h", "früh")]
    assert found == {
        "encoding": ("report", 1),
        "entities": ("fix", 1),
        "markup": ("fix", 1),
        "control characters": ("fix", 1),
        "spaces at the ends": ("fix", 1),
    }
    left, found = clean(("&amp;\ufffd", "x"), entities="fix", encoding="drop")
    assert left == [] and found["encoding"] == ("drop", 1)


# --- entities, mark-up, wrong character sets -----------------------------------------------------


def test_entities_in_two_of_ten_lines() -> None:
    """A40."""
    texts = [(f"line {i}", f"Zeile {i}") for i in range(8)]
    texts += [("this &amp; that", "dies und das"), ("it's", "das ist&#39;s")]
    _, found = clean(*texts)
    assert found == {"entities": ("report", 2)}


@pytest.mark.parametrize(
    ("text", "fixed"),
    [
        ("&lt;b&gt;", "<b>"),
        ("&amp;#39;", "'"),
        ("&amp;amp;lt;", "<"),
        ("&#x4F60;&#22909;", "你好"),
        ("a&nbsp;b", "a b"),
        ("a&#10;b&#9;c", "a b c"),
        ("&#150;", "–"),
        ("&eacute;t&eacute;", "été"),
        ("&notin;", "∉"),
        ("R&amp;D &notable;", "R&D &notable;"),
        ("x &#0; y", "x &#0; y"),
        ("x &#xD800; y", "x &#xD800; y"),
    ],
)
def test_entities(text: str, fixed: str) -> None:
    assert flagged("entities", text, markup="off")
    left, found = clean((text, "x"), entities="fix", markup="off", **REST)
    assert left == [(fixed, "x")]
    assert found["entities"][0] == ("fix" if fixed != text else "report")


@pytest.mark.parametrize(
    "text",
    [
        "AT&T; x",
        "&unknown; x",
        "R&D",
        "a & b; c",
        "&notable; &copyright; &amplifier;",
        "?a=1&copy=2",
        "&;",
        "&#;",
        "&#x;",
        "&#12345678;",
        "fish&chips; salt",
    ],
)
def test_what_is_no_entity(text: str) -> None:
    assert not flagged("entities", text)
    assert clean((text, "x"), entities="fix", **REST) == ([(text, "x")], {})


@pytest.mark.parametrize(
    ("text", "fixed"),
    [
        ("<b>bold</b>", "bold"),
        ("one<br>two<br />three<BR/>four", "one two three four"),
        ("<p>one</p><p>two</p>", "one two"),
        ('<a href="x">y</a>', "y"),
        ("<a\nhref = 'x' >y</a >", "y"),
        ("<x:y z='1'>", ""),
        ("<h1>Ü</h1> <BBE> x", "Ü <BBE> x"),
        ("a <i> b", "a b"),
    ],
)
def test_markup(text: str, fixed: str) -> None:
    assert flagged("markup", text.replace("\n", " "), reserved=("<BBE>",))
    left, found = clean((text, "x"), markup="fix", reserved=("<BBE>",), **REST)
    assert left == ([(fixed, "x")] if fixed else [])
    assert found["markup"] == ("fix", 1)


@pytest.mark.parametrize(
    "text",
    [
        "a < b > c",
        "I <3 you",
        "x<y and y>z",
        "<BBE> old  <2de>",
        "<John Smith> hello",
        "1<2>0",
        "<joe@example.org>",
        "<- ->",
        "<>",
        "a <b",
        "< b >",
        "<über>",
        "->>",
        "if (a<b && c>d)",
    ],
)
def test_what_is_no_markup(text: str) -> None:
    assert not flagged("markup", text, reserved=("<BBE>", "<2de>"))
    left, _ = clean((text, "x"), markup="fix", reserved=("<BBE>", "<2de>"), **REST)
    assert left == [(text, "x")]


@pytest.mark.parametrize(
    ("text", "fixed"),
    [
        ("frÃ¼h", "früh"),
        ("Ã©tÃ©", "été"),
        ("itâ€™s", "it’s"),
        ("â€œhiâ€\x9d", "“hi”"),
        ("Å“uvre", "œuvre"),
        ("Ã la carte", "à la carte"),
        ("ÐŸÑ€Ð¸Ð²ÐµÑ‚", "Привет"),
        ("РџСЂРёРІРµС‚", "Привет"),
        ("ä½\xa0å¥½", "你好"),
        ("ðŸ˜€", "😀"),
        ("it\x92s", "it’s"),
        ("broken \ufffd here", "broken \ufffd here"),
    ],
)
def test_wrong_character_sets(text: str, fixed: str) -> None:
    assert flagged("encoding", text)
    left, found = clean((text, "x"), encoding="fix", **REST)
    assert left == [(fixed, "x")]
    assert found["encoding"][0] == ("fix" if fixed != text else "report")


@pytest.mark.parametrize(
    "text",
    [
        "un été”",
        "«\u00a0voilà\u00a0»",
        "l’été\u00a0» dit-il",
        "à\u00a0gauche",
        "É…É”",
        "DÉJÀ\u00a0!",
        "„früh“",
        "»Spaß«",
        "„Spaß“",
        "‚groß‘",
        "Fuß…",
        "groß–klein",
        "STRAẞE",
        "ÄÖÜ“",
        "Öl“",
        "«À»",
        "señor”",
        "¿QUÉ…?",
        "ESPAÑA–",
        "AMANHÃ ",
        "NÃO”",
        "CASA DE MÃE",
        "PÂNĂ…",
        "MÂ…",
        "Дом №5",
        "СССР»",
        "«Рё»",
        "США…",
        "РФ–США",
        "ЁЛКА",
        "Þór“",
        "ŞÎ“",
        "İstanbul’a",
        "5 °C",
        "Ελληνικά",
        "עברית",
        "你好。",
        "한국어",
        "العربية",
        "naïve…",
        "Ångström®",
        "½ £ © ±",
        "×–",
    ],
)
def test_text_that_is_well(text: str) -> None:
    assert not flagged("encoding", text)
    left, _ = clean((text, "x"), encoding="fix", **REST)
    assert left == [(normalize(text, "NFC").strip(), "x")]


# --- lengths, symbols, sides that are the same ---------------------------------------------------

CHINESE = [
    ("今天天气很好。", "The weather is very nice today."),
    ("我想喝一杯咖啡。", "I would like to drink a cup of coffee."),
    ("好。", "All right."),
    ("他们正在讨论明年的预算。", "They are discussing the budget for next year."),
    ("请把门关上。", "Please close the door behind you."),
    ("一石二鸟。", "To kill two birds with one stone."),
    ("由于大雨，比赛被推迟到下个星期六。", "Because of heavy rain the match was put off until "
     "Saturday of next week."),
    ("不客气！", "You are welcome!"),
]  # fmt: skip
JAPANESE = [
    ("今日はとても天気がいいですね。", "The weather is very nice today, isn't it?"),
    ("ありがとうございます。", "Thank you very much."),
    ("東京駅までどうやって行けばいいですか。", "How can I get to Tokyo Station?"),
    ("コンピューターが壊れた。", "The computer broke."),
    ("はい。", "Yes, I do."),
]


@pytest.mark.parametrize(("src", "tgt"), CHINESE + JAPANESE)
def test_ordinary_ratios(src: str, tgt: str) -> None:
    assert not flagged("ratio", src, tgt) and not flagged("ratio", tgt, src)
    assert not flagged("symbols", src, tgt) and not flagged("symbols", tgt, src)


def test_extraordinary_ratios() -> None:
    assert flagged("ratio", CHINESE[6][0], "Hm.") and flagged("ratio", "对。", CHINESE[6][1])
    assert flagged("ratio", "No.", "Das war nun wirklich das Letzte, was ich hören wollte.")
    assert not flagged("ratio", "Hi.", "Guten Tag zusammen!")
    assert not flagged("ratio", "abcdefghij", "a" * 70)  # 20 and 80
    assert flagged("ratio", "abcdefghij", "a" * 71)
    assert flagged("ratio", "abcdefghij", "a" * 31, max_ratio=2.0)


def test_weighted_lengths() -> None:
    texts = {"": 0, "abc": 3, "früh!": 5, "你好!": 7, "かなカナ": 8, "한국": 4}
    assert {text: weighted_length(text) for text in texts} == texts
    assert weighted_length("𠀀㐀豈。") == 10


def test_letters() -> None:
    assert letters("abc def") == letters("Früh") == letters("你好") == letters("हिन्दी") == 1.0
    assert letters("") == letters(" ") == 1.0
    assert letters("12 34!") == letters("…–“”①½€😀") == 0.0
    assert letters("ab12") == 0.5 and letters("a, b.") == 0.5
    assert letters("ü1 你。") == 0.5


@pytest.mark.parametrize(
    ("src", "tgt", "expected"),
    [
        ("@@", "Two men", True),
        ("12345", "zwölftausend", True),
        ("……！", "他说了一句话", True),
        ("12345", "12.345", False),
        ("3:30", "halb vier", True),
        ("Room 12", "Zimmer 12", False),
        ("C-3", "C–3", False),
        ("مرحبا", "hello", False),
    ],
)
def test_sides_of_symbols(src: str, tgt: str, expected: bool) -> None:
    assert flagged("symbols", src, tgt) is flagged("symbols", tgt, src) is expected
    assert not flagged("symbols", src, tgt, min_letters=0.0)


def test_identical_sides() -> None:
    same = [("Berlin", "berlin"), ("a  b", "A b"), ("ﬁn", "fin"), ("e\u0301", "é"), ("12", "12")]
    same += [("Straße", "STRASSE"), ("你好", "你好"), ("é", "E\u0301"), ("İ", "i\u0307")]
    for src, tgt in same:
        assert flagged("identical", src, tgt) and flagged("identical", tgt, src)
        assert flagged("identical", src, tgt, form="none")
    for src, tgt in [("Berlin", "Berlín"), ("a b", "ab"), ("e\u0301", "f"), ("a", "a.")]:
        assert not flagged("identical", src, tgt) and not flagged("identical", tgt, src)


# --- scripts and languages -----------------------------------------------------------------------

SENTENCES = {
    "en": "A naïve café owner said “hello”.",
    "de": "Größere Straßen für alle – µg genau!",
    "cs": "Příliš žluťoučký kůň",
    "tr": "Iğdır'da şişe",
    "vi": "Tiếng Việt có nhiều dấu.",
    "yo": "Ẹ káàárọ̀ o",
    "ru": "Съешь ещё этих мягких булок.",
    "uk": "Доброго ранку їм.",
    "el": "Καλημέρα σας, τι κάνετε;",
    "hy": "Բարեւ աշխարհ",
    "he": "שלום עולם",
    "ar": "السلام عليكم",
    "hi": "नमस्ते दुनिया",
    "th": "สวัสดีชาวโลก",
    "zh": "今天天气很好。",
    "ja": "カタカナとひらがなと漢字。",
    "ko": "안녕하세요 여러분.",
}


@pytest.mark.parametrize("language", SENTENCES)
def test_scripts(language: str) -> None:
    latin = {"en", "de", "vi", "cs", "tr", "yo"}
    for other, text in SENTENCES.items():
        alike = other == language or {other, language} <= latin or {other, language} == {"ru", "uk"}
        if {other, language} == {"zh", "ja"}:
            continue  # Japanese may be written in Han alone
        expected = not alike
        if language == "ko" and other == "zh":
            expected = False  # and so may Korean
        assert flagged("script", text, "12", languages=(language, "en")) is expected, other
        assert flagged("script", "12", text, languages=("en", language)) is expected, other


def test_scripts_of_single_words_and_tags() -> None:
    def of(language: str, text: str) -> bool:
        return flagged("script", text, languages=(language, "en"))

    assert (
        not of("zh", "Tom游泳。") and not of("zh", "用DVD看。") and of("zh", "我说 hello everyone")
    )
    assert not of("en", "The word 好 means good.") and of("en", "привет (hi)")
    assert not of("sr", "Dobar dan") and not of("sr", "Добар дан") and of("sr", "你好")
    assert of("sr-Cyrl", "Dobar dan") and of("sr_Latn", "Добар дан")
    assert not of("zh-Hant", "臺灣") and not of("zh_TW", "臺灣") and of("de-AT", "Привет")
    assert not of("deu", "Grüße") and of("deu", "Привет")
    for unknown in ("", "xx", "german", "SQL", "en2", "x" * 50, "art-lojban", "zxx", "und"):
        assert not of(unknown, "12 34") and not of(unknown, "hello")
    assert foreign_letters("german") is None
    assert not of("ru", "5 µ") and not of("ja", "ー・々〆ヶ") and not of("en", "ª º µ ʻokina ˈa")


def test_no_languages_no_script() -> None:
    _, found = clean(("Здравствуйте", "Доброе утро"))
    assert found == {}


ENGLISH = "This is an ordinary sentence about the weather of the coming week."
GERMAN = "Das ist ein gewöhnlicher Satz über das Wetter der kommenden Woche."


def test_languages() -> None:
    pytest.importorskip("py3langid")

    def found(src: str, tgt: str, *languages: str) -> Found:
        options: dict[str, Any] = {**REST, "language": "drop"}
        return clean((src, tgt), languages=(languages[0], languages[1]), **options)[1]

    assert found(ENGLISH, GERMAN, "en", "de") == {}
    assert found(ENGLISH, GERMAN, "en-US", "de_AT") == found(ENGLISH, GERMAN, "eng", "deu") == {}
    assert found(GERMAN, ENGLISH, "en", "de") == {"language": ("drop", 1)}
    assert found(ENGLISH, ENGLISH, "en", "de") == {"language": ("drop", 1)}
    assert found("Guten Tag", "Good day", "en", "de") == {}  # too short to be sure
    chinese = "今天天气很好，我们去公园散步吧。"
    assert found(chinese, GERMAN, "zh", "de") == {} != found(chinese, GERMAN, "ja", "de")
    for unknown in ("xx", "german", ""):
        with pytest.raises(TransduceError, match=rf"language: '{unknown}' is not among .*, de, "):
            found(ENGLISH, GERMAN, "en", unknown)


def test_the_identifier_may_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("py3langid", "py3langid.langid"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(TransduceError, match=r"pip install 'transduce\[language\]'"):
        Cleaner(CleaningConfig(language="report"), "NFC", ("en", "de"))
    Cleaner(CleaningConfig(language="report"), "NFC")  # no languages, nothing to identify
    Cleaner(CleaningConfig(), "NFC", ("en", "de"))


# --- findings ------------------------------------------------------------------------------------


def some_findings(*lines: int, file: str = "") -> Findings:
    found = Findings()
    for line in lines:
        found.add("ratio", "report", file, Pair("s" * 400, "t", line))
        found.add("empty source", "drop", file, Pair("", "t", line))
    return found


def test_findings_have_limits() -> None:
    found = some_findings(*range(1, LISTED + 500))
    finding = found.found["ratio", "report"]
    assert finding.count == LISTED + 499 and len(finding.lines) == LISTED
    assert [example["line"] for example in finding.examples] == [1, 2, 3, 4, 5]
    assert finding.examples[0] == {"file": "", "line": 1, "src": "s" * CUT, "tgt": "t"}
    found.add("fuzzy", "skip", "a.po", Skipped("fuzzy", 7))
    assert found.found["fuzzy", "skip"].lines == ["a.po:7"]
    assert found.found["fuzzy", "skip"].examples == []
    assert (found.count("skip"), found.count("drop"), found.count("fix")) == (1, LISTED + 499, 0)


@given(st.lists(st.integers(1, 10**6), max_size=30), st.integers(0, 30), st.integers(0, 30))
def test_findings_add_up(lines: list[int], first: int, second: int) -> None:
    """Cut in parts, and through JSON, they are the same as in one go."""
    whole = some_findings(*lines)
    parts = [lines[:first], lines[first : first + second], lines[first + second :]]
    merged = Findings()
    for part in parts:
        text = json.dumps(some_findings(*part).to_json())
        before = some_findings(*part)
        merged.merge(Findings.from_json(json.loads(text)))
        assert before.to_json() == json.loads(text)
    assert merged.to_json() == whole.to_json()


def test_merged_findings_have_limits() -> None:
    merged = some_findings(*range(LISTED - 1))
    other = some_findings(7, 8, 9)
    merged.merge(other)
    assert len(merged.found["ratio", "report"].lines) == LISTED
    assert merged.found["ratio", "report"].count == LISTED + 2
    assert len(merged.found["ratio", "report"].examples) == EXAMPLES
    assert other.to_json() == some_findings(7, 8, 9).to_json()
    fresh = Findings()
    fresh.merge(other)
    fresh.merge(other)
    assert other.to_json() == some_findings(7, 8, 9).to_json()


def test_findings_as_sentences() -> None:
    found = Findings()
    for line in range(1, 1501):
        found.add("near_duplicates", "report", "", Pair("a", "b", line))
    for line in (3, 9):
        found.add("empty target", "drop", "b.tsv", Pair("a", "", line))
    found.add("control characters", "fix", "", Pair("a", "b", 4))
    found.add("header", "skip", "", Skipped("header", 1))
    for line in range(5):
        found.add("fuzzy", "skip", "", Skipped("fuzzy", line + 1))
    assert found.summary() == [
        "5 entries skipped: fuzzy (lines 1, 2, 3, 4, 5)",
        "1 entry skipped: header (line 1)",
        "2 pairs left out: empty target (lines b.tsv:3, b.tsv:9)",
        "1 pair repaired: control characters (line 4)",
        "1,500 pairs kept, but suspicious: near duplicates (lines 1, 2, 3, 4, 5, ...)",
    ]
    assert sentence({"name": "leaks", "action": "drop", "count": 2, "lines": []}) == (
        "2 pairs left out: leaks"
    )


def test_what_a_file_skipped_is_counted() -> None:
    cleaner, found = Cleaner(CleaningConfig(), "NFC"), Findings()
    entries: list[Pair | Skipped] = [Skipped("header", 1), Pair(" a", "A", 2), Skipped("fuzzy", 3)]
    assert list(cleaned(entries, cleaner, "x.po", found)) == [("a", "A", 2)]
    assert found.count("skip") == 2
    example = found.found["spaces at the ends", "fix"].examples[0]
    assert example == {"file": "x.po", "line": 2, "src": " a", "tgt": "A"}  # as it stood there
