"""A prepared corpus: what was in the files stands in it, pair by pair, and nothing else."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from transduce.config import TokenizerConfig
from transduce.data import chunks
from transduce.data import corpus as module
from transduce.data.corpus import Corpus, Encoded, Origin, load_tokenizers, save_tokenizers
from transduce.data.tokenizer import ByteTokenizer, train_tokenizer
from transduce.errors import TransduceError, UsageError
from transduce.preparing import prepare_corpus

Write = Callable[[str, str | bytes], Path]
Prepare = Callable[..., Corpus]
COLUMNS = ["src", "tgt", "src_text", "tgt_text", "line"]


@pytest.fixture
def prepare(tmp_path: Path) -> Prepare:
    """Prepare training (and validation) files in this process, into the folder `corpus`."""

    def prepare(train: Any, valid: Any = None, **sections: dict[str, Any]) -> Corpus:
        data = {"train": train, "workers": 1} | ({"valid": valid} if valid else {})
        settings: dict[str, Any] = {"tokenizer": {"kind": "char"}} | sections
        settings["data"] = data | sections.get("data", {})
        return prepare_corpus(settings, tmp_path / "corpus", lambda line: None)

    return prepare


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make chunks of seven pairs, and record batches of three."""
    monkeypatch.setattr(chunks, "CHUNK", 7)
    monkeypatch.setattr(chunks, "ROWS", 3)
    monkeypatch.setattr(module, "ROWS", 3)


def rows(corpus: Corpus, part: str = "train") -> list[dict[str, Any]]:
    """Read a part with nothing but pyarrow."""
    found: list[dict[str, Any]] = []
    for path in sorted(corpus.folder.glob(f"{part}-*.arrow")):
        table = pa.ipc.open_file(path.read_bytes()).read_all()
        assert table.column_names == COLUMNS
        found += table.to_pylist()
    return found


def texts(corpus: Corpus, part: str = "train") -> list[tuple[str, str, int]]:
    return [(row["src_text"], row["tgt_text"], row["line"]) for row in rows(corpus, part)]


def checks(corpus: Corpus, part: str = "train") -> dict[tuple[str, str], list[str]]:
    """Return the lines that each check and action is reported for."""
    found = corpus.report()["parts"][part]["checks"]
    return {(row["name"], row["action"]): row["lines"] for row in found}


def dropped(corpus: Corpus) -> list[list[str]]:
    lines = (corpus.folder / "dropped.tsv").read_bytes().decode().split("\n")
    assert lines.pop() == ""
    return [line.split("\t") for line in lines]


def test_what_was_written_is_read_back(write: Write, prepare: Prepare, small: None) -> None:
    pairs = [(f"ab{i} c", f"x{i % 7} yz") for i in range(25)]
    train = write("t.tsv", "".join(f"{s}\t{t}\n" for s, t in pairs))
    corpus = prepare(
        str(train), str(write("v.tsv", "ab\tx y\n")), tokenizer={"kind": "char", "joint": False}
    )
    assert [len(pa.ipc.open_file(p.read_bytes()).read_all()) for p in corpus.train.paths] == [
        7, 7, 7, 4,
    ]  # fmt: skip
    assert texts(corpus) == [(s, t, i) for i, (s, t) in enumerate(pairs, start=1)]
    assert texts(corpus, "valid") == [("ab", "x y", 1)]
    source, target = load_tokenizers(corpus.folder, corpus.tokenizer(), "NFC")
    for i, (row, (src, tgt)) in enumerate(zip(rows(corpus), pairs, strict=True)):
        assert row["src"] == source.encode(src)
        assert row["tgt"] == target.encode(tgt)
        assert (source.decode(row["src"]), target.decode(row["tgt"])) == (src, tgt)
        ids = corpus.train[i]
        assert (ids[0].tolist(), ids[1].tolist()) == (row["src"], row["tgt"])
        assert corpus.train.text(i) == (src, tgt)
    assert (len(corpus.train), len(corpus.valid)) == (25, 1)
    assert corpus.survey().pairs == 25
    manifest = corpus.manifest
    assert (manifest["source_vocabulary"], manifest["target_vocabulary"]) == (
        len(source), len(target),
    )  # fmt: skip
    assert manifest["train"]["unknown_tokens"] == 0
    for side in ("source", "target"):
        lengths = [len(row[side[:1] + {"s": "rc", "t": "gt"}[side[0]]]) for row in rows(corpus)]
        assert manifest["train"][f"{side}_tokens"] == sum(lengths) + 25
    surplus = max(len(row["tgt"]) - len(row["src"]) for row in rows(corpus))
    assert manifest["train"]["longest_surplus"] == surplus


