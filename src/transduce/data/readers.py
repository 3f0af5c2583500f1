"""Files of any format in, pairs of text out.

Each reader yields, from front to back and in bounded memory (gettext catalogues are read whole),
the pairs of a file and what it skips, with line numbers; texts as they stand in the file.
"""

import csv
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import zip_longest
from pathlib import Path
from typing import Any

from transduce.config import STDIN, Paths, Reading, Source, is_url
from transduce.data.exchange import read_mo, read_po, read_tmx, read_xliff
from transduce.data.files import (
    ending,
    on_disk,
    open_bytes,
    read_lines,
    unreadable,
)
from transduce.data.text import Pair, Skipped, one_line
from transduce.errors import TransduceError, UsageError, did_you_mean

Entry = Pair | Skipped
Column = str | int

FORMATS = {
    ".tsv": "tsv", ".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet",
    ".pq": "parquet", ".tmx": "tmx", ".xlf": "xliff", ".xliff": "xliff", ".po": "po", ".pot": "po",
    ".mo": "mo", ".gmo": "mo",
}  # fmt: skip
"""What a file's ending says about it; any other file is a TSV."""
LONGEST_FIELD = 16 << 20
"""Characters of a field in a CSV; more is taken for a quote that is never closed."""
DEEPEST = 50
"""Records within records whose columns are named."""


def read_pairs(files: Paths | Sequence[Source], reading: Reading | None = None) -> Iterator[Pair]:
    """Yield the pairs of some files, each side on one line.

    Raises:
        TransduceError: if a file cannot be read or is broken; names file and line.
        UsageError: if the files are not what `reading` says.
    """
    for source in sources(files, reading or Reading()):
        for entry in entries(source):
            if isinstance(entry, Pair):
                yield Pair(one_line(entry.src), one_line(entry.tgt), entry.line)


def sources(files: Paths | Sequence[Source], reading: Reading) -> list[Source]:
    """Return where pairs come from, each with what `reading` says of all and its own format.

    Raises:
        UsageError: for none, more than two aligned files, or two that are no plain text.
        TransduceError: if a file's ending stands in an archive that cannot be read.
    """
    if isinstance(files, str):
        found = [Source(path=files)] if files else []
    elif files and all(isinstance(file, Source) for file in files):
        found = [file for file in files if isinstance(file, Source)]
    else:
        found = [Source(path=[str(file) for file in files])]
    if not found:
        raise UsageError("no pairs are given")
    return [_complete(source, reading) for source in found]


def _complete(source: Source, reading: Reading) -> Source:
    path = source.path
    if isinstance(path, list) and len(path) == 1:
        path = path[0]
    if not path or (isinstance(path, list) and len(path) != 2):
        raise UsageError(
            "pairs are one file (TSV, CSV, JSONL, Parquet, TMX, XLIFF, PO, MO) or two aligned text "
            f"files{f', not {len(path)} files' if path else ''}"
        )
    given = reading.model_dump(exclude_none=True, include=set(Reading.model_fields))
    given |= source.model_dump(exclude_none=True) | {"path": path}
    if isinstance(path, list):
        tables = (FORMATS[end] for end in map(ending, path) if end in FORMATS)
        if given.setdefault("format", next(tables, "text")) != "text":
            raise UsageError(
                f"{path[0]} and {path[1]}: two files are read as aligned text, not as "
                f"{given['format']}; several files of pairs are a list of tables in the recipe "
                '(and lines of text in files called so need format = "text")'
            )
    elif given.get("format") == "text":
        raise UsageError(f"{path}: the format text needs two files, one for each side")
    elif "format" not in given:
        given["format"] = guess_format(path)
    return Source.model_validate(given)


def guess_format(path: str) -> str:
    """Return the format that a file's ending names; a folder is a dataset of `datasets`."""
    if path != STDIN and not is_url(path) and os.path.isdir(_dataset_part(path)[0]):
        return "huggingface"
    return FORMATS.get(ending(path), "tsv")


def paths_of(source: Source) -> list[str]:
    """Return the one or two paths of a source."""
    return [source.path] if isinstance(source.path, str) else source.path


def from_copy(source: Source, copy: Path) -> Source:
    """Return a source that reads a copy in the place of standard input."""
    paths = [str(copy) if path == STDIN else path for path in paths_of(source)]
    return source.model_copy(update={"path": paths if len(paths) > 1 else paths[0]})


def shown(path: Paths) -> str:
    """Return the name of a source for messages."""
    return path if isinstance(path, str) else " and ".join(path)


