"""The one form of all text, and what makes two texts the same."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transduce.data.text import comparison_key, is_blank, normalize, one_line

FORMS = ["NFC", "NFKC", "none"]
GONE = {*map(chr, range(0x20)), *map(chr, range(0x7F, 0xA1)), *"\ufeff\u2581\u2028\u2029"}
ODD = st.sampled_from(
    "\0\t\n\r\x0b\x85\x9f\u00a0\u2028\ufeff\u2581e\u0301\u0327ﬁ가ᄀ\u1161ἅ😀\u200d "
)
TEXTS = st.text(ODD | st.characters(exclude_categories=["Cs"]))


@pytest.mark.parametrize("form", FORMS)
@given(text=TEXTS)
def test_the_one_form(form: str, text: str) -> None:
    once = normalize(text, form)
    assert normalize(once, form) == once
    assert not GONE & set(once)
    if form != "none":
        assert unicodedata.is_normalized(form, once)  # type: ignore[arg-type]


def test_an_accent_finds_its_letter_over_what_is_removed() -> None:
    assert normalize("e\0\u0301", "NFC") == normalize("\u00e9", "NFC") == "\u00e9"


def test_unicode_forms() -> None:
    """A07: both spellings are one; nothing else is lost under NFC."""
    assert normalize("e\u0301", "NFC") == "\u00e9" == normalize("\u00e9", "NFC")
    assert normalize("e\u0301", "none") == "e\u0301"
    family = "👨\u200d👩\u200d👧 ❤\ufe0f"
    for kept in ("…", "²", "ﬁ", "︰", "ŀ", "a  b", " a ", "شَدَّة", "שָׁלוֹם", "👩🏽\u200d🚀", family):
        assert normalize(kept, "NFC") == unicodedata.normalize("NFC", kept)
        assert normalize(kept, "none") == kept
    for kept in ("…", "²", "ﬁ", "︰", "ŀ", family):
        assert normalize(kept, "NFC") == kept
    compatible = [normalize(text, "NFKC") for text in ("…", "²", "ﬁ", "︰", "ŀ")]
    assert compatible == ["...", "2", "fi", "..", "l·"]


@pytest.mark.parametrize("form", FORMS)
def test_what_is_replaced(form: str) -> None:
    assert normalize("a\u00a0b\tc\x00d\ufeffe\u2581f\x7f\x9f", form) == "a b cde_f"
    assert normalize("a \r\n\u2028\tb\u0085\u0085c", form) == "a  b c"
    assert normalize("plain text", form) == "plain text"
    for alone, instead in {"\u2581": "_", "\ufeff": "", "\u00a0": " ", "\0": "", "\t": " "}.items():
        assert normalize(f"a{alone}b", form) == f"a{instead}b"
    assert normalize("", form) == ""


@given(TEXTS)
def test_one_line(text: str) -> None:
    flat = one_line(text)
    assert not set("\t\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029") & set(flat)
    assert len(flat.splitlines()) <= 1
    assert one_line(flat) == flat


def test_runs_of_breaks_become_one_space() -> None:
    assert one_line("a\nb\r\n\tc\u2028\u2029d  e\u00a0f") == "a b c d  e\u00a0f"


def test_the_same_sentence() -> None:
    same = [
        "Straße  frei",
        "STRASSE FREI ",
        "\tstrasse\u00a0frei\n",
        "ｓｔｒａｓｓｅ\u3000ｆｒｅｉ",
    ]
    assert {comparison_key(text) for text in same} == {"strasse frei"}
    assert comparison_key("e\u0301") == comparison_key("É")
    others = ["strassefrei", "strasse frei.", "strasse freí"]
    assert len({comparison_key(text) for text in [same[0], *others]}) == 4


@given(TEXTS)
def test_case_and_spaces_do_not_count(text: str) -> None:
    key = comparison_key(text)
    assert comparison_key(f"  {text}\t") == key
    assert key == " ".join(key.split())


def test_blank() -> None:
    assert is_blank("") and is_blank(" \t\u2028\x0c\u00a0\u3000")
    assert not is_blank(" x ") and not is_blank("\0")
