"""What `transduce inspect` does: make the traces, and show them."""

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from transduce.config import STDIN, Settings, merge
from transduce.data.text import one_line
from transduce.decoding.translator import opened
from transduce.errors import UsageError
from transduce.inspection.numbers import read_numbers, trace_numbers
from transduce.inspection.pages import write_page
from transduce.inspection.terminal import printed
from transduce.inspection.tracing import Choice, as_json, trace

MOST = 2
"""Sentences or models that can be compared."""


class Subject(NamedTuple):
    """A sentence, and the model that it goes through."""

    model: Path
    text: str

    @property
    def name(self) -> str:
        """What the model is called."""
        return self.model.resolve().name


def traced(
    subjects: Sequence[Subject],
    target: str | None,
    numbers: Mapping[str, int | None],
    settings: Settings,
) -> list[dict[str, Any]]:
    """Return the trace of each subject.

    Args:
        subjects: one, or two to be compared.
        target: is forced; searched for unless given.
        numbers: of `encoder_layer`, `decoder_layer` and `head`, from 1; None leaves it open.
        settings: laid over those of the model.

    Raises:
        UsageError: for more than two subjects, no such layer or head, or a blank text.
        TransduceError: if a model cannot be loaded.
    """
    if len(subjects) > MOST:
        raise UsageError("compare two sentences (TEXT TEXT) or two models (--baseline), not both")
    for name, number in numbers.items():
        if number is not None and number < 1:
            raise UsageError(f"--{name.replace('_', '-')} {number}: they count from 1")
    choice = Choice(**{name: n if n is None else n - 1 for name, n in numbers.items()})  # type: ignore[arg-type]
    found, translators = [], {}
    for subject in subjects:
        if subject.model not in translators:
            # Attention is recorded by the torch engine alone, whatever else translates faster.
            alone = merge(settings, {"decoding": {"engine": "torch"}})
            translators[subject.model] = opened([subject.model], alone)[1]
        own = trace(translators[subject.model], line_of(subject.text), target, choice)
        found.append(own | {"name": subject.name})
    return found


def traced_numbers(path: Path) -> dict[str, Any]:
    """Return the trace of a file of numbers.

    Raises:
        UsageError: if they do not fit each other.
        TransduceError: if the file cannot be read.
    """
    try:
        return trace_numbers(read_numbers(path), path.stem)
    except UsageError as error:
        text = str(error)
        raise UsageError(text if text.startswith(str(path)) else f"{path}: {text}") from None


def line_of(text: str) -> str:
    """Return the text, or the first line of standard input for `-`."""
    if text != STDIN:
        return one_line(text)
    return one_line(sys.stdin.readline().removesuffix("\n").removesuffix("\r"))


def show(
    traces: Sequence[dict[str, Any]],
    name: str,
    out: Path | None,
    as_data: bool,
    say: Callable[[str], None],
) -> Iterator[str]:
    """Write the page if one is asked for; yield what is to be printed.

    Args:
        traces: one for each subject.
        name: of the models.
        out: the page.
        as_data: print JSON: an object or, of two traces, a list.
        say: is told where the page is.
    """
    if out is not None:
        write_page(traces, out, name)
        say(f"the page: {out}")
    if as_data:
        data = [as_json(one) for one in traces]
        yield json.dumps(data[0] if len(data) == 1 else data, ensure_ascii=False)
    elif out is None:
        for one in traces:
            yield from printed(one)
