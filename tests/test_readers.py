"""Files of any format hold the same pairs; what is wrong with one is said in one sentence."""

import csv
import gzip
import io
import json
import os
import sys
import tempfile
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import polib
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transduce.config import Reading, Source
from transduce.data import readers
from transduce.data.readers import entries, guess_format, read_pairs, sources
from transduce.data.text import Pair, Skipped, one_line
from transduce.errors import TransduceError, UsageError
from transduce.preparing import prepare_corpus

Write = Callable[[str, str | bytes], Path]
Texts = list[tuple[str, str]]


def read(path: object, **reading: Any) -> Texts:
    files = [str(one) for one in path] if isinstance(path, list) else str(path)
    return [(pair.src, pair.tgt) for pair in read_pairs(files, Reading(**reading))]


def lines(path: object, **reading: Any) -> list[int]:
    return [pair.line for pair in read_pairs(str(path), Reading(**reading))]


def refused(path: object, **reading: Any) -> str:
    with pytest.raises(TransduceError) as caught:
        read(path, **reading)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def wrong(path: object, **reading: Any) -> str:
    with pytest.raises(UsageError) as caught:
        read(path, **reading)
    return str(caught.value)


# --- the same pairs in every container -----------------------------------------------------------


def as_tsv(pairs: Texts) -> bytes:
    return "".join(f"{src}\t{tgt}\n" for src, tgt in pairs).encode()


def as_csv(pairs: Texts) -> bytes:
    out = io.StringIO()
    csv.writer(out).writerows([("src", "tgt"), *pairs])
    return out.getvalue().encode()


def as_arrow_csv(pairs: Texts) -> bytes:
    out = io.BytesIO()
    pa.csv.write_csv(table(pairs), out)
    return out.getvalue()


def as_jsonl(pairs: Texts) -> bytes:
    rows = [json.dumps({"n": i, "src": s, "tgt": t}) for i, (s, t) in enumerate(pairs)]
    return "\n".join(rows).encode()


def as_plain_jsonl(pairs: Texts) -> bytes:
    rows = [json.dumps({"tgt": t, "src": s}, ensure_ascii=False) + "\r\n" for s, t in pairs]
    return "".join(rows).encode()


def table(pairs: Texts, kind: Any = None) -> Any:
    kind = kind or pa.string()
    names = ("src", "tgt")
    return pa.table({name: pa.array([p[i] for p in pairs], kind) for i, name in enumerate(names)})


def as_parquet(pairs: Texts, kind: Any = None, **options: Any) -> bytes:
    out = io.BytesIO()
    pq.write_table(table(pairs, kind), out, **options)
    return out.getvalue()


def as_nested_parquet(pairs: Texts) -> bytes:
    out = io.BytesIO()
    rows = [{"id": i, "translation": {"de": t, "en": s}} for i, (s, t) in enumerate(pairs)]
    kind = pa.struct([("de", pa.string()), ("en", pa.string())])
    schema = pa.schema([("id", pa.int64()), ("translation", kind)])
    pq.write_table(pa.Table.from_pylist(rows, schema), out)
    return out.getvalue()


def xml(text: str) -> str:
    return escape(text, {"\r": "&#13;"})


def as_tmx(pairs: Texts) -> bytes:
    units = "".join(
        f'<tu><tuv xml:lang="en-US"><seg>{xml(s)}</seg></tuv>'
        f'<tuv xml:lang="de"><seg>{xml(t)}</seg></tuv></tu>\n'
        for s, t in pairs
    )
    return f'<tmx version="1.4"><header srclang="en-US"/><body>{units}</body></tmx>'.encode()


def as_xliff(pairs: Texts) -> bytes:
    units = "".join(
        f"<trans-unit><source>{xml(s)}</source><target>{xml(t)}</target></trans-unit>\n"
        for s, t in pairs
    )
    languages = 'source-language="en" target-language="de"'
    return f'<xliff version="1.2"><file {languages}><body>{units}</body></file></xliff>'.encode()