def test_the_hashes_are_those_of_the_shards(write: Write, prepare: Prepare, small: None) -> None:
    import hashlib

    corpus = prepare(str(write("t.tsv", "".join(f"a{i}\tb\n" for i in range(20)))))
    shards = corpus.manifest["train"]["shards"]
    assert [shard["rows"] for shard in shards] == [7, 7, 6]
    for shard in shards:
        content = (corpus.folder / shard["file"]).read_bytes()
        assert (len(content), hashlib.sha256(content).hexdigest()) == (
            shard["bytes"], shard["sha256"],
        )  # fmt: skip


def test_line_separators_end_no_line(write: Write, prepare: Prepare) -> None:
    """A02."""
    src = write("s", "one\u2028two\nthree\n")
    corpus = prepare([str(src), str(write("t", "eins\nzwei\n"))])
    assert texts(corpus) == [("one two", "eins", 1), ("three", "zwei", 2)]
    assert checks(corpus)["line breaks or tabs inside", "fix"] == ["1"]


def test_byte_order_mark_carriage_return_and_nul(write: Write, prepare: Prepare) -> None:
    """A03."""
    train = write("t.tsv", b"\xef\xbb\xbfhello\tworld\r\nbye\tnow\r\nab\x00cd\te\x00f\r\n")
    corpus = prepare(str(train), tokenizer={"kind": "char", "byte_fallback": False})
    assert texts(corpus) == [("hello", "world", 1), ("bye", "now", 2), ("abcd", "ef", 3)]
    assert checks(corpus)["control characters", "fix"] == ["3"]
    source, _ = load_tokenizers(corpus.folder, corpus.tokenizer(), "NFC")
    pieces = "".join(source.pieces(range(4, len(source))))
    assert not set("\r\ufeff\x00") & set(pieces)
    assert corpus.manifest["train"]["unknown_tokens"] == 0
    assert all(1 not in row["src"] + row["tgt"] for row in rows(corpus))


def test_pairs_are_dropped_as_pairs(write: Write, prepare: Prepare) -> None:
    """A04, A26: blanks on one side never shift the other."""
    src, tgt = write("s", "a\n\nc\n  \nd\n"), write("t", "A\nB\nC\nD\n\n")
    corpus = prepare([str(src), str(tgt)])
    assert texts(corpus) == [("a", "A", 1), ("c", "C", 3)]
    assert checks(corpus)["empty source", "drop"] == ["2", "4"]
    assert checks(corpus)["empty target", "drop"] == ["5"]
    assert corpus.manifest["train"]["dropped"] == {"empty source": 2, "empty target": 1}
    assert dropped(corpus) == [
        ["part", "reason", "file", "line", "source", "target"],
        ["train", "empty source", "", "2", "", "B"],
        ["train", "empty source", "", "4", "  ", "D"],
        ["train", "empty target", "", "5", "d", ""],
    ]
    part = corpus.report()["parts"]["train"]
    assert (part["read"], part["kept"], part["dropped"]) == (5, 2, 3)


def test_one_pair_is_left(write: Write, prepare: Prepare) -> None:
    """A26."""
    corpus = prepare(str(write("t.tsv", "a\t\n\tA\nb\tB\n")))
    assert texts(corpus) == [("b", "B", 3)]
    assert sum(corpus.manifest["train"]["dropped"].values()) == 2


def test_validation_pairs_are_dropped_as_pairs_too(write: Write, prepare: Prepare) -> None:
    valid = write("v.tsv", "a\t\nb\tB\n" + "c" * 300 + "\tC\n")
    corpus = prepare(str(write("t.tsv", "b\tB\nc\tC\n")), str(valid))
    assert [line for _, _, line in texts(corpus, "valid")] == [2, 3]  # long ones stay
    assert checks(corpus, "valid")["empty target", "drop"] == ["1"]
    assert ["valid", "empty target", "", "1", "a", ""] in dropped(corpus)


def test_sides_of_unequal_length(write: Write, prepare: Prepare, tmp_path: Path) -> None:
    """A04."""
    src, tgt = write("s", "a\nb\nc\n"), write("t", "A\nB\nC\nD\n")
    with pytest.raises(TransduceError, match=rf"{src} has 3 lines but {tgt} has 4"):
        prepare([str(src), str(tgt)])
    assert not (tmp_path / "corpus").exists()


