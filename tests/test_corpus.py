"""Preparation: pairs dropped as pairs and reported, nothing unknown, read back as written."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from transduce.config import Config, DataConfig, parse
from transduce.data import corpus as module
from transduce.data.corpus import (
    Corpus,
    Dropped,
    clean,
    load_tokenizers,
    prepare,
    survey,
)
from transduce.errors import TransduceError

Write = Callable[[str, str | bytes], Path]


def recipe(train: Path | list[Path], valid: Path, **tokenizer: object) -> Config:
    files = [str(path) for path in train] if isinstance(train, list) else str(train)
    return parse(
        {"data": {"train": files, "valid": str(valid)}, "tokenizer": {"kind": "char", **tokenizer}},
        "test",
    )


def test_pairs_are_dropped_as_pairs(write: Write) -> None:
    """A04, A26: blanks on one side never shift the other."""
    src, tgt = write("s", "a\n\nc\n  \nd\n"), write("t", "A\nB\nC\nD\n\n")
    dropped = Dropped()
    pairs = list(clean([str(src), str(tgt)], DataConfig(), dropped))
    assert pairs == [("a", "A", 1), ("c", "C", 3)]
    assert dropped.lines == {"empty source": [2, 4], "empty target": [5]}
    assert dropped.summary()[0] == "2 pairs left out: empty source (line 2, 4)"


def test_prepare_and_read_back(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ROWS", 3)  # several record batches
    pairs = [(f"ab{i} c", f"x{i % 7} yz") for i in range(11)]
    train = write("t.tsv", "".join(f"{s}\t{t}\n" for s, t in pairs))
    config = recipe(train, write("v.tsv", "ab\tx y\n"), joint=False)
    corpus = prepare(config, tmp_path / "corpus")
    source, target = load_tokenizers(tmp_path / "corpus", config)
    assert len(corpus.train) == 11
    assert len(corpus.valid) == 1
    for i, (src, tgt) in enumerate(pairs):
        ids = corpus.train[i]
        assert (source.decode(ids[0].tolist()), target.decode(ids[1].tolist())) == (src, tgt)
        assert (len(ids[0]), len(ids[1])) == (
            corpus.train.src_lengths[i],
            corpus.train.tgt_lengths[i],
        )
    manifest = corpus.manifest["train"]
    assert manifest["unknown_tokens"] == 0
    assert manifest["target_tokens"] == int(corpus.train.tgt_lengths.sum()) + 11
    assert not list(tmp_path.glob("*.part"))


def test_byte_order_mark_and_carriage_returns_stay_outside(write: Write, tmp_path: Path) -> None:
    """A03."""
    train = write("t.tsv", b"\xef\xbb\xbfhello\tworld\r\nbye\tnow\r\n" * 1)
    config = recipe(train, train)
    corpus = prepare(config, tmp_path / "corpus")
    source, _ = load_tokenizers(tmp_path / "corpus", config)
    pieces = "".join(source.pieces(range(4, len(source))))
    assert "\r" not in pieces and "\ufeff" not in pieces
    assert corpus.manifest["train"]["unknown_tokens"] == 0


def test_one_enormous_line(write: Write, tmp_path: Path) -> None:
    """A05: reported by number, in bounded time; alone, it is a clear error."""
    huge = "a " * 200_000
    train = write("t.tsv", f"a b\tA B\n{huge}\t{huge}\nc d\tC D\n")
    before = time.monotonic()
    corpus = prepare(recipe(train, write("v.tsv", "a b\tA B\n")), tmp_path / "corpus")
    assert time.monotonic() - before < 10
    assert len(corpus.train) == 2
    assert any("line 2" in line and "longer than" in line for line in corpus.report())
    only = str(write("only.tsv", f"{huge}\t{huge}\n"))
    with pytest.raises(TransduceError, match=r"no usable pair in .*longer than.*line 1"):
        survey(only, DataConfig())


def test_long_pairs_are_left_out_and_listed(write: Write, tmp_path: Path) -> None:
    train = write("t.tsv", "a b\tA B\n" + "a" * 300 + "\tA\n" + "a\t" + "A" * 300 + "\n")
    corpus = prepare(recipe(train, write("v.tsv", "a\tA\n")), tmp_path / "corpus")
    assert corpus.manifest["train"]["dropped"] == {"more than 256 pieces": [2, 3]}


def test_nothing_usable(write: Write) -> None:
    with pytest.raises(TransduceError, match="the file is empty"):
        survey(str(write("e.tsv", "")), DataConfig())
    with pytest.raises(TransduceError, match="2 pairs left out: empty target"):
        survey(str(write("n.tsv", "no tab\nnone here\n")), DataConfig())


def test_a_failed_preparation_leaves_no_corpus(write: Write, tmp_path: Path) -> None:
    src, tgt = write("s", "a\nb\nc\n"), write("t", "A\nB\nC\nD\n")
    with pytest.raises(TransduceError, match=r"3 lines .* 4"):
        prepare(recipe([src, tgt], write("v.tsv", "a\tA\n")), tmp_path / "corpus")
    assert not (tmp_path / "corpus").exists()


def test_what_is_no_corpus(tmp_path: Path) -> None:
    with pytest.raises(TransduceError, match="not a prepared corpus"):
        Corpus(tmp_path)
    (tmp_path / "manifest.json").write_text("{}")
    (tmp_path / "train.arrow").write_bytes(b"nonsense")
    with pytest.raises(TransduceError, match="not a prepared corpus"):
        Corpus(tmp_path)