def catalogue(pairs: Texts) -> polib.POFile:
    found = polib.POFile()
    found.metadata = {"Content-Type": "text/plain; charset=UTF-8"}
    for number, (src, tgt) in enumerate(pairs):
        found.append(polib.POEntry(msgid=src, msgstr=tgt, msgctxt=f"{number:04}"))
    return found


def as_po(pairs: Texts) -> bytes:
    return str(catalogue(pairs)).encode()


def as_mo(pairs: Texts) -> bytes:
    return bytes(catalogue(pairs).to_binary())


LINEAR = {"a.tsv": as_tsv, "a.txt": as_tsv}
FREE: dict[str, Callable[[Texts], bytes]] = {
    "a.csv": as_csv,
    "b.csv": as_arrow_csv,
    "a.jsonl": as_jsonl,
    "a.ndjson": as_plain_jsonl,
    "a.parquet": as_parquet,
    "b.pq": lambda pairs: as_parquet(pairs, pa.large_string(), row_group_size=2),
    "c.parquet": lambda pairs: as_parquet(
        pairs, pa.dictionary(pa.int32(), pa.string()), compression="zstd", row_group_size=3
    ),
}
MARKED: dict[str, Callable[[Texts], bytes]] = {"a.tmx": as_tmx}
FULL: dict[str, Callable[[Texts], bytes]] = {"a.xlf": as_xliff, "a.po": as_po, "a.mo": as_mo}

PAIRS = [
    ("Die Tür ist offen.", "门开着。"),
    ('He said "no", twice.', "Er sagte „nein“, 'zweimal'."),
    (" spaces  inside and out ", "  Rand\u00a0"),
    ("", "nothing here"),
    ("nichts dort", ""),
    ("", ""),
    ("one\u2028line\u0085only", "e\u0301 und é"),
    ("comma, semicolon; <tag> & entity &amp; %", "\\n \\t {json} [x] #"),
    ('"quoted from end to end"', '""'),
    ("=1+2", "😀👨\u200d👩\u200d👧 ﬁ"),
    ("last", "letzte"),
]
BROKEN = [
    ("a\nb", "A\tB"),
    ("CR\rand\r\nCRLF", "\tTab first"),
    ("ends with one\n", '"\n\n"\n'),
    *PAIRS,
]


def flat(pairs: Texts) -> Texts:
    return [(one_line(src), one_line(tgt)) for src, tgt in pairs]


@pytest.mark.parametrize("name", LINEAR)
def test_columns_between_tabs(write: Write, name: str) -> None:
    assert read(write(name, LINEAR[name](PAIRS))) == flat(PAIRS)


def test_two_files(write: Write) -> None:
    """A02: U+2028 in the source does not move the pairs that follow."""
    src = write("a.en", "".join(f"{src}\n" for src, _ in PAIRS))
    tgt = write("a.de.gz", gzip.compress("\r\n".join(tgt for _, tgt in PAIRS).encode()))
    assert read([src, tgt]) == flat(PAIRS)
    assert lines(write("a.tsv", as_tsv(PAIRS))) == list(range(1, 12))


@pytest.mark.parametrize("name", FREE)
def test_containers_of_any_text(write: Write, name: str) -> None:
    """A11: breaks and tabs inside a text become one space."""
    content = FREE[name](BROKEN)
    assert read(write(name, content)) == flat(BROKEN)
    assert read(write(f"{name}.gz", gzip.compress(content))) == flat(BROKEN)
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr(name, content)
    assert read(write("a.zip", archive.getvalue())) == flat(BROKEN)


@pytest.mark.parametrize("name", [*MARKED, *FULL])
def test_containers_of_translators(write: Write, name: str) -> None:
    if name in FULL:  # an empty side is no translation there
        pairs = [(src, tgt) for src, tgt in BROKEN if src and tgt]
        content = FULL[name](pairs)
    else:
        pairs = BROKEN
        content = MARKED[name](pairs)
    assert read(write(name, content)) == flat(pairs)
    packed = write(f"{name}.gz", gzip.compress(content))
    assert read(packed, languages=["en", "de"]) == flat(pairs)
    if name in ("a.tmx", "a.xlf"):
        assert read(packed, languages=["de", "en"]) == [(tgt, src) for src, tgt in flat(pairs)]


