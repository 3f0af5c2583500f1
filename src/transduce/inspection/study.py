"""A study: what was measured, in tables, curves and plain sentences; in three forms.

It is printed in the terminal, written as one page that needs nothing else, or written as JSON: all
studies of this package (`compare`, `ablate`, `report`) are.
"""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

import jinja2
from markupsafe import Markup

from transduce import __version__
from transduce.model_folder import write_file

WEB = resources.files("transduce") / "web"
SHAPES = ("circle", "square", "triangle", "diamond", "cross", "ring", "plus")
"""Marks of the curves of a plot, so that they differ in more than colour."""
MANY = 40
"""Points beyond which a curve is drawn as a line without marks, and printed as blocks."""
BLOCKS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True)
class Curve:
    """Points of one kind; what theory says is a line through them, what was measured is marks."""

    name: str
    points: Sequence[tuple[float, float]]
    theory: Sequence[tuple[float, float]] = ()
    intervals: Sequence[tuple[float, float]] = ()
    """Of each point, the lowest and the highest y that it may be."""

    @property
    def dense(self) -> bool:
        """Whether there are too many points for a mark each."""
        return len(self.points) > MANY and not self.theory and not self.intervals


@dataclass(frozen=True)
class Plot:
    """Curves over the same axes."""

    title: str
    x: str
    y: str
    curves: Sequence[Curve]
    log: bool | Literal["x", "y"] = True
    """Which axes are logarithmic: both, none or one."""
    names: Sequence[str] = ()
    """Of x = 0, 1, ..., where these are not numbers."""
    level: float | None = None
    """A y to compare with, drawn across."""
    level_name: str = ""


