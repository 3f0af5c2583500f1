"""Traces as one page: a file that needs nothing else and asks for nothing.

The scripts lie in `web/inspect`, are joined in the order below, and draw what stands in the trace.
Arrays are packed: a trace has many numbers, and decimal digits take room.
"""

import base64
import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
import torch
from markupsafe import Markup
from torch import Tensor

from transduce import __version__
from transduce.model_folder import write_file

WEB = resources.files("transduce") / "web"
SCRIPTS = (
    "core", "matrix", "stations", "overview", "heads", "map", "alignment", "comparison", "tree",
    "decoding", "page",
)  # fmt: skip
LARGE = 4_000_000
"""Bytes: of a page that were larger, less is written, and the page says what."""
EXACT = 400_000
"""Bytes of attention weights up to which all are written exactly, and not in 256 steps."""
FIRST = 8
"""Components that the page follows term by term; in very large pages, all that is written."""
LONG = 128
"""Of vectors longer than twice this, so many components are written, or all that a sum needs."""
FOLLOWED = {"input", "memory", "concat"}
"""Vectors whose components are the terms of sums."""
VECTORS = FOLLOWED | {
    "scaled", "position", "x", "attended", "sum", "out", "result", "output", "gain", "bias",
}  # fmt: skip
"""Arrays with a component for each of the model's features."""

Traces = Sequence[dict[str, Any]]


def write_page(traces: Traces, path: Path, name: str) -> None:
    """Write one trace, or two to be compared, as a page.

    Args:
        traces: what `tracing.trace` made.
        path: the file.
        name: of the model.

    Raises:
        TransduceError: if it cannot be written.
    """
    write_file(path, page(traces, name).encode("utf-8", errors="replace"))


def page(traces: Traces, name: str) -> str:
    """Return traces as a self-contained HTML page; the same traces give the same page."""
    whole = _page(traces, name, Packing, ())
    if len(whole) <= LARGE:
        return whole
    notes = [
        f"All weights would make this page larger than {LARGE // 10**6} MB: of the overview only "
        "the chosen layers are here. transduce inspect --json has everything, and --encoder-layer "
        "and --decoder-layer choose others."
    ]
    fewer = [only_chosen(trace) for trace in traces]
    whole = _page(fewer, name, Packing, notes)
    if len(whole) <= LARGE:
        return whole
    notes.append(f"Of long vectors the first {FIRST} components are here, and no others.")
    return _page(fewer, name, lambda: Packing(FIRST), notes)


def only_chosen(trace: dict[str, Any]) -> dict[str, Any]:
    """Return a trace with the attention of those layers alone that are followed step by step."""
    attention, marks = {}, {}
    for kind, whole in trace["attention"].items():
        station = trace["stations"][kind]
        places = [] if station is None else [whole["layers"].index(station.layer)]
        layers = [whole["layers"][place] for place in places]
        attention[kind] = {"layers": layers, "weights": whole["weights"][places]}
        marks[kind] = [trace["badges"][kind][place] for place in places]
    return trace | {"attention": attention, "badges": marks}


class Packing:
    """Collects arrays as base64; equal ones are kept once.

    Args:
        first: how many components of vectors are kept; otherwise those of long ones that are shown.
    """

    def __init__(self, first: int | None = None) -> None:
        self.first = first
        self.rough: set[str] = set()
        """Names of arrays that are written in 256 steps."""
        self.arrays: list[dict[str, Any]] = []
        self.places: dict[bytes, int] = {}

    def trace(self, trace: Mapping[str, Any]) -> dict[str, Any]:
        """Return a trace whose arrays are references into its `arrays`."""
        whole = 4 * sum(own["weights"].numel() for own in trace["attention"].values())
        self.rough = {"attention"} | ({"weights"} if whole > EXACT else set())
        return self.packed(trace) | {"arrays": self.arrays}

    def packed(self, value: Any, name: str = "") -> Any:
        """Return a part of a trace, `name`d so in what it is a part of."""
        if isinstance(value, Tensor):
            return self.array(value, name)
        if dataclasses.is_dataclass(value):
            fields = [field.name for field in dataclasses.fields(value)]
            return {field: self.packed(getattr(value, field), field) for field in fields}
        if isinstance(value, dict):
            return {key: self.packed(item, key) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.packed(item, name) for item in value]
        return value

    def array(self, x: Tensor, name: str) -> Any:
        """Return a reference to an array."""
        x = x.detach().cpu()
        if name in self.rough:
            return self.share(x)
        if not x.is_floating_point():
            return self.place(x.to(torch.uint8), "uint8") if name == "hidden" else x.tolist()
        if name == "W":
            x = x[:FIRST]  # the page follows so many components
        elif name in VECTORS:
            x = x[..., : self.kept(name, x.size(-1))]
        return self.place(x.to(torch.float32), "float32")

    def kept(self, name: str, size: int) -> int:
        """Return how many components of a vector are written."""
        if self.first is not None:
            return self.first
        return LONG if size > 2 * LONG and name not in FOLLOWED else size

    def share(self, x: Tensor) -> dict[str, int]:
        """Return a reference to numbers from 0 to 1, rounded to 256 steps."""
        return self.place((x * 255).round().to(torch.uint8), "share8")

    def place(self, x: Tensor, kind: str) -> dict[str, int]:
        """Return where an array lies, and put it there if no equal one does."""
        data, shape = x.contiguous().numpy().tobytes(), list(x.shape)
        key = hashlib.sha256(repr((shape, kind)).encode() + data).digest()
        if key not in self.places:
            text = base64.b64encode(data).decode()
            self.arrays.append({"type": kind, "shape": shape, "base64": text})
            self.places[key] = len(self.arrays) - 1
        return {"array": self.places[key]}


def _page(traces: Traces, name: str, packing: Callable[[], Packing], notes: Sequence[str]) -> str:
    data = {"traces": [packing().trace(trace) for trace in traces]}
    script = "".join(_read(f"inspect/{part}.js") for part in SCRIPTS) + "transduce.start();\n"
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return _template().render(
        traces=traces,
        name=name,
        title=f"{traces[0]['source']['text'][:60]} – {name}",
        notes=notes,
        version=__version__,
        css=Markup(_read("page.css") + _read("inspect.css")),
        data=Markup(in_script(json.dumps(data, ensure_ascii=False, separators=(",", ":")))),
        script=Markup(script),
        digest=Markup(f"'sha256-{digest}'"),
    )


def in_script(text: str) -> str:
    """Return JSON in a form that no parser of HTML or scripts takes for an end or a comment."""
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _read(name: str) -> str:
    return (WEB / name).read_text("utf-8")


@cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.from_string(_read("inspect.html"))