def test_records_within_records(write: Write) -> None:
    columns = ["translation.en", "translation.de"]
    nested = write("a.parquet", as_nested_parquet(BROKEN))
    assert read(nested, columns=columns) == flat(BROKEN)
    rows = [json.dumps({"translation": {"en": s, "de": t}}) for s, t in BROKEN]
    assert read(write("a.jsonl", "\n".join(rows)), columns=columns) == flat(BROKEN)
    assert "did you mean 'translation.de'? (its columns are: id, translation.de" in wrong(
        nested, columns=["translation.en", "translation.d"]
    )
    assert "no column 'src'" in wrong(nested)
    assert "holds a record, which is no text" in refused(nested, columns=["translation", "id"])
    dotted = write("b.jsonl", '{"a.b": "literal", "a": {"b": "inner", "c": "C"}}\n')
    assert read(dotted, columns=["a.b", "a.c"]) == [("literal", "C")]


ODD = st.sampled_from("\t\n\r\x0b\x0c\x1e\x85\u2028\u2029\u00a0\"',;\\&<>#|ü门😀\u0301 ")
ANY = st.text(ODD | st.characters(exclude_categories=["Cs"], exclude_characters="\ufeff"))


def drawn(texts: st.SearchStrategy[str], **sizes: Any) -> st.SearchStrategy[Texts]:
    return st.lists(st.tuples(texts, texts), **sizes)


def written(name: str, content: bytes) -> Texts:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(content)
        return read(path)


@pytest.mark.parametrize("name", FREE)
@settings(max_examples=60)
@given(pairs=drawn(ANY))
def test_any_text_comes_back(name: str, pairs: Texts) -> None:
    assert written(name, FREE[name](pairs)) == flat(pairs)


@given(drawn(ANY.map(lambda text: "".join(c for c in text if c not in "\t\n\r"))))
def test_any_line_comes_back(pairs: Texts) -> None:
    assert written("a.tsv", as_tsv(pairs)) == flat(pairs)


PRINTED = ANY.map(lambda text: "".join(c for c in text if c.isprintable() or c in "\n\t\u2028"))


@given(drawn(PRINTED, min_size=1))
def test_any_segment_comes_back(pairs: Texts) -> None:
    assert written("a.tmx", as_tmx(pairs)) == flat(pairs)


@pytest.mark.parametrize("name", FULL)
@settings(max_examples=60)
@given(pairs=drawn(PRINTED.filter(lambda text: bool(text.strip())), max_size=8))
def test_any_message_comes_back(name: str, pairs: Texts) -> None:
    assert written(name, FULL[name](pairs)) == flat(pairs)


# --- which file is what --------------------------------------------------------------------------


def test_the_format_is_seen_from_the_ending(write: Write, tmp_path: Path) -> None:
    known = {
        "a.tsv": "tsv", "a.TXT": "tsv", "a": "tsv", "-": "tsv", "a.CSV.gz": "csv",
        "a.jsonl": "jsonl", "a.ndjson.zst": "jsonl", "a.zip/b.tmx": "tmx", "a.xliff": "xliff",
        "https://x.org/a.parquet": "parquet", "a.pot": "po", "a.gmo": "mo", "a.json": "tsv",
    }  # fmt: skip
    assert {path: guess_format(path) for path in known} == known
    assert guess_format(str(tmp_path)) == guess_format(f"{tmp_path}#train") == "huggingface"
    assert guess_format("x" * 5000) == "tsv"
    path = write("pairs.data", as_csv(PAIRS))
    assert read(path, format="csv") == flat(PAIRS)


