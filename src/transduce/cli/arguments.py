"""The command itself, and what its verbs share: types of arguments, and what becomes of them."""

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter
from rich.console import Console

from transduce import __version__
from transduce.config import Settings, merge
from transduce.errors import UsageError

if TYPE_CHECKING:
    from transduce.config import Source


HELP = """The sequence-to-sequence Transformer for your own pairs, on an ordinary machine.

MODEL is a model folder or a run. RECIPE is a TOML file, the name of a recipe of the package, or a
prepared corpus. PAIRS is one file with both sides (TSV, CSV, JSONL, Parquet, TMX, XLIFF, PO, MO) or
two aligned text files: plain or compressed, a member of a zip archive (pairs.zip/de.tsv), a URL,
or - for standard input. --set section.key=value changes any knob of a recipe.
"""

DATA_HELP = (
    """Look at pairs before training: what there is, what is wrong with it, and how to divide it."""
)

COMPARE_HELP = (
    """Put parts of the Transformer beside what could stand in their place, and measure."""
)

app = App(
    name="transduce",
    help=HELP,
    version=__version__,
    help_format="markdown",
    suppress_keyboard_interrupt=False,  # ours says so
)
data = App(name="data", help=DATA_HELP, help_format="markdown")
compare = App(name="compare", help=COMPARE_HELP, help_format="markdown")
app.command(data)
app.command(compare)


def no_option(type_: object, value: object) -> None:
    """Let "-" be a word, which stands for standard input, but no misspelt option."""
    words = value if isinstance(value, tuple) else (value,)
    for word in words:
        if isinstance(word, str) and word.startswith("-") and word != "-":
            raise ValueError(f"there is no option {word} (what is none, stands behind --)")


Word = Annotated[str, Parameter(allow_leading_hyphen=True, validator=no_option)]
OptionalWord = Annotated[str | None, Parameter(allow_leading_hyphen=True, validator=no_option)]
Pairs = Annotated[list[str], Parameter(consume_multiple=True, negative=())]
Columns = Annotated[list[str] | None, Parameter(n_tokens=2, negative=())]
Languages = Annotated[list[str] | None, Parameter(n_tokens=2, negative=())]
OptionalPairs = Annotated[list[str] | None, Parameter(consume_multiple=True, negative=())]
Names = Annotated[list[str] | None, Parameter(consume_multiple=True, negative=())]
Assignments = Annotated[list[str] | None, Parameter(name="--set", negative=())]
Texts = Annotated[list[str] | None, Parameter(negative=())]
Models = Annotated[list[Path] | None, Parameter(consume_multiple=True, negative=())]
Numbers = Annotated[list[int] | None, Parameter(consume_multiple=True, negative=())]
Flag = Annotated[bool, Parameter(negative=())]


INTERRUPTED = 130  # the shell's status for a program that Ctrl-C ended


def say(line: str) -> None:
    """Tell the user something that is not data."""
    Console(stderr=True, emoji=False).print(line, markup=False, highlight=False, soft_wrap=True)


def check_folders(*files: Path | None) -> None:
    """Refuse, before anything is computed, to write where there is no folder."""
    for path in files:
        if path is not None and not path.parent.is_dir():
            raise UsageError(f"cannot write {path}: there is no folder {path.parent}")


def files_of(parts: Mapping[str, Sequence[str] | None]) -> dict[str, Any]:
    """Return the files of each part as a [data] table has them: one path, or two."""
    return {
        name: files[0] if len(files) == 1 else list(files) for name, files in parts.items() if files
    }


def reading_of(
    format: str | None, columns: Sequence[str] | None, languages: Sequence[str] | None
) -> dict[str, Any]:
    """Return options as keys of the [data] table."""
    numbered = [int(c) if c.isdecimal() else c for c in columns] if columns else None
    given = {"format": format, "columns": numbered, "languages": list(languages or ()) or None}
    return {key: value for key, value in given.items() if value is not None}


def sources_of(
    pairs: Sequence[str],
    format: str | None,
    columns: Sequence[str] | None,
    languages: Sequence[str] | None,
) -> "list[Source]":
    """Return where the pairs of a command line come from."""
    from transduce.config import parse
    from transduce.data.readers import sources

    config = parse({"data": reading_of(format, columns, languages)}, "the command line")
    return sources(list(pairs), config.data)


def with_changes(assignments: Iterable[str]) -> Settings:
    """Return what to lay over the settings of a model that is used, not trained.

    Raises:
        UsageError: for a setting that does not exist, or that the model was made with.
    """
    from transduce.config import Reading, from_assignments

    assignments = list(assignments)
    changes = from_assignments(assignments)
    for assignment in assignments:
        section, _, key = assignment.partition("=")[0].strip().partition(".")
        reading = section == "data" and key in Reading.model_fields
        if not reading and section not in ("decoding", "evaluation", "device"):
            raise UsageError(
                f"--set {assignment}: a model that is there keeps its [{section}]; what can be "
                "changed are [decoding], [evaluation], device and, for how pairs are read, "
                f"data.{', data.'.join(Reading.model_fields)}"
            )
    as_usual = {"data": {"format": None, "columns": None, "header": None}}  # of training's files
    return merge(as_usual, changes)


SEVERAL_FILES = ("--pairs", "--train", "--valid", "--test", "--references", "--distill")
"""Options that take more than one word."""


def with_standard_input(words: Sequence[str]) -> list[str]:
    """Return arguments with `--pairs=-` for `--pairs -`: alone, - would be taken for an option."""
    found: list[str] = []
    option = ""
    for word in words:
        if word.startswith("--"):
            option = word.partition("=")[0]
        elif word == "-" and option and (found[-1] == option or option in SEVERAL_FILES):
            if found[-1] == option:
                found.pop()
            word = f"{option}=-"
        elif found and found[-1] == f"{option}=-" and option in SEVERAL_FILES:
            found.append(option)
        found.append(word)
    return found


def command_name() -> str:
    """Return what the user types to call this command."""
    import shutil

    return "transduce" if shutil.which("transduce") else os.path.relpath(sys.argv[0])