def entries(source: Source) -> Iterator[Entry]:
    """Yield what a source (as `sources` completes it) holds, texts as they stand there.

    Files of lines are closed here, also when their reader stops at an error half-way.
    """
    kind = str(source.format)
    if isinstance(source.path, list):
        src_file, tgt_file = source.path
        if src_file == tgt_file == STDIN:
            raise UsageError("only one side can come from standard input")
        with closing(read_lines(src_file)) as src, closing(read_lines(tgt_file)) as tgt:
            yield from _aligned(src, tgt, src_file, tgt_file)
    elif kind in _LINE_READERS:
        with closing(read_lines(source.path)) as lines:
            yield from _LINE_READERS[kind](lines, source.path, source)
    else:
        yield from _READERS[kind](source.path, source)


def _aligned(
    sources: Iterator[str], targets: Iterator[str], src_file: str, tgt_file: str
) -> Iterator[Pair]:
    missing = object()
    sides = zip_longest(sources, targets, fillvalue=missing)
    for number, (src, tgt) in enumerate(sides, start=1):
        if src is missing or tgt is missing:
            longer = number + sum(1 for _ in sides)
            counts = (number - 1, longer) if src is missing else (longer, number - 1)
            raise TransduceError(
                f"{src_file} has {counts[0]} lines but {tgt_file} has {counts[1]}: "
                "line n of one must belong to line n of the other"
            )
        yield Pair(str(src), str(tgt), number)


def _tsv(read: Iterator[str], path: str, source: Source) -> Iterator[Pair]:
    """Columns between tabs; quotes are text. A line that lacks a column has an empty side."""
    columns = source.columns or [1, 2]
    lines = enumerate(read, start=1)
    if source.header or any(isinstance(column, str) for column in columns):
        _, header = next(lines, (0, ""))
        src, tgt = _places(columns, header.split("\t"), path)
    else:
        src, tgt = _numbers(columns, path)
    widest = 0
    if (src, tgt) == (0, 1):
        for number, line in lines:
            left, tab, rest = line.partition("\t")
            yield Pair(left, rest.partition("\t")[0], number)
            widest = 2 if tab else widest or 1
    else:
        for number, line in lines:
            fields = line.split("\t")
            yield Pair(_field(fields, src), _field(fields, tgt), number)
            widest = max(widest, len(fields))
    if source.columns:
        _check_width(path, src, tgt, widest)


def _csv(read: Iterator[str], path: str, source: Source) -> Iterator[Pair]:
    """RFC 4180: commas, fields with quotes doubled inside; the first record names the columns."""
    columns = source.columns or ["src", "tgt"]
    header = source.header is not False
    if not header and any(isinstance(column, str) for column in columns):
        raise UsageError(f"{path}: without a header, columns are numbers (data.columns = [1, 2])")
    csv.field_size_limit(LONGEST_FIELD)
    # A lone CR, which ends no line, would end a record for the library; it becomes a space anyway.
    lines = (line.replace("\r", "\v") + "\n" for line in read)
    rows = csv.reader(lines, strict=True)
    places = None if header else _numbers(columns, path)
    line, widest = 1, 0
    try:
        for row in rows:
            first, line = line, rows.line_num + 1
            if not row:  # a blank line is no record
                continue
            if places is None:
                places = _places(columns, row, path)
                continue
            yield Pair(_field(row, places[0]), _field(row, places[1]), first)
            widest = max(widest, len(row))
    except csv.Error as error:
        raise TransduceError(
            f"{path}, line {line}: broken CSV ({error}); is a quote never closed, or one inside a "
            "field not doubled?"
        ) from None
    if places and not header:
        _check_width(path, *places, widest)


def _field(fields: Sequence[str], place: int) -> str:
    return fields[place] if place < len(fields) else ""


def _places(columns: Sequence[Column], names: Sequence[str], path: str) -> tuple[int, int]:
    """Return where the columns stand in a header.

    Raises:
        UsageError: listing the columns there are.
    """
    places = []
    for column in columns:
        if isinstance(column, int) and 1 <= column <= len(names):
            places.append(column - 1)
        elif column in names:
            places.append(list(names).index(str(column)))
        else:
            raise _no_column(column, names, path)
    return places[0], places[1]


def _numbers(columns: Sequence[Column], path: str) -> tuple[int, int]:
    """Return where columns stand that are given by number."""
    src, tgt = (int(column) - 1 for column in columns)
    if min(src, tgt) < 0:
        raise UsageError(f"{path}: columns are counted from 1 (data.columns)")
    return src, tgt


