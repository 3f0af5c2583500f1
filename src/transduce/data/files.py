"""Bytes of any origin: plain or compressed files, members of zip archives, URLs, standard input.

Everything is streamed; only what must be read from several places at once is copied to disk first.
"""

import bz2
import gzip
import hashlib
import io
import lzma
import os
import re
import shutil
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Any, Literal, Protocol, runtime_checkable

import pyarrow as pa

from transduce.config import STDIN, is_url
from transduce.errors import TransduceError, did_you_mean

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
LONGEST_LINE = 64 << 20  # bytes; what is longer is no text of a sentence a line
BUFFER = 1 << 20


@runtime_checkable
class ByteFile(Protocol):
    """A file opened for reading bytes, wherever they come from."""

    def read(self, size: int = -1, /) -> bytes:
        """Return the next bytes, none at the end."""
        ...

    def readline(self, size: int = -1, /) -> bytes:
        """Return the next bytes up to a line feed."""
        ...


def _zstd(file: ByteFile) -> Any:
    return pa.CompressedInputStream(pa.PythonFile(file, mode="r"), "zstd")


_DECOMPRESS: dict[str, Callable[[Any], Any]] = {
    ".gz": lambda file: gzip.GzipFile(fileobj=file),
    ".xz": lzma.LZMAFile,
    ".bz2": bz2.BZ2File,
    ".zst": _zstd,
}
_DAMAGED = (
    EOFError, OSError, zlib.error, lzma.LZMAError, zipfile.BadZipFile, pa.ArrowException,
    NotImplementedError,
)  # fmt: skip


_ZIP = re.compile(r"\.zip(?:\?[^/]*)?(?=/|\Z)", re.IGNORECASE)


def in_archive(path: str) -> tuple[str, str] | None:
    """Return archive and member (or "") of `pairs.zip/de.tsv` or `pairs.zip`; else None."""
    for end in _ZIP.finditer(path):
        archive, member = path[: end.end()], path[end.end() + 1 :]
        if is_url(path) or not os.path.isdir(archive):  # a folder may be called so as well
            return archive, member
    return None


def ending(path: str) -> str:
    """Return the ending that names a file's format, in lower case: `.tsv` of `a.zip/B.TSV.gz`."""
    if (archive := in_archive(path)) and not archive[1]:
        with _errors_named(path), _open_member(path, *archive) as (member, _):
            path = member
    name = Path(_without_query(path))
    return (name.with_suffix("") if name.suffix.lower() in _DECOMPRESS else name).suffix.lower()


def _without_query(path: str) -> str:
    return path.partition("?")[0] if is_url(path) else path


@contextmanager
def open_bytes(path: str) -> Iterator[ByteFile]:
    """Open a file of any origin for reading, unpacked.

    Raises:
        TransduceError: if it cannot be read, now or later while the context lasts.
    """
    with _errors_named(path), ExitStack() as stack:
        if archive := in_archive(path):
            name, file = stack.enter_context(_open_member(path, *archive))
        else:
            name, file = _without_query(path), stack.enter_context(_open_raw(path))
        if unpack := _DECOMPRESS.get(Path(name).suffix.lower()):
            file = stack.enter_context(io.BufferedReader(unpack(file), BUFFER))
        yield file


@contextmanager
def _errors_named(path: str) -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise
    except _DAMAGED as error:
        raise unreadable(path, error) from None


def unreadable(path: str, error: Exception) -> TransduceError:
    """Return what to raise for an error of some library while a file was read."""
    reason = getattr(error, "strerror", None) or str(error).partition("\n")[0]
    return TransduceError(f"cannot read {path}: {reason or type(error).__name__}")


@contextmanager
def _open_raw(path: str) -> Iterator[Any]:
    """Open a file as it lies there; it can also `seek`, unless it is a pipe."""
    if path == STDIN:
        yield sys.stdin.buffer
    elif is_url(path):
        import fsspec

        try:
            opened: Any = fsspec.open(path, "rb").open()
            # Files of fsspec know no limit for the length of a line.
            with opened, io.BufferedReader(opened, BUFFER) as file:
                yield file
        except (TransduceError, BrokenPipeError):
            raise
        except Exception as error:  # whatever the protocol's library raises
            raise unreadable(path, error) from None
    else:
        try:
            plain = open(path, "rb", buffering=BUFFER)  # noqa: SIM115
        except ValueError as error:  # no possible name of a file
            raise unreadable(path, error) from None
        with plain:
            yield plain


