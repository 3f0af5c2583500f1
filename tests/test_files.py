"""Bytes of any origin: what is unpacked, what ends a line, and what is said of damage."""

import bz2
import gzip
import hashlib
import io
import lzma
import os
import sys
import tempfile
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import fsspec
import pyarrow as pa
import pytest
from fsspec.spec import AbstractBufferedFile
from hypothesis import given
from hypothesis import strategies as st

from transduce.config import is_url
from transduce.data import files
from transduce.data.files import (
    ending,
    fingerprint,
    in_archive,
    on_disk,
    open_bytes,
    read_lines,
    split_lines,
)
from transduce.errors import TransduceError

Write = Callable[[str, str | bytes], Path]


def zstd(data: bytes) -> bytes:
    return bytes(pa.compress(data, "zstd", asbytes=True))


PACK: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".bz2": bz2.compress,
    ".zst": zstd,
}
TEXT = "".join(f"Zeile {i}: früh\n" for i in range(5000)).encode()


def zipped(members: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", method) as file:
        for name, content in members.items():
            file.writestr(name, content)
    return archive.getvalue()


def refused(path: object) -> str:
    """Read a file that cannot be read; the message names it."""
    with pytest.raises(TransduceError) as caught:
        list(read_lines(str(path)))
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# --- lines ---------------------------------------------------------------------------------------

LINES = [
    (b"", []),
    (b"\n", [""]),
    (b"a b\n\nc\n", ["a b", "", "c"]),
    (b"\na", ["", "a"]),
    (b"a\n\n", ["a", ""]),
    (b"\xef\xbb\xbfhello world\r\nbye\r\n", ["hello world", "bye"]),
    (b"\xef\xbb\xbf", [""]),
    (b"\xef\xbb\xbf\xef\xbb\xbfa\n", ["\ufeffa"]),
    (b"x\n\xef\xbb\xbfy\n", ["x", "\ufeffy"]),
    (b"ab\x00cd\n", ["ab\x00cd"]),
    ("one\u2028two\nthree\n".encode(), ["one\u2028two", "three"]),
    (
        "a\u2029b\u0085c\x0bd\x0ce\rf\x1cg\x1dh\x1ei\n".encode(),
        ["a\u2029b\u0085c\x0bd\x0ce\rf\x1cg\x1dh\x1ei"],
    ),
    (b"a\r\r\n", ["a\r"]),
    (b"last\r", ["last\r"]),
    (b"\r\n\r\n", ["", ""]),
]


@pytest.mark.parametrize(("content", "lines"), LINES)
def test_what_ends_a_line(write: Write, content: bytes, lines: list[str]) -> None:
    """A01, A02, A03: the same however the file is packed."""
    assert list(read_lines(write("f.txt", content))) == lines
    for suffix, pack in PACK.items():
        assert list(read_lines(write(f"f.txt{suffix}", pack(content)))) == lines
    assert list(read_lines(write("f.zip", zipped({"f.txt": content})))) == lines


@given(st.lists(st.text(st.characters(exclude_characters="\n", exclude_categories=["Cs"]))))
def test_as_many_lines_as_line_feeds(texts: list[str]) -> None:
    raw = "".join(f"{text}\n" for text in texts).encode()
    lines = list(split_lines(io.BytesIO(raw), "f"))
    assert len(lines) == raw.count(b"\n")
    expected = [text.encode().removesuffix(b"\r") for text in texts]
    if expected:
        expected[0] = expected[0].removeprefix(b"\xef\xbb\xbf")
    assert lines == expected


def test_a_line_that_is_not_utf8_is_named(write: Write) -> None:
    message = refused(write("f.txt", b"good\nb\xe9se\n"))
    assert "f.txt, line 2: not UTF-8 (byte 2 of the line)" in message
    assert "line 1" in refused(write("surrogates.txt", b"\xed\xa0\x80\n"))
    for encoding in ("utf-16-le", "utf-16-be"):
        bom = "\ufeff".encode(encoding)
        assert "UTF-16" in refused(write("wide.txt", bom + "über\nuns\n".encode(encoding)))
    assert "UTF-16" not in refused(write("latin.txt", "größer\n".encode("latin-1")))


@pytest.mark.parametrize("suffix", ["", *PACK])
def test_a_line_without_end(write: Write, suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "LONGEST_LINE", 1000)
    pack = PACK.get(suffix, bytes)
    path = write(f"f{suffix}", pack(b"short\n" + b"x" * 999 + b"\nlast"))
    assert [len(line) for line in read_lines(path)] == [5, 999, 4]
    assert ", line 2: longer than" in refused(write(f"g{suffix}", pack(b"a\n" + b"x" * 5000)))
    assert ", line 1: longer than" in refused(write(f"h{suffix}", pack(b"x" * 1000 + b"\nb\n")))


# --- where bytes come from -----------------------------------------------------------------------


@pytest.mark.parametrize("suffix", PACK)
def test_compressed_files(write: Write, suffix: str) -> None:
    pack = PACK[suffix]
    whole = write(f"whole{suffix}", pack(TEXT))
    joined = write(f"joined{suffix}", pack(TEXT[:7001]) + pack(TEXT[7001:]))
    upper = write(f"upper{suffix.upper()}", pack(TEXT))
    for path in (whole, joined, upper):
        with open_bytes(str(path)) as file:
            assert file.read() == TEXT


@pytest.mark.parametrize("suffix", PACK)
def test_damaged_compressed_files(write: Write, suffix: str) -> None:
    packed = PACK[suffix](TEXT)
    refused(write(f"plain{suffix}", b"this was never packed\n"))
    for cut in (len(packed) - 1, len(packed) - 9, len(packed) // 2, 12, 5):
        refused(write(f"cut{suffix}", packed[:cut]))
    if suffix == ".zst":
        return  # nothing in it says what its bytes should be
    middle = len(packed) // 2
    broken = packed[:middle] + bytes(byte ^ 0x55 for byte in packed[middle : middle + 40])
    refused(write(f"broken{suffix}", broken + packed[middle + 40 :]))


METHODS = [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA]


@pytest.mark.parametrize("method", METHODS)
def test_zip_archives(write: Write, method: int) -> None:
    one = write("one.zip", zipped({"in/a.txt": TEXT}, method))
    hidden = write(
        "hidden.zip",
        zipped({"_about.txt": b"x", "__MACOSX/a.txt": b"y", "in/._z": b"z", "a.txt": TEXT}, method),
    )
    for path in (str(one), f"{one}/", f"{one}/in/a.txt", str(hidden), f"{hidden}/a.txt"):
        assert len(list(read_lines(path))) == 5000
        assert ending(path) == ".txt"
    assert list(read_lines(f"{hidden}/_about.txt")) == ["x"]


def test_zip_archives_with_several_members(write: Write) -> None:
    path = write("two.zip", zipped({"a.de": b"A\n", "a.en": b"B\n", "folder/": b""}))
    assert "holds 2 files; say which one, e.g. " in refused(path)
    assert "/two.zip/a.de (there are: a.de, a.en)" in refused(path)
    assert "no such member; did you mean 'a.en'? (there are: a.de, a.en)" in refused(f"{path}/b.en")
    assert list(read_lines(f"{path}/a.en")) == ["B"]
    assert "only hidden files" in refused(write("hidden.zip", zipped({"_a.txt": b"x"})))
    assert "empty archive" in refused(write("empty.zip", zipped({})))
    assert "empty archive" in refused(write("folders.zip", zipped({"a/": b""})))


def test_compressed_members_of_archives(write: Write) -> None:
    for suffix, pack in PACK.items():
        path = write(f"{suffix[1:]}.zip", zipped({f"pairs.tsv{suffix}": pack(TEXT)}))
        assert len(list(read_lines(path))) == 5000
        assert ending(str(path)) == ".tsv"
        refused(write(f"cut{suffix}.zip", zipped({f"pairs.tsv{suffix}": pack(TEXT)[:-6]})))


def test_a_folder_may_be_called_zip(tmp_path: Path) -> None:
    folder = tmp_path / "folder.zip"
    (folder / "inner").mkdir(parents=True)
    (folder / "inner" / "plain.txt").write_text("a\n")
    (folder / "inner" / "x.zip").write_bytes(zipped({"b.txt": b"b\n"}))
    assert list(read_lines(folder / "inner" / "plain.txt")) == ["a"]
    assert list(read_lines(folder / "inner" / "x.zip")) == ["b"]
    assert list(read_lines(f"{folder}/inner/x.zip/b.txt")) == ["b"]
    assert in_archive(str(folder)) is None


def test_damaged_archives(write: Write) -> None:
    whole = zipped({"a.txt": TEXT})
    refused(write("text.zip", b"no archive\n"))
    refused(write("nothing.zip", b""))
    for cut in (len(whole) - 1, len(whole) // 2, 30):
        refused(write("cut.zip", whole[:cut]))
    middle = len(whole) // 2
    refused(write("broken.zip", whole[:middle] + b"\0\1\2\3" * 9 + whole[middle + 36 :]))
    with pytest.raises(TransduceError, match="nowhere"):
        ending("nowhere.zip")
    encrypted = bytearray(zipped({"a.txt": b"secret"}, zipfile.ZIP_STORED))
    for header, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        encrypted[encrypted.index(header) + flags] |= 1
    assert "encrypted" in refused(write("encrypted.zip", bytes(encrypted)))
    unknown = bytearray(zipped({"a.txt": b"packed"}, zipfile.ZIP_STORED))
    for header, method in ((b"PK\x03\x04", 8), (b"PK\x01\x02", 10)):
        unknown[unknown.index(header) + method] = 9
    assert "not supported" in refused(write("unknown.zip", bytes(unknown)))


@given(st.data())
def test_no_damage_makes_a_traceback(data: st.DataObject) -> None:
    small = TEXT[:3000]
    kinds = {suffix: pack(small) for suffix, pack in PACK.items()}
    kinds |= {f"{method}.zip": zipped({"a.txt": small}, method) for method in METHODS}
    suffix = data.draw(st.sampled_from(sorted(kinds)))
    content = bytearray(kinds[suffix])
    place = st.integers(-min(120, len(content)), min(120, len(content)) - 1)
    for position, byte in data.draw(st.lists(st.tuples(place, st.integers(0, 255)), max_size=4)):
        content[position] = byte
    cut = data.draw(st.integers(0, 1000))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"f{suffix}"
        path.write_bytes(content[: len(content) - cut] if cut < 100 else content)
        try:
            list(read_lines(path))
        except TransduceError as error:
            assert str(path) in str(error)


def test_files_that_cannot_be_read(write: Write, tmp_path: Path) -> None:
    assert "No such file" in refused(tmp_path / "nowhere")
    assert "No such file" in refused(tmp_path / "nowhere.zip" / "a.txt")
    assert "directory" in refused(tmp_path)
    assert "null" in refused("a\0b")
    refused("x" * 5000)
    if os.geteuid():  # the superuser may read everything
        secret = write("secret.txt", "x\n")
        secret.chmod(0)
        assert "Permission denied" in refused(secret)


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.TextIOWrapper(io.BytesIO(b"\xef\xbb\xbfa\r\nb"))
    monkeypatch.setattr(sys, "stdin", stream)
    assert list(read_lines("-")) == ["a", "b"]
    assert not stream.buffer.closed


@pytest.fixture
def remote() -> Iterator[Callable[[str, bytes], str]]:
    memory = fsspec.filesystem("memory")

    def put(name: str, content: bytes) -> str:
        memory.pipe(f"/transduce-test/{name}", content)
        return f"memory://transduce-test/{name}"

    yield put
    memory.rm("/transduce-test", recursive=True)


def test_urls(remote: Callable[[str, bytes], str]) -> None:
    assert is_url("https://x/y") and is_url("s3://x") and not is_url("C:/x") and not is_url("a/b")
    urls = [remote("a.tsv", TEXT)]
    urls += [remote(f"a.tsv{suffix}", pack(TEXT)) for suffix, pack in PACK.items()]
    urls.append(remote("a.zip", zipped({"b.tsv": TEXT})))
    for url in [*urls, f"{urls[-1]}/b.tsv"]:
        assert len(list(read_lines(url))) == 5000
        assert ending(url) == ".tsv"
        assert fingerprint(url) == fingerprint(url)
        with on_disk(url) as local:
            assert local.read_bytes() == TEXT
    refused(remote("cut.gz", gzip.compress(TEXT)[:-9]))
    refused("memory://transduce-test/nowhere")
    refused("nosuchprotocol://x/y")
    refused(remote("cut.zip", zipped({"b.tsv": TEXT})[:-9]))


def test_urls_with_a_query() -> None:
    assert ending("https://x.org/Pairs.TSV.gz?download=1") == ".tsv"
    assert ending("https://x.org/a.zip/b.csv") == ".csv"
    assert in_archive("https://x.org/a.zip?download=1/b.csv") == (
        "https://x.org/a.zip?download=1",
        "b.csv",
    )


class Remote(AbstractBufferedFile):  # type: ignore[misc]
    """A file as fsspec's protocols give it, whose connection may be lost."""

    def __init__(self, lost: bool) -> None:
        super().__init__(fsspec.filesystem("memory"), "x", size=len(TEXT), block_size=1000)
        self.lost = lost

    def open(self) -> "Remote":
        return self

    def _fetch_range(self, start: int, end: int) -> bytes:
        if self.lost and end > 3000:
            raise RuntimeError("the connection was lost\nand so on")
        return TEXT[start:end]


def test_what_a_protocol_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fsspec, "open", lambda path, mode: Remote(lost=False))
    assert len(list(read_lines("https://x.org/a.txt"))) == 5000
    monkeypatch.setattr(fsspec, "open", lambda path, mode: Remote(lost=True))
    lines = read_lines("https://x.org/a.txt")
    with pytest.raises(TransduceError, match=r"^cannot read https://x.org/a.txt: .* was lost$"):
        list(lines)


# --- memory, copies, fingerprints ----------------------------------------------------------------


def test_lines_are_streamed(tmp_path: Path) -> None:
    line = b"an ordinary line of some length, which is repeated many times over\n" * 100
    with gzip.open(tmp_path / "big.gz", "wb", compresslevel=1) as file:
        for _ in range(6000):  # 40 MB
            file.write(line)
    tracemalloc.start()
    try:
        assert sum(1 for _ in read_lines(tmp_path / "big.gz")) == 600_000
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 6 << 20


def test_a_copy_on_disk_is_removed(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    plain = write("a.txt", TEXT)
    with on_disk(str(plain)) as path:
        assert path == plain
    packed = write("a.gz", gzip.compress(TEXT))
    with on_disk(str(packed)) as path:
        assert path.read_bytes() == TEXT
        assert temporary in path.parents
    with pytest.raises(RuntimeError), on_disk(str(packed)):
        raise RuntimeError
    with pytest.raises(TransduceError, match="cut"), on_disk(str(write("cut.gz", b"\x1f\x8b"))):
        pass
    with pytest.raises(TransduceError, match="nowhere"), on_disk(str(tmp_path / "nowhere")):
        pass
    with pytest.raises(TransduceError, match="directory"), on_disk(str(tmp_path)):
        pass
    assert not list(temporary.iterdir())


def test_fingerprints(write: Write, tmp_path: Path) -> None:
    one = write("a.gz", gzip.compress(TEXT))
    assert fingerprint(str(one)) == hashlib.sha256(one.read_bytes()).hexdigest()
    archive = write("a.zip", zipped({"b.txt": TEXT}))
    assert fingerprint(f"{archive}/b.txt") == fingerprint(str(archive))
    with pytest.raises(TransduceError, match="nowhere"):
        fingerprint(str(tmp_path / "nowhere"))

    def folder(name: str, contents: dict[str, bytes]) -> str:
        for file, content in contents.items():
            path = tmp_path / name / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        return fingerprint(str(tmp_path / name))

    first = folder("1", {"a": b"bc", "d/e": b"f"})
    assert first == folder("2", {"d/e": b"f", "a": b"bc"})
    others = [
        folder("3", {"ab": b"c", "d/e": b"f"}),
        folder("4", {"a": b"bc", "d/f": b"f"}),
        folder("5", {"a": b"bcd", "e": b"f"}),
        folder("6", {"a": b"bc", "d/e": b"F"}),
        folder("7", {"a": b"bc", "d": b"ef"}),
    ]
    assert len({first, *others}) == 6
