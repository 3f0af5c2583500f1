"""A trace in a terminal: the attention as shades, the search as a table, the alignment as i-j."""

from collections.abc import Iterator, Sequence
from typing import Any

from rich.cells import cell_len
from torch import Tensor

from transduce.inspection.alignment import Choice, linked, word_attention
from transduce.inspection.study import Table, aligned
from transduce.inspection.words import Word

SHADES = " ░▒▓█"
WIDEST = 12
"""Columns of a token's name beside its row."""
LONGEST = 48
"""Columns of a hypothesis in the table of the search."""


def printed(trace: dict[str, Any]) -> Iterator[str]:
    """Yield the lines."""
    if trace["model"] is None:
        yield from by_hand(trace)
        return
    yield f"source: {trace['source']['text']}"
    yield f"target: {trace['target']['text']}"
    yield ""
    yield from heat_map(trace)
    yield from links(trace)
    for decoding in trace["decodings"][:1]:
        yield ""
        yield from search(decoding)
    for missing in trace["cannot_show"]:
        yield f"cannot be shown: {missing}"


def by_hand(trace: dict[str, Any]) -> Iterator[str]:
    """Yield the stations of numbers typed by hand, as tables."""
    (station,) = trace["stations"].values()
    queries = [token["text"] for token in trace["target"]["tokens"]]
    keys = [token["text"] for token in trace["source"]["tokens"]]
    one, norm = station.one, station.norm_after
    if one is not None:
        for title, numbers in (
            ("q · k", one.raw), ("s = q · k / √d_k", one.s), ("weights", one.alpha),
        ):  # fmt: skip
            yield from matrix(title, queries, keys, numbers, one.hidden)
        yield from matrix("outputs b", queries, None, one.b)
        if station.attended is not None:
            yield from matrix("all heads, W_O", queries, None, station.attended)
    if norm is not None:
        yield from matrix(
            "normalised", [str(i + 1) for i in range(len(norm.output))], None, norm.output
        )


def matrix(
    title: str,
    rows: Sequence[str],
    columns: Sequence[str] | None,
    numbers: Tensor,
    hidden: Tensor | None = None,
) -> Iterator[str]:
    """Yield a matrix with its names; what is hidden stands in brackets."""
    cells = []
    for i, (name, row) in enumerate(zip(rows, numbers.tolist(), strict=True)):
        shown = [f"{x + 0.0:.4f}" for x in row]
        for j, text in enumerate(shown):
            if hidden is not None and hidden[i, j]:
                shown[j] = f"({text})"
        cells.append([name, *shown])
    names = columns or [str(j + 1) for j in range(numbers.size(1))]
    yield title
    yield from aligned(Table(["", *names], cells))
    yield ""


def heat_map(trace: dict[str, Any]) -> Iterator[str]:
    """Yield cross-attention: a row for each target token, a column for each source token."""
    weights: Tensor = trace["attention"]["cross"]["weights"]
    station = trace["stations"]["cross"]
    mean = weights[station.layer].mean(dim=0)
    layers = len(weights)
    yield f"cross-attention, layer {station.layer + 1} of {layers}, mean of {weights.size(1)} heads"
    source = [token["text"] for token in trace["source"]["tokens"]]
    target = [token["text"] for token in trace["target"]["tokens"]]
    names = [fitted(text) for text in target]
    height = max(min(WIDEST, cell_len(text)) for text in source)
    columns = [list(fitted(text, height).rjust(height)) for text in source]
    if all(cell_len(text) == len(text) for text in source):
        for line in range(height):
            yield " " * (WIDEST + 2) + "".join(f"{column[line]} " for column in columns).rstrip()
    for name, row in zip(names, mean.tolist(), strict=True):
        shades = "".join(2 * SHADES[min(4, round(4 * weight))] for weight in row)
        strongest = max(range(len(row)), key=lambda j: row[j])
        said = f"{source[strongest]} {row[strongest]:.2f}"
        yield f"{' ' * (WIDEST - cell_len(name))}{name}  {shades}  {said}".rstrip()


def links(trace: dict[str, Any]) -> Iterator[str]:
    """Yield the word alignment as `transduce align` writes it; of letters and sounds, none."""
    source, target = (
        [Word(word["text"], tuple(word["pieces"])) for word in trace[side]["words"]]
        for side in ("source", "target")
    )
    if min(len(source), len(target)) < 2:
        return
    weights: Tensor = trace["attention"]["cross"]["weights"]
    choice = Choice(max(1, len(weights) - 1))
    shares = choice.of(word_attention(weights[choice.layer - 1], source, target, later=False))
    found = linked(shares).nonzero().tolist()
    text = " ".join(f"{j}-{i}" for j, i in sorted((j, i) for i, j in found))
    yield f"alignment ({choice}): {text}"


def fitted(text: str, width: int = WIDEST) -> str:
    """Return a text that takes at most so many columns."""
    while cell_len(text) > width:
        text = text[:-2] + "…"
    return text


def search(decoding: dict[str, Any]) -> Iterator[str]:
    """Yield what became of the candidates, step by step, and how the search ended."""
    penalty = decoding["penalty"]
    alpha = f" {penalty['alpha']:g}" if penalty["kind"] == "gnmt" else ""
    yield (
        f"search: {decoding['method']} of {decoding['beam_size']}, length penalty "
        f"{penalty['kind']}{alpha}, at most {decoding['limit']} tokens"
    )
    texts = {0: ""}
    rows: list[Sequence[str]] = []
    for number, step in enumerate(decoding["steps"], start=1):
        for one in step["candidates"]:
            texts[one["id"]] = f"{texts[one['parent']]} {one['token']['text']}".strip()
            if one["fate"] != "cut":
                numbers = (one["log_probability"], one["total"], one["score"])
                cells = [f"{x:.3f}".replace("-", "−") for x in numbers]
                rows.append([str(number), ending(texts[one["id"]]), *cells, one["fate"]])
    columns = ["step", "tokens", "log p", "sum", "score", "fate"]
    yield from aligned(Table(columns, rows))
    yield ended(decoding)


def ending(text: str, width: int = LONGEST) -> str:
    """Return the end of a text that is too long for a column."""
    while cell_len(text) > width:
        text = "…" + text[2:]
    return text


def ended(decoding: dict[str, Any]) -> str:
    """Say why a search ended."""
    end = decoding["end"]
    match end["reason"]:
        case "limit":
            return "it ended at the length limit"
        case "nothing lives":
            return "it ended when no hypothesis was left"
    return (
        f"it ended because the best live hypothesis could reach {end['best_live']:.3f} / "
        f"{end['divisor']:.3f} = {end['bound']:.3f} at most, and {end['to_beat']:.3f} was there"
    )