@contextmanager
def _open_member(path: str, archive: str, member: str) -> Iterator[tuple[str, ByteFile]]:
    """Open a member of a zip archive; also give its name."""
    with _open_raw(archive) as raw:
        try:
            zipped = zipfile.ZipFile(raw)
            name = _member(zipped, path, member)
            opened: Any = zipped.open(name)
        except TransduceError:
            raise
        except Exception as error:  # encryption, unknown packing, whatever damage makes of it
            raise unreadable(path, error) from None
        with zipped, io.BufferedReader(opened, BUFFER) as file:
            yield name, file


def _member(zipped: zipfile.ZipFile, path: str, member: str) -> str:
    """Return the member that is meant: the one named, or the only one that is not marked hidden."""
    names = [info.filename for info in zipped.infolist() if not info.is_dir()]
    plain = [name for name in names if not re.search(r"(^|/)[._]", name)]
    archive = path.removesuffix(f"/{member}")
    if not names:
        raise TransduceError(f"{archive} is an empty archive")
    there = f"(there are: {', '.join((plain or names)[:20])})"
    if member:
        if member not in names:
            raise TransduceError(f"{path}: no such member{did_you_mean(member, names)} {there}")
        return member
    if len(plain) != 1:
        raise TransduceError(
            f"{archive} holds {len(plain) or 'only hidden'} files; say which one, e.g. "
            f"{archive}/{(plain or names)[0]} {there}"
        )
    return plain[0]


def split_lines(file: ByteFile, name: str) -> Iterator[bytes]:
    """Yield the lines of a binary file: LF ends a line, CRLF counts as one, nothing else does.

    A byte-order mark at the start of the file is dropped. This rule is written here and nowhere
    else.

    Raises:
        TransduceError: if a line is longer than LONGEST_LINE.
    """
    for number, line in enumerate(iter(partial(file.readline, LONGEST_LINE), b""), start=1):
        if number == 1:
            line = line.removeprefix(BYTE_ORDER_MARK)
        if line.endswith(b"\n"):
            yield line[:-2] if line.endswith(b"\r\n") else line[:-1]
        elif len(line) >= LONGEST_LINE:
            raise TransduceError(
                f"{name}, line {number}: longer than {LONGEST_LINE >> 20} MiB; is this a text file?"
            )
        else:
            yield line


def read_lines(path: str | Path) -> Generator[str, None, None]:
    """Yield the lines of a UTF-8 text file of any origin (`-` is standard input).

    Raises:
        TransduceError: if the file cannot be read, or a line (named) is not UTF-8.
    """
    with open_bytes(str(path)) as file:
        for number, line in enumerate(split_lines(file, str(path)), start=1):
            try:
                yield line.decode("utf-8")
            except UnicodeDecodeError as error:
                utf16 = number == 1 and line[:2] in (b"\xff\xfe", b"\xfe\xff")
                raise TransduceError(
                    f"{path}, line {number}: not UTF-8 (byte {error.start + 1} of the line"
                    f"{'; it looks like UTF-16' if utf16 else ''}); convert the file to UTF-8"
                ) from None


def open_text(path: Path | None, mode: Literal["w", "a"] = "w") -> IO[str]:
    """Open a file for text, or standard output: UTF-8, lines ending in LF."""
    if path is None:
        return open(os.dup(sys.stdout.fileno()), "w", encoding="utf-8", newline="\n")
    try:
        return open(path, mode, encoding="utf-8", newline="\n")
    except OSError as error:
        raise TransduceError(f"cannot write {path}: {error.strerror}") from None


@contextmanager
def on_disk(path: str) -> Iterator[Path]:
    """Give the path of a plain local file with the content of `path`, copied only if need be.

    Raises:
        TransduceError: if it cannot be read.
    """
    packed = in_archive(path) or Path(path).suffix.lower() in _DECOMPRESS
    if path != STDIN and not is_url(path) and not packed:
        with open_bytes(path):
            pass
        yield Path(path)
        return
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "content"
        with open_bytes(path) as file, open(copy, "wb") as target:
            shutil.copyfileobj(file, target, BUFFER)
        yield copy


def fingerprint(path: str) -> str:
    """Return the SHA-256 of a file as it lies there, or of the names and files of a folder.

    Raises:
        TransduceError: if something cannot be read.
    """
    plain = path if (archive := in_archive(path)) is None else archive[0]
    if is_url(plain) or not os.path.isdir(plain):
        return _sha256(plain).hexdigest()
    digest = hashlib.sha256()
    for file in sorted(file for file in Path(plain).rglob("*") if file.is_file()):
        name = str(file.relative_to(plain)).encode("utf-8", "surrogateescape")
        digest.update(hashlib.sha256(name).digest() + _sha256(str(file)).digest())
    return digest.hexdigest()


def _sha256(path: str) -> "hashlib._Hash":
    digest = hashlib.sha256()
    with _errors_named(path), _open_raw(path) as content:
        while chunk := content.read(BUFFER):
            digest.update(chunk)
    return digest