def _check_width(path: str, src: int, tgt: int, widest: int) -> None:
    """Refuse the number of a column that no line of a file has."""
    if widest and max(src, tgt) >= widest:
        raise UsageError(
            f"{path}: no line has a column {max(src, tgt) + 1}, the longest has {widest} "
            "(data.columns)"
        )


def _no_column(column: Column, names: Sequence[str], where: str) -> UsageError:
    few = [name[:50] for name in names[:20]]
    return UsageError(
        f"{where}: no column {column!r}{did_you_mean(str(column), names[:1000])} (its columns are: "
        f"{', '.join(few)}{', ...' if len(names) > len(few) else ''}); choose with data.columns, "
        f"e.g. data.columns = {json.dumps(few[:2] or ['src', 'tgt'], ensure_ascii=False)}"
    )


def _jsonl(read: Iterator[str], path: str, source: Source) -> Iterator[Pair]:
    """One JSON object a line; blank lines are passed over."""
    columns = source.columns or ["src", "tgt"]
    first = True
    for number, line in enumerate(read, start=1):
        if not line or line.isspace():
            continue
        where = f"{path}, line {number}"
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise TransduceError(f"{where}: not JSON ({error})") from None
        if not isinstance(record, dict):
            raise TransduceError(f"{where}: not a JSON object such as {{"
                                 '"src": "...", "tgt": "..."}')  # fmt: skip
        src, tgt = (_value(record, column, where, first) for column in columns)
        yield Pair(src, tgt, number)
        first = False


def _value(record: Mapping[str, Any], column: Column, where: str, strict: bool) -> str:
    """Return the text of a column; a missing one is refused if `strict`, else empty.

    Raises:
        UsageError: listing the columns there are.
        TransduceError: if the value is no text.
    """
    keys = _keys(record, column)
    if not keys and strict:
        raise _no_column(column, leaves(record), where)
    value: Any = record if keys else None
    for key in keys:
        value = value[key]
    if value is None:
        return ""
    if not isinstance(value, str):
        if isinstance(value, dict | list):  # it may be deeper than anything can be that is shown
            held = "a record" if isinstance(value, dict) else "a list"
        else:
            held = json.dumps(value, default=str)[:60]
        raise TransduceError(f"{where}: column {column!r} holds {held}, which is no text")
    if not value.isascii():
        try:
            value.encode("utf-8")
        except UnicodeEncodeError:
            raise TransduceError(
                f"{where}: column {column!r} holds half a surrogate pair, which is no character"
            ) from None
    return value


def _keys(record: Mapping[str, Any], column: Column) -> list[str]:
    """Return the keys that lead to a column of a record; none if it has no such column."""
    if isinstance(column, int):
        return list(record)[column - 1 : column] if column > 0 else []
    if column in record:
        return [column]
    keys = column.split(".")
    inner: Any = record
    for key in keys:
        if not isinstance(inner, Mapping) or key not in inner:
            return []
        inner = inner[key]
    return keys


def leaves(record: Mapping[str, Any], prefix: str = "", depth: int = 0) -> list[str]:
    """Return the names of a record's columns, those inside records with dots."""
    names = []
    for name, value in record.items():
        if isinstance(value, Mapping) and value and depth < DEEPEST:
            names += leaves(value, f"{prefix}{name}.", depth + 1)
        else:
            names.append(prefix + name)
    return names


def _parquet(path: str, source: Source) -> Iterator[Pair]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    with on_disk(path) as local:
        try:
            with pq.ParquetFile(local, buffer_size=1 << 20, pre_buffer=False) as file:
                columns, wanted = _in_schema(source, file.schema_arrow, path)
                batches = file.iter_batches(1000, columns=wanted, use_threads=False)
                yield from _records(_rows(batches, path), columns, path)
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            reason = str(error).partition("\n")[0]
            raise TransduceError(f"cannot read {path}: broken Parquet ({reason})") from None


def _rows(batches: Iterable[Any], path: str) -> Iterator[Mapping[str, Any]]:
    before = 0
    for batch in batches:
        try:
            yield from batch.to_pylist()
        except UnicodeDecodeError:
            number = next(i for i in range(batch.num_rows) if not _decodes(batch.slice(i, 1)))
            raise TransduceError(f"{path}, row {before + number + 1}: not UTF-8") from None
        before += batch.num_rows