def test_one_enormous_line(write: Write, prepare: Prepare) -> None:
    """A05: reported by number, in bounded time; alone, it is a clear error."""
    huge = "a " * 200_000
    before = time.monotonic()
    corpus = prepare(str(write("t.tsv", f"a b\tA B\n{huge}\t{huge}\nc d\tC D\n")))
    assert time.monotonic() - before < 10
    assert texts(corpus) == [("a b", "A B", 1), ("c d", "C D", 3)]
    assert checks(corpus)["longer than 20,000 characters", "drop"] == ["2"]
    assert all(len(field) <= 1000 for row in dropped(corpus) for field in row)


def test_nothing_but_an_enormous_line(write: Write, prepare: Prepare, tmp_path: Path) -> None:
    huge = "a " * 200_000
    with pytest.raises(TransduceError, match=r"no usable pair in .*t.tsv: .*longer.*\(line 1\)"):
        prepare(str(write("t.tsv", f"{huge}\t{huge}\n")))
    assert not (tmp_path / "corpus").exists()


def test_more_pieces_than_there_are(write: Write, prepare: Prepare) -> None:
    """A06."""
    train = str(write("t.tsv", "a b c\ta b c\n" * 3))
    corpus = prepare(train, tokenizer={"kind": "bpe", "vocabulary": 8000, "byte_fallback": False})
    sizes = corpus.report()["vocabularies"]
    assert 4 < sizes["source"]["size"] == corpus.manifest["source_vocabulary"] < 50
    assert sizes["source"]["size"] == sizes["target"]["size"]
    assert max(id_ for row in rows(corpus) for id_ in row["src"]) < sizes["source"]["size"]