def test_what_is_said_of_all_and_of_one() -> None:
    reading = Reading(format="csv", columns=["a", "b"], languages=["en", "de"])
    own = Source(path="x", format="tsv", header=False, weight=2.0, tag="<t>")
    first, second = sources([own, Source(path=["s.en", "s.de"], format="text")], reading)
    assert first == Source(
        path="x", format="tsv", columns=["a", "b"], header=False, languages=["en", "de"],
        weight=2.0, tag="<t>",
    )  # fmt: skip
    assert second.path == ["s.en", "s.de"] and second.format == "text"
    assert sources(["one.csv"], Reading())[0].path == "one.csv"
    assert sources("one.csv", Reading())[0].format == "csv"


def test_files_that_are_not_what_is_said() -> None:
    assert "not 3 files" in wrong(["a", "b", "c"])
    with pytest.raises(UsageError):
        sources("", Reading())
    with pytest.raises(UsageError):
        sources([], Reading())
    assert "text needs two files" in wrong("a.txt", format="text")
    assert "not as jsonl" in wrong(["a", "b"], format="jsonl")
    for pair in (["a.tsv", "b.tsv"], ["a.en", "b.jsonl.gz"], ["a.tmx", "b"]):
        assert "list of tables" in wrong(pair)
    both = sources(["a.tsv", "b.tsv"], Reading(format="text"))
    assert both[0].format == "text"
    assert "only one side" in wrong(["-", "-"])


@pytest.mark.parametrize(("left", "right"), [(3, 4), (4, 3), (0, 2), (5, 1)])
def test_unequal_counts_are_told(write: Write, left: int, right: int) -> None:
    """A04: both names and both counts."""
    src, tgt = str(write("source.txt", "x\n" * left)), str(write("target.txt", "y\n" * right))
    assert f"{src} has {left} lines but {tgt} has {right}" in refused([src, tgt])


def test_standard_input(monkeypatch: pytest.MonkeyPatch, write: Write) -> None:
    for name, make in (("tsv", as_tsv), ("parquet", as_parquet), ("mo", as_mo)):
        stream = io.TextIOWrapper(io.BytesIO(make([("a", "A")])))
        monkeypatch.setattr(sys, "stdin", stream)
        assert read("-", format=name) == [("a", "A")]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"A\nB\n")))
    assert read([str(write("s", "a\nb\n")), "-"]) == [("a", "A"), ("b", "B")]


# --- TSV -----------------------------------------------------------------------------------------


def test_lines_that_lack_a_column(write: Write) -> None:
    path = write("p.tsv", "a\tA\nb\tB\tattribution\nno tab\n\tC\n\n")
    assert list(read_pairs(str(path))) == [
        ("a", "A", 1), ("b", "B", 2), ("no tab", "", 3), ("", "C", 4), ("", "", 5),
    ]  # fmt: skip
    assert read(path, columns=[3, 1]) == [
        ("", "a"), ("attribution", "b"), ("", "no tab"), ("", ""), ("", ""),
    ]  # fmt: skip


def test_columns_of_a_tsv(write: Write) -> None:
    path = write("p.tsv", '\ufeffid\ten\t"de"\r\n1\ta\t"A"\r\n2\tb\r\n')
    assert read(path, columns=["en", '"de"']) == [("a", '"A"'), ("b", "")]
    assert lines(path, columns=["en", "id"]) == [2, 3]
    assert read(path, columns=[3, "en"]) == [('"A"', "a"), ("", "b")]
    assert read(path, columns=[2, 3], header=True) == [("a", '"A"'), ("b", "")]
    assert read(path, columns=[1, 2])[0] == ("id", "en")
    message = wrong(path, columns=["en", "ed"])
    assert "no column 'ed'; did you mean 'id'?" in message
    assert '(its columns are: id, en, "de"); choose with data.columns, e.g.' in message
    assert "no column 4" in wrong(path, columns=[4, 1], header=True)
    assert "no line has a column 7, the longest has 3" in wrong(path, columns=[1, 7])
    assert "no line has a column 2" in wrong(write("q.tsv", "a\nb\n"), columns=[1, 2])
    for columns in ([0, 1], [1, -1]):
        assert "counted from 1" in wrong(path, columns=columns)
        assert "no column" in wrong(path, columns=columns, header=True)
    assert read(write("empty.tsv", ""), columns=[1, 7]) == []


