"""The verbs that look at pairs before training."""

from pathlib import Path
from typing import TYPE_CHECKING

from transduce.cli.arguments import (
    Assignments,
    Columns,
    Languages,
    OptionalPairs,
    Word,
    app,
    data,
    files_of,
    reading_of,
    say,
    sources_of,
)
from transduce.config import merge
from transduce.errors import UsageError

if TYPE_CHECKING:
    pass


@app.command
def prepare(recipe: Path, /, *, out: Path, set: Assignments = None) -> None:
    """Clean and encode the pairs of a recipe into a corpus that stands alone, with a report.

    Killed and started again, it goes on where it stopped; started again with the same files and
    settings, it finds the corpus and uses it. `transduce train CORPUS --out RUN` trains on it.

    Args:
        recipe: a TOML file with the settings.
        out: folder of the corpus.
        set: change a setting, e.g. --set cleaning.duplicates=drop; may be repeated.
    """
    from transduce.config import overlay, read_recipe
    from transduce.data.corpus import PAGE
    from transduce.data.report import printed
    from transduce.preparing import prepare_corpus

    corpus = prepare_corpus(overlay(read_recipe(recipe), set or ()), out, say)
    for line in printed(corpus.report()):
        say(line)
    say(f"the report as a page: {out / PAGE}")
    print(out)


@data.command
def report(
    *pairs: Word,
    valid: OptionalPairs = None,
    test: OptionalPairs = None,
    format: str | None = None,
    columns: Columns = None,
    languages: Languages = None,
    out: Path | None = None,
    json: Path | None = None,
    set: Assignments = None,
) -> None:
    """Say what pairs look like: lengths, characters, duplicates, leaks, what cleaning would drop.

    Args:
        pairs: training pairs; or a recipe (ending in .toml), or a prepared corpus.
        valid: validation pairs, to be looked up among the training pairs.
        test: test pairs, likewise.
        format: text, tsv, csv, jsonl, parquet, tmx, xliff, po, mo or huggingface.
        columns: the source's and the target's column, by name or number.
        languages: the source's and the target's language.
        out: write the report as a page (HTML) here.
        json: write the report as JSON here.
        set: change a setting, e.g. --set tokenizer.kind=char; may be repeated.
    """
    import json as json_format
    from tempfile import TemporaryDirectory

    from transduce.config import overlay, read_recipe
    from transduce.data.corpus import MANIFEST, Corpus
    from transduce.data.files import open_text
    from transduce.data.page import report_page
    from transduce.data.report import printed
    from transduce.model_folder import write_file
    from transduce.preparing import prepare_corpus

    if len(pairs) == 1 and (Path(pairs[0]) / MANIFEST).exists():
        found = Corpus(Path(pairs[0])).report()
    else:
        recipe = len(pairs) == 1 and pairs[0].endswith(".toml")
        settings = read_recipe(Path(pairs[0])) if recipe else {}
        given = {"train": () if recipe else pairs, "valid": valid, "test": test}
        reading = reading_of(format, columns, languages)
        settings = merge(settings, {"data": files_of(given) | reading})
        with TemporaryDirectory() as folder:
            settings = overlay(settings, set or ())
            found = prepare_corpus(settings, Path(folder) / "corpus", say).report()
    with open_text(None) as printer:
        for line in printed(found):
            printer.write(line + "\n")
    if out is not None:
        write_file(out, report_page(found).encode())
    if json is not None:
        text = json_format.dumps(found, indent=1, ensure_ascii=False) + "\n"
        write_file(json, text.encode())


@data.command
def show(
    *pairs: Word,
    format: str | None = None,
    columns: Columns = None,
    languages: Languages = None,
    first: int | None = None,
) -> None:
    """Print pairs as TSV: the same whatever file they come from.

    Args:
        pairs: one file with both sides, or two aligned text files.
        format: text, tsv, csv, jsonl, parquet, tmx, xliff, po, mo or huggingface.
        columns: the source's and the target's column, by name or number.
        languages: the source's and the target's language.
        first: only so many pairs.
    """
    from itertools import islice

    from transduce.data.files import open_text
    from transduce.data.readers import read_pairs
    from transduce.data.splitting import as_tsv

    stream = read_pairs(sources_of(pairs, format, columns, languages))
    with open_text(None) as printer:
        for pair in stream if first is None else islice(stream, first):
            printer.write(as_tsv(pair))


@data.command
def sample(
    *pairs: Word,
    count: int = 100,
    seed: int = 1,
    format: str | None = None,
    columns: Columns = None,
    languages: Languages = None,
) -> None:
    """Print pairs drawn at random, as TSV, in the order of the file.

    Args:
        pairs: one file with both sides, or two aligned text files.
        count: how many.
        seed: another one draws others.
        format: text, tsv, csv, jsonl, parquet, tmx, xliff, po, mo or huggingface.
        columns: the source's and the target's column, by name or number.
        languages: the source's and the target's language.
    """
    from transduce.data.files import open_text
    from transduce.data.splitting import as_tsv
    from transduce.data.splitting import sample as draw

    if count < 0 or seed < 0:
        raise UsageError("--count and --seed must not be negative")
    found = draw(sources_of(pairs, format, columns, languages), count, seed)
    with open_text(None) as printer:
        for pair in found:
            printer.write(as_tsv(pair))


@data.command
def split(
    *pairs: Word,
    out: Path,
    valid: str = "10%",
    test: str = "10%",
    seed: int = 1,
    format: str | None = None,
    columns: Columns = None,
    languages: Languages = None,
) -> None:
    """Divide pairs into train.tsv, valid.tsv and test.tsv, equal sources on one side.

    Sources count as equal if they differ in case, spaces or Unicode form alone.

    Args:
        pairs: one file with both sides, or two aligned text files.
        out: folder to write to.
        valid: size of the validation part: a number of pairs, or a share such as 10%; 0 for none.
        test: size of the test part, likewise.
        seed: another one divides otherwise.
        format: text, tsv, csv, jsonl, parquet, tmx, xliff, po, mo or huggingface.
        columns: the source's and the target's column, by name or number.
        languages: the source's and the target's language.
    """
    from transduce.data.splitting import split as divide

    if seed < 0:
        raise UsageError("--seed must not be negative")
    counts = divide(sources_of(pairs, format, columns, languages), out, valid, test, seed)
    for name, count in sorted(counts.items()):
        say(f"{out / name}.tsv: {count:,} pairs")