def test_fewer_pieces_than_letters(write: Write, prepare: Prepare, tmp_path: Path) -> None:
    """A06."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    train = str(write("t.tsv", f"{letters}\t{letters}\n"))
    settings = {"kind": "bpe", "vocabulary": 5, "byte_fallback": False}
    with pytest.raises(UsageError, match=r"needs at least (2[6-9]|3\d)\b"):
        prepare(train, tokenizer=settings)
    assert not (tmp_path / "corpus").exists()
    corpus = prepare(train, tokenizer=settings | {"vocabulary": 31})
    assert corpus.manifest["source_vocabulary"] == 31


def test_long_pairs_are_left_out_and_listed(write: Write, prepare: Prepare, small: None) -> None:
    lines = [f"a{i}\tb" for i in range(10)]
    lines[1], lines[8] = "a" * 300 + "\tA", "a\t" + "A" * 257
    corpus = prepare(str(write("t.tsv", "\n".join(lines) + "\n")))
    assert [line for _, _, line in texts(corpus)] == [1, 3, 4, 5, 6, 7, 8, 10]
    assert checks(corpus)["more than 256 pieces", "drop"] == ["2", "9"]
    assert [row[:4] for row in dropped(corpus)[1:]] == [
        ["train", "more than 256 pieces", "", "2"],
        ["train", "more than 256 pieces", "", "9"],
    ]
    assert len(corpus.train) == corpus.manifest["train"]["pairs"] == 8


def test_a_pair_of_just_the_greatest_length_stays(write: Write, prepare: Prepare) -> None:
    """A character is a piece, and the space before the text is another."""
    lines = "".join(f"{'a' * n}\tb\n" for n in (4, 5, 6))
    corpus = prepare(str(write("t.tsv", lines)), data={"max_length": 6})
    assert [len(row["src"]) for row in rows(corpus)] == [5, 6]
    assert checks(corpus)["more than 6 pieces", "drop"] == ["3"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "no usable pair in .*t.tsv: the file is empty"),
        ("no tab\nnone here\n", r"2 pairs left out: empty target \(lines 1, 2\)"),
        ("a" * 300 + "\tb\n", r"1 pair left out: more than 256 pieces \(line 1\)"),
    ],
)
def test_nothing_usable(
    write: Write, prepare: Prepare, tmp_path: Path, content: str, message: str
) -> None:
    with pytest.raises(TransduceError, match=message):
        prepare(str(write("t.tsv", content)))
    assert not (tmp_path / "corpus").exists()


def test_nothing_usable_in_validation(write: Write, prepare: Prepare, tmp_path: Path) -> None:
    with pytest.raises(TransduceError, match=r"no usable pair in .*v.tsv: 1 pair left out: empty"):
        prepare(str(write("t.tsv", "a\tb\n")), str(write("v.tsv", "a\t\n")))
    assert not (tmp_path / "corpus").exists()


def test_every_pair_is_a_leak(write: Write, prepare: Prepare) -> None:
    valid = str(write("v.tsv", "a\tb\nc\td\n"))
    with pytest.raises(TransduceError, match=r"no usable pair.*2 pairs left out: leaks"):
        prepare(str(write("t.tsv", "a\tb\nC\td\n")), valid, cleaning={"leaks": "drop"})


def test_without_training_pairs(prepare: Prepare) -> None:
    with pytest.raises(UsageError, match="no train pairs"):
        prepare("")


# --- several sources -----------------------------------------------------------------------------


def test_several_sources(write: Write, prepare: Prepare, small: None) -> None:
    """Weights, tags and formats of each; lines named with their file."""
    german = write("de.tsv", "".join(f"s{i}\tde{i}\n" for i in range(9)) + "x\t\n")
    src, tgt = write("fr.src", "one\n\ntwo\n"), write("fr.tgt", "un\nnon\ndeux\n")
    lines = write("it.jsonl", '{"src": "uno", "tgt": "one"}\n\n{"src": "", "tgt": "two"}\n')
    corpus = prepare(
        [
            {"path": str(german), "weight": 2.0, "tag": "<2de>"},
            {"path": [str(src), str(tgt)], "tag": "<2fr>"},
            {"path": str(lines), "weight": 0.5},
        ],
        str(write("v.tsv", "<2de> s1\tde1\n")),
    )
    assert texts(corpus) == [
        *((f"<2de> s{i}", f"de{i}", i + 1) for i in range(9)),
        ("<2fr> one", "un", 1),
        ("<2fr> two", "deux", 3),
        ("uno", "one", 1),
    ]
    assert corpus.train.origins == [Origin(0, 9, 2.0), Origin(9, 11, 1.0), Origin(11, 12, 0.5)]
    assert checks(corpus)["empty target", "drop"] == ["de.tsv:10"]
    assert checks(corpus)["empty source", "drop"] == ["fr.src:2", "it.jsonl:3"]
    assert [row[1:4] for row in dropped(corpus)[1:]] == [
        ["empty target", "de.tsv", "10"],
        ["empty source", "fr.src", "2"],
        ["empty source", "it.jsonl", "3"],
    ]
    inputs = corpus.report()["parts"]["train"]["inputs"]
    assert [(one["format"], one["read"], one["kept"], one["tag"]) for one in inputs] == [
        ("tsv", 10, 9, "<2de>"),
        ("text", 3, 2, "<2fr>"),
        ("jsonl", 2, 1, ""),
    ]
    assert checks(corpus)["leaks", "report"] == ["de.tsv:2"]
    source, _ = load_tokenizers(corpus.folder, corpus.tokenizer(), "NFC")
    assert corpus.tokenizer().symbols == ["<2de>", "<2fr>"]
    first, second = rows(corpus)[0]["src"], rows(corpus)[9]["src"]
    assert "<2de>" in source.pieces(first) and "<2fr>" in source.pieces(second)
    assert sum("2" in piece for piece in source.pieces(first)) == 1


def test_files_of_one_name_are_told_apart(write: Write, prepare: Prepare, tmp_path: Path) -> None:
    for folder in ("de", "fr"):
        (tmp_path / folder).mkdir()
    one, other = write("de/a.tsv", "a\t\nb\tc\n"), write("fr/a.tsv", "a\tb\nc\t\n")
    corpus = prepare([{"path": str(one)}, {"path": str(other)}])
    assert checks(corpus)["empty target", "drop"] == [f"{one}:1", f"{other}:2"]


def test_an_origin_without_pairs(write: Write, prepare: Prepare) -> None:
    files = [write("a.tsv", "a\tb\n"), write("b.tsv", ""), write("c.tsv", "c\t\n"),
             write("d.tsv", "d\te\n")]  # fmt: skip
    sources = [
        {"path": str(p), "weight": w} for p, w in zip(files, (1.0, 2.0, 3.0, 4.0), strict=True)
    ]
    corpus = prepare(sources)
    assert texts(corpus) == [("a", "b", 1), ("d", "e", 1)]
    assert [o for o in corpus.train.origins if o.first < o.end] == [
        Origin(0, 1, 1.0), Origin(1, 2, 4.0),
    ]  # fmt: skip


def test_an_impossible_tag_is_refused_before_anything_is_read(
    write: Write, prepare: Prepare, tmp_path: Path
) -> None:
    for tag in ("two words", "<s>", "e\u0301"):
        source = {"path": str(write("t.tsv", "a\tb\n")), "tag": tag}
        with pytest.raises(UsageError, match="choose another"):
            prepare([source])
    assert not (tmp_path / "corpus").exists()


def test_symbols_come_before_tags(write: Write, prepare: Prepare) -> None:
    source = {"path": str(write("t.tsv", "a <x> b\tc\n")), "tag": "<b>"}
    corpus = prepare([source], tokenizer={"kind": "byte", "joint": True, "symbols": ["<x>", "<b>"]})
    source_tokenizer, target_tokenizer = load_tokenizers(corpus.folder, corpus.tokenizer(), "NFC")
    assert source_tokenizer is target_tokenizer
    assert source_tokenizer.pieces([260, 261]) == ["<x>", "<b>"]
    assert texts(corpus) == [("<b> a <x> b", "c", 1)]
    assert rows(corpus)[0]["src"][0] == 261
    assert not list(corpus.folder.glob("*.spm"))


# --- reading -------------------------------------------------------------------------------------


def test_indices_and_lengths_across_all_borders(
    write: Write, prepare: Prepare, small: None
) -> None:
    """Shards end after 7 and 14 pairs, record batches after 3, 6, 7, 10, ..."""
    pairs = [("a" * (1 + i % 5), "b" * (1 + i % 4)) for i in range(20)]
    lines = [f"{s}\t{t}" for s, t in pairs]
    lines[5] = "\tnothing"  # so that shards are not of equal size
    train = prepare(str(write("t.tsv", "\n".join(lines)))).train
    del pairs[5]
    src = [len(s) + 1 for s, _ in pairs]
    tgt = [len(t) + 1 for _, t in pairs]
    assert len(train) == 19
    for first in range(20):
        for end in range(first, 20):
            found = train.lengths(first, end)
            assert (found[0].tolist(), found[1].tolist()) == (src[first:end], tgt[first:end])
            assert found[0].dtype == found[1].dtype == np.int32
    assert [len(train[i][0]) for i in range(19)] == src
    assert [train.text(i) for i in range(19)] == pairs
    for wrong in (-1, 19, 1000):
        with pytest.raises(IndexError):
            train[wrong]
        with pytest.raises(IndexError):
            train.text(wrong)
    with pytest.raises(IndexError):
        train.lengths(0, 20)
    with pytest.raises(IndexError):
        train.lengths(-1, 3)


def test_what_was_read_outlives_closing(write: Write, prepare: Prepare) -> None:
    train = prepare(str(write("t.tsv", "abc\td\n"))).train
    src, _ = train[0]
    before = src.tolist()
    assert train._rows
    train.close()
    assert not train._rows and not train._files
    for path in train.paths:
        path.unlink()  # the memory map is still there
    assert src.tolist() == before
    with pytest.raises(TransduceError, match=r"cannot read .*train-00000.arrow"):
        train[0]


def test_a_shard_of_the_right_size_but_broken(write: Write, prepare: Prepare) -> None:
    corpus = prepare(str(write("t.tsv", "abc\td\n")))
    path = corpus.train.paths[0]
    path.write_bytes(b"\x00" * path.stat().st_size)
    with pytest.raises(TransduceError, match=r"cannot read .*train-00000.arrow.*anew"):
        Corpus(corpus.folder).train[0]


def test_a_corpus_without_validation(write: Write, prepare: Prepare) -> None:
    corpus = prepare(str(write("t.tsv", "abc\td\n")))
    assert len(corpus.valid) == 0
    assert [side.tolist() for side in corpus.valid.lengths(0, 0)] == [[], []]


# --- what is no corpus ---------------------------------------------------------------------------


def damaged(corpus: Corpus, change: Callable[[dict[str, Any]], Any]) -> None:
    path = corpus.folder / "manifest.json"
    manifest = json.loads(path.read_text())
    changed = change(manifest)
    path.write_text(json.dumps(manifest if changed is None else changed))


DAMAGE: dict[str, Callable[[dict[str, Any]], Any]] = {
    "nothing in it": lambda m: m.clear(),
    "a list": lambda m: [m],
    "a number": lambda m: 3,
    "another format": lambda m: m.update(format=1),
    "no format": lambda m: m.pop("format"),
    "train a text": lambda m: m.update(train="yes"),
    "train a list": lambda m: m.update(train=[1]),
    "no shards": lambda m: m["train"].pop("shards"),
    "shards a number": lambda m: m["train"].update(shards=3),
    "a shard that is not there": lambda m: m["train"]["shards"][0].update(file="train-00009.arrow"),
    "a shard elsewhere": lambda m: m["train"]["shards"][0].update(file="../elsewhere.arrow"),
    "a source that is not there": lambda m: m["train"]["shards"][0].update(source=7),
    "another size": lambda m: m["train"]["shards"][0].update(bytes=7),
    "no weights": lambda m: m["train"].update(inputs=[{}]),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_a_damaged_manifest(write: Write, prepare: Prepare, tmp_path: Path, what: str) -> None:
    corpus = prepare(str(write("t.tsv", "abc\td\n")))
    (tmp_path / "elsewhere.arrow").write_bytes(corpus.train.paths[0].read_bytes())
    damaged(corpus, DAMAGE[what])
    with pytest.raises(TransduceError, match=r"corpus is not a prepared corpus: "):
        Corpus(corpus.folder)


def test_what_is_no_corpus(tmp_path: Path) -> None:
    with pytest.raises(TransduceError, match=r"not a prepared corpus: .*No such file"):
        Corpus(tmp_path)
    for content in (b"", b"{}", b"\xff\xfe", b"[" * 10_000):
        (tmp_path / "manifest.json").write_bytes(content)
        with pytest.raises(TransduceError, match="not a prepared corpus"):
            Corpus(tmp_path)


def test_a_truncated_shard_is_named(write: Write, prepare: Prepare) -> None:
    corpus = prepare(str(write("t.tsv", "abc\td\n")))
    path = corpus.train.paths[0]
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(
        TransduceError, match=rf"train-00000.arrow has {size - 8} bytes, not {size}"
    ):
        Corpus(corpus.folder)


def test_a_damaged_tokenizer_table_or_report(write: Write, prepare: Prepare) -> None:
    corpus = prepare(str(write("t.tsv", "abc\td\n")))
    corpus.manifest["tokenizer"] = {"kind": "magic"}
    with pytest.raises(TransduceError, match=r"\[tokenizer\] table is damaged"):
        corpus.tokenizer()
    (corpus.folder / "report.json").write_text("{")
    with pytest.raises(TransduceError, match=r"cannot read .*report.json"):
        corpus.report()


# --- tokenizers ----------------------------------------------------------------------------------


@pytest.mark.parametrize("joint", [True, False])
def test_tokenizers_come_back(tmp_path: Path, joint: bool) -> None:
    one = train_tokenizer(["abc"], "char", 50, normalization="NFC", byte_fallback=False)
    other = one if joint else train_tokenizer(["xy"], "char", 300, normalization="NFC")
    save_tokenizers(tmp_path, one, other)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == (["joint.spm"] if joint else ["source.spm", "target.spm"])
    source, target = load_tokenizers(tmp_path, TokenizerConfig(kind="char", joint=joint), "NFC")
    assert source.encode("cab") == one.encode("cab")
    assert target.encode("xyab") == other.encode("xyab")
    assert (source is target) == joint


def test_bytes_on_one_side_need_no_file(tmp_path: Path) -> None:
    learnt = train_tokenizer(["abc"], "char", 50, normalization="NFC", byte_fallback=False)
    save_tokenizers(tmp_path, ByteTokenizer(["<x>"], "NFC"), learnt)
    config = TokenizerConfig.model_validate(
        {"joint": False, "symbols": ["<x>"], "source": {"kind": "byte"}, "target": {"kind": "char"}}
    )
    assert [path.name for path in tmp_path.iterdir()] == ["target.spm"]
    source, target = load_tokenizers(tmp_path, config, "NFC")
    assert source.decode(source.encode("<x>é")) == "<x>é"
    assert target.encode("b") == learnt.encode("b")


def test_tokenizers_that_cannot_be_read(tmp_path: Path) -> None:
    config = TokenizerConfig(kind="char")
    with pytest.raises(TransduceError, match=r"cannot read .*joint.spm: No such file"):
        load_tokenizers(tmp_path, config, "NFC")
    (tmp_path / "joint.spm").write_bytes(b"nonsense")
    with pytest.raises(TransduceError, match=r"joint.spm: not a sentencepiece model"):
        load_tokenizers(tmp_path, config, "NFC")


def test_the_parts_of_an_empty_list_of_shards(tmp_path: Path) -> None:
    nothing = Encoded(tmp_path, [], [])
    assert (len(nothing), nothing.origins) == (0, [])