@dataclass(frozen=True)
class Table:
    """Texts in rows; columns of numbers stand to the right."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""

    @property
    def to_the_right(self) -> list[bool]:
        """Say of each column whether it holds numbers and nothing else."""
        return [
            bool(self.rows) and all(is_number(row[i]) for row in self.rows)
            for i in range(len(self.columns))
        ]


@dataclass(frozen=True)
class Link:
    """The way to a page that lies beside this one, or in a folder beside it."""

    text: str
    path: str
    """Relative to this page, with / between its parts."""

    def __post_init__(self) -> None:
        if self.path.startswith("/"):
            raise ValueError(f"{self.path} does not lie beside the page")

    @property
    def address(self) -> str:
        """Return the path as a page has it: nothing in it can mean another place."""
        return quote(self.path)


@dataclass(frozen=True)
class Example:
    """Texts that belong together, such as a source and what became of it."""

    texts: Sequence[tuple[str, str]]
    """What each is, and itself."""
    about: str = ""
    command: str = ""
    """What to type to see more."""
    link: Link | None = None


@dataclass(frozen=True)
class Examples:
    """Examples of one kind."""

    caption: str
    items: Sequence[Example]


@dataclass(frozen=True)
class Section:
    """One question, and what the answer is."""

    heading: str
    sentences: Sequence[str] = ()
    tables: Sequence[Table] = ()
    plots: Sequence[Plot] = ()
    examples: Sequence[Examples] = ()


@dataclass(frozen=True)
class Study:
    """Everything that is to be said, and the numbers behind it."""

    title: str
    lede: str
    sections: Sequence[Section]
    machine: str
    record: dict[str, Any] = field(default_factory=dict)
    """The numbers, for those who want to go on with them."""

    @property
    def has_theory(self) -> bool:
        """Whether a line of theory is drawn anywhere."""
        plots = [plot for section in self.sections for plot in section.plots]
        return any(curve.theory for plot in plots for curve in plot.curves)


def printed(study: Study) -> Iterator[str]:
    """Yield the lines of a study in a terminal: tables, sentences, examples, courses of curves."""
    yield study.title
    yield study.machine
    for section in study.sections:
        yield ""
        yield section.heading
        for table in section.tables:
            yield ""
            if table.caption:
                yield table.caption
            yield from aligned(table)
        if section.sentences:
            yield ""
        yield from (f"- {sentence}" for sentence in section.sentences)
        if rows := list(courses(section.plots)):
            yield ""
            yield from aligned(Table(["curve", "first", "course", "last"], rows))
        for examples in section.examples:
            yield from ("", examples.caption)
            for example in examples.items:
                yield ""
                yield from printed_example(example)


def printed_example(example: Example) -> Iterator[str]:
    """Yield the lines of an example."""
    if example.about:
        yield f"  {example.about}"
    width = max((len(name) for name, _ in example.texts), default=0)
    yield from (f"    {name.ljust(width)}  {text}".rstrip() for name, text in example.texts)
    if example.command:
        yield f"    $ {example.command}"


def courses(plots: Sequence[Plot]) -> Iterator[list[str]]:
    """Yield of each curve of many points its name, how it begins, its course, and how it ends."""
    for plot in plots:
        for curve in plot.curves:
            if curve.dense:
                first, last = (f"{curve.points[i][1]:.4g}" for i in (0, -1))
                course = blocks(curve.points, plot.log in (True, "y"))
                yield [f"{plot.title}, {curve.name}", first, course, last]


def blocks(points: Sequence[tuple[float, float]], log: bool, width: int = 40) -> str:
    """Return the course of a curve in blocks of eight heights: of each stretch of x the mean y."""
    xs = Axis([x for x, _ in points], 0.0, float(width), False)
    ys = Axis([y for _, y in points], -0.5, len(BLOCKS) - 0.5, log)
    stretches: list[list[float]] = [[] for _ in range(width)]
    for x, y in points:
        stretches[int(xs.place(x))].append(y)
    heights = [round(ys.place(sum(some) / len(some))) if some else None for some in stretches]
    return "".join(" " if height is None else BLOCKS[height] for height in heights).strip()


def aligned(table: Table) -> Iterator[str]:
    """Yield the lines of a table with its columns under each other."""
    rows = [list(table.columns), *(list(row) for row in table.rows)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for number, row in enumerate(rows):
        cells = [
            cell.rjust(width) if to_the_right else cell.ljust(width)
            for cell, width, to_the_right in zip(row, widths, table.to_the_right, strict=True)
        ]
        yield "  ".join(cells).rstrip()
        if number == 0:
            yield "  ".join("-" * width for width in widths)


def is_number(cell: str) -> bool:
    """Say whether a cell holds a number, or nothing."""
    return not cell.strip("–") or cell.lstrip("+−-<> ×n^").replace(",", "")[:1].isdigit()


def write_json(study: Study, path: Path) -> None:
    """Write the numbers of a study.

    Raises:
        TransduceError: if they cannot be written.
    """
    record = {"title": study.title, "machine": study.machine, "version": __version__}
    text = json.dumps(record | study.record, ensure_ascii=False, indent=1)
    write_file(path, (text + "\n").encode())


def write_page(study: Study, path: Path) -> None:
    """Write a study as one page.

    Raises:
        TransduceError: if it cannot be written.
    """
    write_file(path, page(study).encode("utf-8", errors="replace"))


def page(study: Study) -> str:
    """Return a study as one self-contained HTML page, without scripts."""
    return _template().render(
        study=study,
        version=__version__,
        css=Markup((WEB / "page.css").read_text("utf-8") + (WEB / "study.css").read_text("utf-8")),
    )


@cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"drawn": Drawing, "anchor": anchor}
    environment.globals["shapes"] = SHAPES
    return environment.from_string((WEB / "study.html").read_text("utf-8"))


def anchor(heading: str) -> str:
    """Return a heading as the name of a place in the page."""
    return "".join(c if c.isalnum() else "-" for c in heading.lower()).strip("-")


# Drawing ----------------------------------------------------------------------------------------


class Axis:
    """From values to places on one side of a drawing.

    Args:
        values: all that must find a place.
        low: the place of the smallest.
        high: that of the largest.
        log: equal factors, not equal differences, are equally far apart.
    """

    def __init__(self, values: Sequence[float], low: float, high: float, log: bool) -> None:
        self.log, self.low, self.high = log, low, high
        start, end = (self.scaled(value) for value in (min(values), max(values)))
        alone = 0.5 if log else 0.5 * abs(start) or 0.5
        margin = 0.04 * (end - start) or alone
        self.start, self.end = start - margin, end + margin

    def scaled(self, value: float) -> float:
        """Return the value, or its logarithm."""
        return math.log10(value) if self.log else value

    def place(self, value: float) -> float:
        """Return where a value lies."""
        share = (self.scaled(value) - self.start) / (self.end - self.start)
        return round(self.low + share * (self.high - self.low), 2)

    def ticks(self) -> list[tuple[float, str]]:
        """Return some round values with their texts."""
        if self.log and self.end - self.start > 0.7:
            decades = range(math.floor(self.start), min(308, math.ceil(self.end)) + 1)
            digits = (1,) if self.end - self.start > 2 else (1, 2, 5)
            values = [digit * 10.0**e for e in decades for digit in digits]
            values = values[:: max(1, len(values) // 8)]
        else:
            low, high = (10.0**end if self.log else end for end in (self.start, self.end))
            values = even_steps(low, high)
        return [(v, short(v)) for v in values if self.start <= self.scaled(v) <= self.end]


def even_steps(low: float, high: float) -> list[float]:
    """Return some five round values between two, equally far apart."""
    rough = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = min((1, 2, 5, 10), key=lambda n: abs(n * power - rough)) * power
    return [round(step * i, 12) for i in range(math.ceil(low / step), math.floor(high / step) + 1)]


def short(value: float) -> str:
    """Return a value in few characters: 2k for 2,000, 3M for three millions, 0.02."""
    if abs(value) >= 1e12:
        return f"{value:.0e}"
    for factor, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= factor:
            return f"{value / factor:g}{letter}"
    return f"{value:.3g}"


class Drawing:
    """A plot with its places worked out; the template only writes them down."""

    WIDTH, HEIGHT = 440.0, 330.0
    LEFT, RIGHT, TOP, BOTTOM = 62.0, 430.0, 12.0, 282.0

    def __init__(self, plot: Plot) -> None:
        self.plot = plot
        curves = plot.curves
        everything = [point for curve in curves for point in [*curve.points, *curve.theory]]
        ends = [y for curve in curves for pair in curve.intervals for y in pair]
        levels = [] if plot.level is None else [plot.level]
        xs = [x for x, _ in everything] + ([-0.4, len(plot.names) - 0.6] if plot.names else [])
        ys = [y for _, y in everything] + ends + levels
        self.x = Axis(xs, self.LEFT, self.RIGHT, plot.log in (True, "x"))
        self.y = Axis(ys, self.BOTTOM, self.TOP, plot.log in (True, "y"))
        room = (self.RIGHT - self.LEFT) / max(1, len(plot.names))
        self.slanted = any(7 * len(name) > room for name in plot.names)
        """Whether the names under the drawing are too long to stand side by side."""

    def x_ticks(self) -> list[tuple[float, str]]:
        """Return the places and texts under the drawing."""
        named = [(float(i), name) for i, name in enumerate(self.plot.names)]
        return [(self.x.place(value), text) for value, text in named or self.x.ticks()]

    def y_ticks(self) -> list[tuple[float, str]]:
        """Return the places and texts beside the drawing."""
        return [(self.y.place(value), text) for value, text in self.y.ticks()]

    def marks(self, curve: Curve) -> list[dict[str, Any]]:
        """Return the places of the points, with the ends of their intervals and their texts."""
        found = []
        intervals = curve.intervals or [(y, y) for _, y in curve.points]
        for (x, y), (low, high) in zip(curve.points, intervals, strict=True):
            at = self.plot.names[round(x)] if self.plot.names else f"{x:,g}"
            text = f"{curve.name}, {self.plot.x} {at}: {y:.4g}"
            text += f" ({low:.4g} to {high:.4g})" if low < high else ""
            places = {"x": self.x.place(x), "y": self.y.place(y), "text": text}
            found.append(places | {"low": self.y.place(low), "high": self.y.place(high)})
        return found

    def line(self, points: Sequence[tuple[float, float]]) -> str:
        """Return the places of a line's points."""
        return " ".join(f"{self.x.place(x)},{self.y.place(y)}" for x, y in points)

    def level(self) -> float | None:
        """Return the place of the y to compare with."""
        return None if self.plot.level is None else self.y.place(self.plot.level)

    def described(self) -> str:
        """Return the drawing in words, for those who do not see it."""
        curves = "; ".join(
            f"{curve.name}: "
            + ", ".join(
                f"{self.plot.names[round(x)] if self.plot.names else f'{x:g}'}: {y:.3g}"
                for x, y in (turns(curve.points) if curve.dense else curve.points)
            )
            for curve in self.plot.curves
        )
        return f"{self.plot.title}. {self.plot.y} over {self.plot.x}. {curves}"


def turns(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return what tells most of many points: the first, lowest, highest and last, in order."""
    by_height = sorted(points, key=lambda point: point[1])
    return sorted({points[0], by_height[0], by_height[-1], points[-1]})
