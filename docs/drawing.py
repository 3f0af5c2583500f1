"""What the figures of the book share: colours, tokens on axes, matrices, boxes, files.

Figures have few words, and symbols where they can, so that one set serves both languages. Their
ground is light whatever page they stand on.
"""

import itertools
import re
from collections.abc import Sequence
from io import StringIO
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, Rectangle
from torch import Tensor

PAPER, INK, QUIET, LINE = "#fcfbf8", "#1f2326", "#5d6469", "#dedad1"
ACCENT, ACCENT_SOFT, WARM, WARM_SOFT = "#12666b", "#d3e6e5", "#974700", "#fbeedd"
AREA = re.compile(r'<clipPath id="(\w+)"')
HIDDEN, BESIDE = "#d3cfc6", "#a3abae"
WEIGHTS = LinearSegmentedColormap.from_list("weights", ["#ffffff", "#9cc9c7", "#2f8387", "#0b4246"])
SIGNED = LinearSegmentedColormap.from_list(
    "signed", ["#7a3800", "#d98a3a", "#fbeedd", "#ffffff", "#e2efee", "#4f9a9a", "#0b4a4e"]
)
STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "mathtext.fontset": "dejavusans",
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": LINE,
    "axes.titlesize": 10,
    "axes.facecolor": PAPER,
    "xtick.color": QUIET,
    "ytick.color": QUIET,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "figure.facecolor": PAPER,
    "svg.fonttype": "path",  # no font need be there where it is looked at
    "svg.hashsalt": "transduce",  # the same figure is the same file
}

Token = dict[str, Any]
Trace = dict[str, Any]


def use_style() -> None:
    """Set what all figures have in common."""
    matplotlib.use("svg")
    matplotlib.rcParams.update(STYLE)


def figure(width: float, height: float) -> Figure:
    """Return an empty figure of so many inches, whose parts find room by themselves."""
    return Figure(figsize=(width, height), layout="constrained")


def save(figure: Figure, path: Path) -> None:
    """Write a figure as SVG, without the time it was made, and with numbers as names of areas.

    Names by matplotlib change with the last digits of the layout, and those from time to time.
    """
    written = StringIO()
    figure.savefig(written, format="svg", metadata={"Date": None, "Creator": None})
    text = written.getvalue()
    for number, name in enumerate(dict.fromkeys(AREA.findall(text))):
        text = text.replace(name, f"area-{number}")
    path.write_text(text, "utf-8")


def label(token: Token) -> str:
    """Return a token as axes show it: without the space before it, unless it is nothing else."""
    text: str = token["text"]
    shown = text if token["special"] or len(text) == 1 else text.removeprefix("▁")
    return shown.replace("$", r"\$")


def labels(tokens: Sequence[Token]) -> list[str]:
    """Return all of them."""
    return [label(token) for token in tokens]


def sides(trace: Trace, kind: str) -> tuple[list[str], list[str]]:
    """Return the tokens that ask and those that are asked in a kind of attention."""
    source, target = trace["source"], trace["target"]
    queries = {"encoder_self": source["tokens"], "decoder_self": target["inputs"]}
    keys = target["inputs"] if kind == "decoder_self" else source["tokens"]
    return labels(queries.get(kind, target["tokens"])), labels(keys)


def rounded(values: Tensor) -> Tensor:
    """Return numbers without the digits that may differ from one machine to the next, and no -0."""
    return values.double().round(decimals=3) + 0.0


