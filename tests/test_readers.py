"""Lines and pairs: what ends a line, what is refused, and with which words."""

import gzip
import io
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transduce.data.readers import is_blank, normalize, read_lines, read_pairs, split_lines
from transduce.errors import TransduceError, UsageError

Write = Callable[[str, str | bytes], Path]


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        (b"", []),
        (b"\n", [""]),
        (b"a b\n\nc\n", ["a b", "", "c"]),
        (b"\na", ["", "a"]),
        (b"a\n\n", ["a", ""]),
        (b"\xef\xbb\xbfhello world\r\nbye\r\n", ["hello world", "bye"]),
        (b"ab\x00cd\n", ["ab\x00cd"]),
        ("one\u2028two\nthree\n".encode(), ["one\u2028two", "three"]),
        ("a\u2029b\u0085c\x0bd\x0ce\rf\n".encode(), ["a\u2029b\u0085c\x0bd\x0ce\rf"]),
        (b"a\r\r\n", ["a\r"]),
        (b"last\r", ["last\r"]),
        (b"x\n\xef\xbb\xbfy\n", ["x", "\ufeffy"]),
    ],
)
def test_what_ends_a_line(write: Write, content: bytes, lines: list[str]) -> None:
    """A01, A02, A03."""
    assert list(read_lines(write("f.txt", content))) == lines
    assert list(read_lines(write("f.txt.gz", gzip.compress(content)))) == lines


@given(st.lists(st.text(st.characters(exclude_characters="\n", exclude_categories=["Cs"]))))
def test_as_many_lines_as_line_feeds(texts: list[str]) -> None:
    raw = "".join(f"{text}\n" for text in texts).encode()
    assert len(list(split_lines(io.BytesIO(raw)))) == raw.count(b"\n")


def test_a_line_that_is_not_utf8_is_named(write: Write) -> None:
    path = write("f.txt", b"good\nb\xe9se\n")
    with pytest.raises(TransduceError, match=r"f\.txt, line 2: not UTF-8 \(byte 2"):
        list(read_lines(path))


def test_files_that_cannot_be_read(write: Write, tmp_path: Path) -> None:
    with pytest.raises(TransduceError, match="nowhere"):
        list(read_lines(tmp_path / "nowhere"))
    with pytest.raises(TransduceError, match="directory"):
        list(read_lines(tmp_path))
    with pytest.raises(TransduceError, match="gz"):
        list(read_lines(write("plain.gz", b"not gzip")))
    with pytest.raises(TransduceError, match="gz"):
        list(read_lines(write("cut.gz", gzip.compress(b"abc\n" * 1000)[:-9])))


def test_pairs_of_a_table(write: Write) -> None:
    path = write("p.tsv", "a\tA\nb\tB\tattribution\nno tab\n\tC\n")
    assert list(read_pairs(str(path))) == [
        ("a", "A", 1), ("b", "B", 2), ("no tab", "", 3), ("", "C", 4),
    ]  # fmt: skip


def test_pairs_of_two_files(write: Write) -> None:
    """A02: U+2028 in the source does not move the pairs that follow."""
    src = str(write("s", "one\u2028two\nthree\n"))
    tgt = str(write("t", "eins\nzwei\n"))
    assert list(read_pairs([src, tgt])) == [("one\u2028two", "eins", 1), ("three", "zwei", 2)]


@pytest.mark.parametrize(("left", "right"), [(3, 4), (4, 3), (0, 2), (5, 1)])
def test_unequal_counts_are_told(write: Write, left: int, right: int) -> None:
    """A04: both names and both counts."""
    src, tgt = str(write("source.txt", "x\n" * left)), str(write("target.txt", "y\n" * right))
    with pytest.raises(TransduceError) as caught:
        list(read_pairs([src, tgt]))
    assert f"{src} has {left} lines but {tgt} has {right}" in str(caught.value)


def test_too_many_files() -> None:
    with pytest.raises(UsageError, match="not 3 files"):
        list(read_pairs(["a", "b", "c"]))
    with pytest.raises(UsageError):
        list(read_pairs(""))


def test_normalisation() -> None:
    assert normalize("e\u0301", "NFC") == "\u00e9"
    assert normalize("e\u0301", "none") == "e\u0301"
    assert normalize("a\u00a0b\tc\x00d\ufeffe\u2581f", "NFC") == "a b cde_f"
    for kept in ("…", "²", "ﬁ", "︰", "ŀ", "a  b", "\u2028"):
        assert normalize(kept, "NFC") == kept
    assert [normalize(x, "NFKC") for x in ("…", "²", "ﬁ", "︰", "ŀ")] == [
        "...",
        "2",
        "fi",
        "..",
        "l·",
    ]


def test_blank() -> None:
    assert is_blank("") and is_blank(" \t\u2028\x0c\u00a0")
    assert not is_blank(" x ")
