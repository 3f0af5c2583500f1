"""The data report as a page: one HTML file that needs nothing else and looks up nothing.

`report.html` says what stands where, `page.css` how it looks; here is only what turns the report's
values into text. All of the report is text from strangers, so every value is escaped, and the page
forbids itself scripts and whatever lies outside of it.
"""

import math
import unicodedata
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any

import jinja2
from markupsafe import Markup

WEB = resources.files("transduce") / "web"


def report_page(report: Mapping[str, Any]) -> str:
    """Return a data report as one self-contained HTML page.

    The same report gives the same page, byte for byte.

    Raises:
        jinja2.UndefinedError: if the report lacks a key.
    """
    page = _template().render(
        report=report,
        described=[(name, part) for name, part in report["parts"].items() if "source" in part],
        css=Markup((WEB / "page.css").read_text("utf-8")),
    )
    # JSON can hold half a surrogate pair, which no file can: it becomes a question mark.
    return page.encode("utf-8", errors="replace").decode("utf-8")


@cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {
        "number": _number,
        "share": _share,
        "visible": _visible,
        "code_points": _code_points,
    }
    return environment.from_string((WEB / "report.html").read_text("utf-8"))


def _number(value: int | float) -> str:
    """Return 1,234,567 or 1.31, with no more decimals than say something."""
    if isinstance(value, int):
        return f"{value:,}"
    if not math.isfinite(value):
        return "–" if math.isnan(value) else "∞"
    decimals = 2 if abs(value) >= 1 else 4
    return f"{value:,.{decimals}f}".rstrip("0").rstrip(".")


def _share(count: int, total: int) -> str:
    """Return a percentage that says 0 or 100 only where it is exactly that."""
    if not total:
        return "–"
    percent = 100 * count / total
    if 0 < percent < 0.01:
        return "< 0.01%"
    if 99.99 < percent < 100:
        return "> 99.99%"
    return f"{_number(round(float(percent), 2))}%"


def _visible(character: str) -> str:
    """Return a character in a form that can be seen by itself."""
    if character == " ":
        return "space"
    if unicodedata.category(character[0]).startswith("M"):
        return f"◌{character}"  # a mark needs something to stand on
    return character if character.isprintable() else _code_points(character)


def _code_points(text: str) -> str:
    return " ".join(f"U+{ord(character):04X}" for character in text)