def matrix(
    axes: Axes,
    values: Tensor,
    rows: Sequence[str] = (),
    columns: Sequence[str] = (),
    *,
    signed: bool = False,
    top: float | None = None,
    hidden: Tensor | None = None,
    digits: int | None = None,
    square: bool = True,
) -> None:
    """Draw a matrix, its first row on top.

    Args:
        axes: where.
        values: n m.
        rows: names.
        columns: names, written above.
        signed: white is 0 and both signs have a colour; otherwise 0 is white and `top` dark.
        top: the greatest number that colours tell apart; the greatest there is, unless given.
        hidden: what is not 0 there is grey.
        digits: write the numbers too.
        square: cells are as wide as high.
    """
    most = float(values.abs().max()) if top is None else top
    large = values.numel() > (
        60 if digits is None else 200
    )  # as a picture within the picture: smaller than so many paths
    seen = values.clone()
    if hidden is not None:
        seen[hidden != 0] = float("nan")
    colours = (SIGNED if signed else WEIGHTS).with_extremes(bad=HIDDEN)
    n, m = values.shape
    axes.pcolormesh(
        seen.numpy(),
        cmap=colours,
        vmin=-most if signed else 0.0,
        vmax=most,
        rasterized=large,
        edgecolors="none" if large else PAPER,
        linewidth=0.0 if large else 0.5,
    )
    axes.set(xlim=(0, m), ylim=(n, 0), xticks=[], yticks=[])
    axes.set_aspect("equal" if square else "auto")
    name_axis(axes, rows, columns)
    axes.spines[:].set_visible(True)
    for i, j in [(i, j) for i in range(n) for j in range(m)] if digits is not None else []:
        value = float(values[i, j])
        dim = hidden is not None and bool(hidden[i, j])
        dark = not dim and abs(value) > (0.62 if signed else 0.55) * most
        text = f"{value + 0.0:.{digits}f}".replace("-", "−") if value else "0"
        nothing = not text.strip("−0.")
        colour = "white" if dark else BESIDE if nothing else QUIET if dim else INK
        axes.text(j + 0.5, i + 0.5, text, ha="center", va="center", fontsize=6.5, color=colour)


def name_axis(axes: Axes, rows: Sequence[str] = (), columns: Sequence[str] = ()) -> None:
    """Write names beside the rows and above the columns of a matrix."""
    if rows:
        axes.set_yticks([i + 0.5 for i in range(len(rows))], list(rows))
    if columns:
        axes.xaxis.tick_top()
        axes.set_xticks([j + 0.5 for j in range(len(columns))], list(columns))
        for text in axes.get_xticklabels():
            text.set_rotation(90 if len(text.get_text()) > 2 else 0)
    axes.tick_params(length=0, pad=3)


def title(axes: Axes, text: str, colour: str = INK) -> None:
    """Write what is to be seen above it."""
    axes.set_title(text, color=colour, pad=8)


def outline(
    axes: Axes, x: float, y: float, width: float, height: float, colour: str = WARM
) -> None:
    """Draw a frame around a part of a matrix."""
    axes.add_patch(Rectangle((x, y), width, height, fill=False, edgecolor=colour, linewidth=1.8))


def box(
    axes: Axes, x: float, y: float, text: str, colour: str, width: float = 2.0, height: float = 0.5
) -> None:
    """Draw a box with a name, its middle at (x, y)."""
    axes.add_patch(
        FancyBboxPatch(
            (x - width / 2, y - height / 2), width, height, facecolor=colour, edgecolor=QUIET,
            linewidth=0.8, boxstyle="round,pad=0,rounding_size=0.08",
        )
    )  # fmt: skip
    axes.text(x, y, text, ha="center", va="center", fontsize=8)


def arrow(axes: Axes, *points: tuple[float, float], colour: str = QUIET) -> None:
    """Draw a line through the points, with its tip at the last."""
    for start, end in itertools.pairwise(points[:-1]):
        axes.plot(*zip(start, end, strict=True), color=colour, linewidth=1.0)
    style = {"arrowstyle": "-|>", "color": colour, "shrinkA": 0, "shrinkB": 0, "linewidth": 1.0}
    axes.annotate("", points[-1], points[-2], arrowprops=style)


def bare(axes: Axes) -> None:
    """Take the axes' lines and marks away."""
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_visible(False)