# --- CSV -----------------------------------------------------------------------------------------


def test_records_of_several_lines(write: Write) -> None:
    path = write(
        "p.csv",
        '\n\n"src",other,tgt\n"a ""x"", y\nz",1,A\r\n\r\n"\r\n\r\n",,"B\rC"\nshort\nd,2,D,more\n'
        '" e",3," "\nf\rg,4,G\r\r\n',
    )
    assert list(read_pairs(str(path))) == [
        ('a "x", y z', "A", 4),
        (" ", "B C", 7),
        ("short", "", 10),
        ("d", "D", 11),
        (" e", " ", 12),
        ("f g", "G ", 13),
    ]


def test_columns_of_a_csv(write: Write) -> None:
    path = write("p.csv", "a,A\nb,B\n")
    assert read(path, header=False, columns=[1, 2]) == [("a", "A"), ("b", "B")]
    assert read(path, header=False, columns=[2, 1]) == [("A", "a"), ("B", "b")]
    assert read(path, columns=[2, "a"]) == [("B", "b")]
    assert "columns are numbers" in wrong(path, header=False)
    assert "no column 'src'; did you" not in wrong(path)
    assert "(its columns are: a, A)" in wrong(path)
    assert "no column 3" in wrong(path, columns=[1, 3])
    assert "no line has a column 3" in wrong(path, columns=[1, 3], header=False)
    assert "counted from 1" in wrong(path, columns=[0, 1], header=False)
    assert "no column -1" in wrong(path, columns=[-1, 1])
    many = write("many.csv", ",".join(f"column{i}" for i in range(50_000)))
    assert len(wrong(many)) < 500
    assert read(write("empty.csv", "")) == read(write("head.csv", "src,tgt\n")) == []


def test_broken_csv(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    start = 'src,tgt\n"a\nb",A\n'
    assert "p.csv, line 4: broken CSV" in refused(write("p.csv", start + '"never closed,B\nc,C\n'))
    assert "p.csv, line 4: broken CSV" in refused(write("p.csv", start + 'x,"a "b" c"\n'))
    long = "long " * 60_000  # the library's own limit is lower
    assert read(write("long.csv", f'src,tgt\n"{long}",x\n')) == [(long, "x")]
    monkeypatch.setattr(readers, "LONGEST_FIELD", 10_000)
    endless = write("endless.csv", start + '"' + "no end in sight\n" * 1000)
    assert "endless.csv, line 4: broken CSV (field larger" in refused(endless)
    assert "line 3: not UTF-8" in refused(write("bytes.csv", b"src,tgt\na,A\n\xff,B\n"))


# --- JSON lines ----------------------------------------------------------------------------------


def test_records_that_lack_something(write: Write) -> None:
    path = write(
        "p.jsonl",
        '{"src": "a", "tgt": null}\n\n  \n{"tgt": "B"}\n{"src": "c", "tgt": "C", "x": [1]}\n{}\n',
    )
    assert list(read_pairs(str(path))) == [
        ("a", "", 1), ("", "B", 4), ("c", "C", 5), ("", "", 6),
    ]  # fmt: skip
    assert read(path, columns=[2, 1]) == [("", "a"), ("", "B"), ("C", "c"), ("", "")]
    message = wrong(write("q.jsonl", '\n{"source": "a", "tgt": "A", "in": {"x": 1}}\n'))
    assert "q.jsonl, line 2: no column 'src'; did you mean 'source'?" in message
    assert "(its columns are: source, tgt, in.x)" in message
    for number in (0, -1, 3):
        assert f"no column {number}" in wrong(path, columns=[1, number])
    nested = write("n.jsonl", '{"t": {"a": "x", "b": "y"}}\n{"t": null}\n{"t": "flat"}\n')
    assert read(nested, columns=["t.a", "t.b"]) == [("x", "y"), ("", ""), ("", "")]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "not JSON"),
        ("src\ttgt", "not JSON"),
        ('["a", "b"]', "not a JSON object"),
        ('"text"', "not a JSON object"),
        ('{"src": 1.5, "tgt": "A"}', "column 'src' holds 1.5, which is no text"),
        ('{"src": true, "tgt": "A"}', "holds true"),
        ('{"src": ["a"], "tgt": "A"}', "holds a list"),
        ('{"src": {"a": 1}, "tgt": "A"}', "holds a record"),
        ('{"src": 1e999, "tgt": "A"}', "holds Infinity"),
        ('{"src": %s, "tgt": "A"}' % ("7" * 4000), "holds 777"),
        ('{"src": %s, "tgt": "A"}' % ("7" * 5000), "not JSON"),
        ('{"src": "\\ud83d", "tgt": "A"}', "half a surrogate pair"),
        ('{"src": "a", "tgt": "x\\udc00y"}', "half a surrogate pair"),
        ("[" * 100_000, "not JSON"),
        ('{"src": "a", "tgt": "A"} {}', "not JSON"),
    ],
)
def test_broken_records(write: Write, line: str, reason: str) -> None:
    message = refused(write("p.jsonl", f'{{"src": "a", "tgt": "A"}}\n\n{line}\n'))
    assert "p.jsonl, line 3: " in message and reason in message
    assert len(message) < 400


