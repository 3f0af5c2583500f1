"""Real data sets, where TRANSDUCE_DATA points to them: what is recognised in them."""

import gzip
import os
from pathlib import Path

import pytest

from transduce.choices import from_text
from transduce.data.files import read_lines
from transduce.data.readers import read_pairs
from transduce.data.statistics import Survey
from transduce.errors import TransduceError
from transduce.inspection.alignment import Prepared
from transduce.inspection.alignment_error import read_gold
from transduce.inspection.words import Word

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


def aligned(sides: list[list[str]]) -> list[Prepared]:
    words = [[[Word(word, ()) for word in side.split()] for side in both] for both in sides]
    return [Prepared(i, ([], []), src, tgt) for i, (src, tgt) in enumerate(words, start=1)]


@needs_data
@pytest.mark.parametrize(
    ("language", "sure", "possible"), [("fr", 4_038, 17_438), ("ro", 6_198, 6_198)]
)
def test_gold_alignments(language: str, sure: int, possible: int) -> None:
    """No link is out of bounds; for French there are as many as is published."""
    name = "enfr" if language == "fr" else "roen"
    sides = [line.split("|||") for line in read_lines(DATA / "align" / f"{name}.src-tgt")]
    found = read_gold(str(DATA / "align" / f"{name}.gold"), aligned(sides))
    assert sum(map(len, found.sure)) == sure
    assert sum(map(len, found.possible)) == possible
    assert (found.first, found.certain) == (1, True)


@needs_data
def test_gold_alignments_with_a_mistake(tmp_path: Path) -> None:
    """Both files of the German set have a link beyond its sentence; else they are the same."""
    folder = DATA / "align" / "German-English_WordAlignment.zip" / "German-English_WordAlignment"
    texts = (read_lines(folder / f"test.{language}") for language in ("de", "en"))
    pairs = aligned([list(both) for both in zip(*texts, strict=True)])
    found = []
    for name, line, wrong, right in (
        ("de-en.wa", 63, "12-16", "12-12"), ("de-en.ref.wa", 776, "63 12 16", "63 12 12"),
    ):  # fmt: skip
        with pytest.raises(TransduceError, match=f"{name}, line {line}: link 12-16"):
            read_gold(str(folder / name), pairs)
        lines = list(read_lines(folder / name))
        lines[line - 1] = lines[line - 1].replace(wrong, right)
        (tmp_path / name).write_text("\n".join(lines) + "\n")
        found.append(read_gold(str(tmp_path / name), pairs))
    assert found[0] == found[1]
    assert found[0].first == 0
    assert sum(map(len, found[0].sure)) == 1_233