def _decodes(batch: Any) -> bool:
    try:
        batch.to_pylist()
    except UnicodeDecodeError:
        return False
    return True


def _in_schema(source: Source, schema: Any, path: str) -> tuple[list[str], list[str]]:
    """Return the columns asked for by name, and the outermost columns that hold them.

    Raises:
        UsageError: listing the columns there are.
    """
    record = _as_record(schema)
    columns, outermost = [], []
    for column in source.columns or ["src", "tgt"]:
        keys = _keys(record, column)
        if not keys:
            raise _no_column(column, leaves(record), path)
        columns.append(keys[0] if isinstance(column, int) else column)
        outermost.append(keys[0])
    return columns, list(dict.fromkeys(outermost))


def _as_record(fields: Iterable[Any]) -> dict[str, Any]:
    """Return a schema (or the type of a struct) in the form of its records."""
    import pyarrow as pa

    return {
        field.name: _as_record(field.type) if pa.types.is_struct(field.type) else None
        for field in fields
    }


def _records(
    rows: Iterable[Mapping[str, Any]], columns: Sequence[Column], path: str, strict: bool = False
) -> Iterator[Pair]:
    for number, row in enumerate(rows, start=1):
        where = f"{path}, row {number}"
        src, tgt = (_value(row, column, where, strict and number == 1) for column in columns)
        yield Pair(src, tgt, number)


def _huggingface(path: str, source: Source) -> Iterator[Pair]:
    """A dataset saved in a folder, or one of the hub; `name#split` chooses a part of it."""
    try:
        import datasets
    except ImportError:
        raise TransduceError(
            f"{path}: the library for these is missing: pip install 'transduce[datasets]'"
        ) from None
    name, split = _dataset_part(path)
    parts: Mapping[str, Any]
    try:
        if os.path.isdir(name):
            loaded = datasets.load_from_disk(name)
            alone = str(getattr(loaded, "split", None) or "train")
            parts = loaded if isinstance(loaded, Mapping) else {alone: loaded}
        else:
            split = split or "train"
            parts = {split: datasets.load_dataset(name, split=split, streaming=True)}
    except Exception as error:  # the library raises whatever its parts raise
        raise unreadable(path, error) from None
    if not split and len(parts) == 1:
        (split,) = parts
    if split not in parts:
        raise UsageError(
            f"{path}: say which part, e.g. {name}#{next(iter(parts), 'train')} (there are: "
            f"{', '.join(parts) or 'none'})"
        )
    # As it was saved, a dataset may give arrays for rows, and open the files that rows name.
    dataset = parts[split].with_format(None)
    columns: Sequence[Column] = source.columns or ["src", "tgt"]
    known = dataset.features is not None
    if known:
        columns, wanted = _in_schema(source, dataset.features.arrow_schema, path)
        dataset = dataset.select_columns(wanted)
    yield from _records(_loaded(dataset, path), columns, path, strict=not known)


def _loaded(dataset: Iterable[Mapping[str, Any]], path: str) -> Iterator[Mapping[str, Any]]:
    try:
        yield from dataset
    except Exception as error:
        raise unreadable(path, error) from None


def _dataset_part(path: str) -> tuple[str, str]:
    """Return name and part of `name#part`; a folder may have such a name itself."""
    name, mark, part = path.rpartition("#")
    return (name, part) if mark and not os.path.isdir(path) else (path, "")


def _tmx(path: str, source: Source) -> Iterator[Entry]:
    with open_bytes(path) as file:
        yield from read_tmx(file, path, source.languages)


def _xliff(path: str, source: Source) -> Iterator[Entry]:
    with open_bytes(path) as file:
        yield from read_xliff(file, path, source.languages)


def _po(path: str, source: Source) -> Iterator[Entry]:
    with on_disk(path) as local:
        yield from read_po(local, path)


def _mo(path: str, source: Source) -> Iterator[Entry]:
    with on_disk(path) as local:
        yield from read_mo(local, path)


_READERS: dict[str, Callable[[str, Source], Iterator[Entry]]] = {
    "parquet": _parquet, "huggingface": _huggingface, "tmx": _tmx, "xliff": _xliff, "po": _po,
    "mo": _mo,
}  # fmt: skip
_LINE_READERS: dict[str, Callable[[Iterator[str], str, Source], Iterator[Entry]]] = {
    "tsv": _tsv, "csv": _csv, "jsonl": _jsonl,
}  # fmt: skip