@pytest.mark.parametrize("depth", [20, 300, 600, 900, 940, 960, 980, 2000])
def test_records_of_any_depth(write: Write, depth: int) -> None:
    for opened, closed in ("[", "]"), ('{"a":', "}"):
        deep = opened * depth + "1" + closed * depth
        refused(write("p.jsonl", f'{{"src": {deep}, "tgt": "A"}}'))
        refused(write("p.jsonl", f'{{"other": {deep}, "tgt": "A"}}'))


def test_whole_surrogate_pairs_are_characters(write: Write) -> None:
    assert read(write("p.jsonl", '{"src": "\\ud83d\\ude00", "tgt": "\\u0000"}')) == [("😀", "\0")]


# --- Parquet -------------------------------------------------------------------------------------


def test_columns_of_a_parquet_file(write: Write) -> None:
    rows = {"id": [1, 2], "en": ["a", None], "de": ["A", "B"], "en.us": ["c", "d"]}
    out = io.BytesIO()
    pq.write_table(pa.table(rows), out)
    path = write("p.parquet", out.getvalue())
    assert read(path, columns=["en", "de"]) == [("a", "A"), ("", "B")]
    assert read(path, columns=[3, 2]) == [("A", "a"), ("B", "")]
    assert read(path, columns=["de", "de"]) == [("A", "A"), ("B", "B")]
    assert read(path, columns=["en.us", "de"]) == [("c", "A"), ("d", "B")]
    assert lines(path, columns=["en", "de"]) == [1, 2]
    assert "no column 'src' (its columns are: id, en, de, en.us)" in wrong(path)
    for number in (0, -1, 5):
        assert f"no column {number}" in wrong(path, columns=[number, 1])
    assert "p.parquet, row 1: column 'id' holds 1, which" in refused(path, columns=["id", "en"])
    first_null = [{"t": None}, {"t": {"a": "x", "b": "y"}}]
    out = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(first_null), out)
    path = write("q.parquet", out.getvalue())
    assert read(path, columns=["t.a", "t.b"]) == [("", ""), ("x", "y")]
    assert "no column 't.c'" in wrong(path, columns=["t.a", "t.c"])


