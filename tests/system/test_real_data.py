"""Real data sets, where TRANSDUCE_DATA points to them: what is recognised in them."""

import gzip
import os
from pathlib import Path

import pytest

from transduce.choices import from_text
from transduce.data.files import read_lines
from transduce.data.readers import read_pairs
from transduce.data.statistics import Survey

pytestmark = pytest.mark.data
needs_data = pytest.mark.skipif(
    "TRANSDUCE_DATA" not in os.environ, reason="TRANSDUCE_DATA does not point to the data sets"
)
CATALOGUES = Path("/usr/lib/libreoffice/program/resource/de/LC_MESSAGES")
DATA = Path(os.environ.get("TRANSDUCE_DATA", "."))


def survey(files: str | list[str]) -> Survey:
    found = Survey()
    for pair in read_pairs(files):
        if pair.src and pair.tgt:
            found.add(pair.src, pair.tgt)
    return found


@needs_data
def test_captions_are_text_of_one_script() -> None:
    files = [str(DATA / "multi30k" / f"train.{side}.gz") for side in ("en", "de")]
    found = survey(files)
    assert found.pairs == 29_000
    chosen = from_text(found, {}).settings
    assert chosen["tokenizer"] == {"kind": "bpe", "vocabulary": 8000, "joint": True}
    assert chosen["evaluation"]["metrics"] == ["bleu", "chrf"]


@needs_data
def test_commands_are_small_sets_of_words(tmp_path: Path) -> None:
    table = tmp_path / "scan.tsv"
    with gzip.open(DATA / "scan" / "tasks_train_simple.txt.gz", "rt") as lines:
        rows = [line.removeprefix("IN: ").replace(" OUT: ", "\t") for line in lines]
    table.write_text("".join(rows))
    chosen = from_text(survey(str(table)), {}).settings
    assert chosen["tokenizer"]["source"] == chosen["tokenizer"]["target"] == {"kind": "word"}


@needs_data
def test_chinese_and_its_byte_order_mark() -> None:
    path = str(DATA / "tatoeba" / "cmn-eng.29156.txt.gz")
    first = next(read_lines(path))
    assert not first.startswith("\ufeff")
    pairs = list(read_pairs(path))
    assert len(pairs) == 29_156
    assert [pair.line for pair in pairs if not (pair.src and pair.tgt)] == [29_156]  # a blank line
    assert all("\t" not in pair.tgt for pair in pairs)
    chosen = from_text(survey(path), {}).settings
    assert chosen["tokenizer"]["joint"] is False


@needs_data
def test_everyday_sentences_in_an_archive() -> None:
    pairs = list(read_pairs(str(DATA / "tatoeba" / "deu-eng.2018-05-13.zip")))
    assert len(pairs) == 169_813
    assert pairs[0][:2] == ("Hi.", "Hallo!")


@pytest.mark.skipif(
    not CATALOGUES.is_dir(), reason="Debian's package libreoffice-l10n-de is not installed"
)
def test_catalogues_keep_their_pairs_in_tmx_and_xliff(tmp_path: Path) -> None:
    """Debian's own MO files, written again as TMX and XLIFF by translate-toolkit."""
    from translate.storage import tmx, xliff

    seen = 0
    for catalogue in sorted(CATALOGUES.glob("*.mo"))[:6]:
        pairs = [(pair.src, pair.tgt) for pair in read_pairs(str(catalogue))]
        memory, document = tmx.tmxfile(), xliff.xlifffile()
        for src, tgt in pairs:
            memory.addtranslation(src, "en", tgt, "de")
            unit = xliff.xliffunit(src)
            unit.target = tgt
            document.addunit(unit)
        (tmp_path / "a.tmx").write_bytes(bytes(memory))
        (tmp_path / "a.xlf").write_bytes(bytes(document))
        for name in ("a.tmx", "a.xlf"):
            again = [(pair.src, pair.tgt) for pair in read_pairs(str(tmp_path / name))]
            assert again == pairs, (catalogue.name, name)
        seen += len(pairs)
    assert seen > 1_000