def test_broken_parquet(write: Write) -> None:
    whole = as_parquet(PAIRS * 300, row_group_size=1000)
    assert "broken Parquet" in refused(write("text.parquet", "src\ttgt\n"))
    assert "broken Parquet" in refused(write("empty.parquet", b""))
    for cut in (len(whole) - 1, len(whole) // 2, 8):
        assert "broken Parquet" in refused(write("cut.parquet", whole[:cut]))
    assert "cut.parquet.gz: " in refused(write("cut.parquet.gz", gzip.compress(whole)[:-9]))
    assert read(write("none.parquet", as_parquet([]))) == []
    misnamed = as_parquet([]).replace(b"src", b"\xffrc")
    assert "misnamed.parquet: broken" in refused(write("misnamed.parquet", misnamed))
    assert "no column 'x'" in wrong(write("none.parquet", as_parquet([])), columns=["x", "tgt"])


def test_parquet_that_is_not_utf8(write: Write) -> None:
    good = [b"good"] * 1500
    offsets = pa.array([0] + [4 * i for i in range(1, 1501)] + [6001], pa.int32())
    text = pa.StringArray.from_buffers(
        1501, offsets.buffers()[1], pa.py_buffer(b"".join(good) + b"\xff")
    )
    out = io.BytesIO()
    pq.write_table(pa.table({"src": text, "tgt": ["x"] * 1501}), out)
    assert "p.parquet, row 1501: not UTF-8" in refused(write("p.parquet", out.getvalue()))


@settings(max_examples=150)
@given(st.data())
def test_no_damage_to_parquet_makes_a_traceback(data: st.DataObject) -> None:
    content = bytearray(as_parquet(PAIRS))
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    try:
        written("p.parquet", bytes(content))
    except TransduceError as error:
        assert "p.parquet" in str(error)


# --- datasets, catalogues ------------------------------------------------------------------------


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    return datasets


def test_datasets_in_folders(library: Any, tmp_path: Path) -> None:
    columns = {"src": [s for s, _ in BROKEN], "tgt": [t for _, t in BROKEN], "n": [0] * len(BROKEN)}
    one = library.Dataset.from_dict(columns)
    one.with_format("numpy").save_to_disk(tmp_path / "one")
    few = library.Dataset.from_dict({"src": ["a", "b"], "tgt": ["A", None]})
    library.DatasetDict({"train": one, "test": few}).save_to_disk(tmp_path / "two")
    assert read(tmp_path / "one") == flat(BROKEN)
    assert read(tmp_path / "one", columns=[2, 1]) == [(t, s) for s, t in flat(BROKEN)]
    assert read(f"{tmp_path}/two#test") == [("a", "A"), ("b", "")]
    assert all(type(text) is str for pair in read(tmp_path / "one") for text in pair)
    assert "say which part, e.g. " in wrong(tmp_path / "two")
    assert "(there are: train, test)" in wrong(f"{tmp_path}/two#valid")
    assert "(there are: train)" in wrong(f"{tmp_path}/one#valid")
    assert "did you mean 'src'" in wrong(tmp_path / "one", columns=["srcs", "tgt"])
    assert "row 1: column 'n' holds 0" in refused(tmp_path / "one", columns=["n", "tgt"])
    assert "neither" in refused(tmp_path)
    translation = library.Dataset.from_dict(
        {"translation": [None, {"en": "a", "de": "A"}]},
        features=library.Features({"translation": library.Translation(["en", "de"])}),
    )
    translation.save_to_disk(tmp_path / "records")
    names = ["translation.en", "translation.de"]
    assert read(tmp_path / "records", columns=names) == [("", ""), ("a", "A")]
    assert "no column 'translation.fr'" in wrong(
        tmp_path / "records", columns=["translation.en", "translation.fr"]
    )


def test_a_dataset_of_the_hub(library: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(name: str, split: str, streaming: bool) -> Any:
        if name != "some/where" or not streaming:
            raise FileNotFoundError("not there\nat all")

        def rows() -> Iterator[dict[str, str]]:
            yield {"src": f"a {split}", "tgt": "A"}
            raise ConnectionError("lost\nand gone")

        return library.IterableDataset.from_generator(rows)

    monkeypatch.setattr(library, "load_dataset", load)
    for name, part in (("some/where#valid", "valid"), ("some/where", "train")):
        found = read_pairs(name, Reading(format="huggingface"))
        assert next(found) == (f"a {part}", "A", 1)
        with pytest.raises(TransduceError, match=r"cannot read some/where\S*: \S.*$"):
            next(found)
    with pytest.raises(UsageError, match="row 1: no column 'de'"):
        read("some/where", format="huggingface", columns=["src", "de"])
    assert "cannot read other: not there" in refused("other", format="huggingface")


def test_the_library_may_be_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    assert "pip install 'transduce[datasets]'" in refused(tmp_path)


def test_what_a_catalogue_skips(write: Write) -> None:
    """A12: what is no pair is told, and no pair for those who only want pairs."""
    path = write("a.po", as_po([("a", "A"), ("b", "")]))
    source = sources(str(path), Reading())[0]
    kinds = [type(entry) for entry in entries(source)]
    assert kinds == [Skipped, Pair, Skipped]
    assert read(path) == [("a", "A")]


# --- memory --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a.tsv", "a.csv", "a.jsonl", "a.parquet"])
def test_memory_does_not_grow_with_the_file(tmp_path: Path, name: str) -> None:
    texts = ("an ordinary sentence of some length " * 30, "ein ganz gewöhnlicher Satz " * 40)
    pairs = [texts] * 6_000  # some 13 MB of text
    content = {"a.tsv": as_tsv, **FREE}[name](pairs)
    path = tmp_path / name
    path.write_bytes(content)
    del content
    next(read_pairs(str(path)))  # what is imported on the way does not count
    tracemalloc.start()
    try:
        assert sum(1 for _ in read_pairs(str(path))) == 6_000
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 5 << 20


def test_corpora_are_equal_whatever_the_container(write: Write, tmp_path: Path) -> None:
    """From a file to a prepared corpus: the same shard, texts and ids, from each format."""
    pairs = [(f"the house {i:02} stands", f"das Haus {i} steht, „{i}“ & <so>") for i in range(12)]
    everything = LINEAR | FREE | MARKED | FULL
    columns = ["src", "tgt", "src_text", "tgt_text"]
    shards = {}
    for number, (name, make) in enumerate(everything.items()):
        path = write(f"{number}-{name}", make(pairs))
        settings = {"data": {"train": str(path)}, "tokenizer": {"kind": "char", "joint": True}}
        corpus = prepare_corpus(settings, tmp_path / f"corpus-{number}", lambda line: None)
        shard = pa.ipc.open_file(str(corpus.folder / "train-00000.arrow")).read_all()
        shards[name] = shard.select(columns).to_pydict()
    assert shards["a.tsv"]["src_text"] == [src for src, _ in pairs]
    for name, shard in shards.items():
        assert shard == shards["a.tsv"], name


def open_files() -> set[str]:
    """Return the files that this process has open."""
    if not Path("/proc/self/fd").is_dir():
        pytest.skip("needs /proc")
    return {os.path.realpath(link) for link in Path("/proc/self/fd").iterdir()}


@pytest.mark.parametrize(
    ("name", "content", "columns"),
    [
        ("p.tsv", "en\tde\na\tA\n", ["en", "fr"]),
        ("p.csv", "en,de\na,A\n", ["en", "fr"]),
        ("p.jsonl", '{"en": "a", "de": "A"}\n', ["en", "fr"]),
    ],
)
def test_no_file_stays_open_after_an_error(
    write: Write, name: str, content: str, columns: list[str]
) -> None:
    """Not even while the error is kept, and with it all that its frames hold."""
    path = write(name, content)
    with pytest.raises(UsageError) as kept:
        read(path, columns=columns)
    assert os.path.realpath(path) not in open_files()
    assert kept.value.__traceback__ is not None


def test_aligned_files_are_closed_after_an_error(write: Write) -> None:
    longer, shorter = write("a.en", "a\nb\nc\n"), write("a.de", "A\n")
    with pytest.raises(TransduceError, match="3 lines but") as kept:
        list(read_pairs([str(longer), str(shorter)]))
    assert not {os.path.realpath(longer), os.path.realpath(shorter)} & open_files()
    assert kept.value.__traceback__ is not None
