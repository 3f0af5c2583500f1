"""The study behind `transduce compare layers`: Table 1, measured beside the theory."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

import torch

from transduce.config import LayerType, ModelConfig
from transduce.inspection.layer_costs import (
    COMPLEXITY,
    KINDS,
    LENGTHS,
    LONG,
    PATHS,
    ROUNDS,
    WIDTH_AT,
    WIDTHS,
    Cost,
    best,
    cost,
    counted,
    exponent,
    measured_path,
    mixing,
    path,
    sizes,
)
from transduce.inspection.study import Curve, Plot, Section, Study, Table
from transduce.training.machine import processor


def study(
    lengths: Sequence[int] = LENGTHS,
    widths: Sequence[int] = WIDTHS,
    d: int = 64,
    tell: Callable[[str], None] = lambda line: None,
) -> Study:
    """Measure all layer types and say what is found.

    Args:
        lengths: numbers of positions, n.
        widths: of layers of 512 positions.
        d: width of the layers whose length varies.
        tell: is told what is being measured.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # what is to be seen is the work, not how threads share it
    try:
        by_n = measured([(n, d) for n in lengths], tell)
        by_d = measured([(WIDTH_AT, width) for width in widths], tell)
        where = machine()
    finally:
        torch.set_num_threads(threads)
    tell("paths")
    ways = list(paths(sizes(8)))
    sections = [time_section(by_n, d), width_section(by_d), memory_section(by_n)]
    return Study(
        "Table 1 on this machine",
        "Self-attention, recurrence, convolution and restricted self-attention, each in the same "
        "encoder layer with the same number of parameters: what the paper's Table 1 says of them, "
        "and what is measured here.",
        [table_1(by_n, ways, d), path_section(ways), *sections],
        where,
        {
            "costs": [asdict(one) for one in by_n + by_d],
            "paths": ways,
            "exponents": {
                kind: {"mixing_in_n": fits(by_n, kind, "mixing"),
                       "forward_in_n": fits(by_n, kind, "forward"),
                       "mixing_in_d": fits(by_d, kind, "mixing", "d")}
                for kind in KINDS
            },
        },
    )  # fmt: skip


def measured(points: Sequence[tuple[int, int]], tell: Callable[[str], None]) -> list[Cost]:
    """Measure all kinds at each n and d, in several rounds of which the shortest times count."""
    found: dict[tuple[str, int, int], list[Cost]] = {}
    for number in range(1, ROUNDS + 1):
        for n, d in points:
            tell(f"round {number} of {ROUNDS}: n = {n:,}, d = {d}")
            for kind in KINDS:
                found.setdefault((kind, n, d), []).append(cost(kind, n, d))
    return [best(costs) for costs in found.values()]


def machine() -> str:
    """Return where this is measured."""
    threads = torch.get_num_threads()
    return f"{processor()}, {threads} thread{'s' * (threads > 1)}, torch {torch.__version__}"


def of(costs: Sequence[Cost], kind: str) -> list[Cost]:
    """Return the costs of one kind."""
    return [one for one in costs if one.kind == kind]


def fits(costs: Sequence[Cost], kind: str, what: str, by: str = "n") -> float:
    """Return the exponent of a time in n (of the long ones) or in d."""
    points = [(float(getattr(one, by)), float(getattr(one, what))) for one in of(costs, kind)]
    long = [point for point in points if by == "d" or point[0] >= LONG]
    return exponent(long if len(long) > 1 else points)


def paths(config: ModelConfig) -> Iterator[dict[str, Any]]:
    """Yield the longest path of each kind and length, by formula and as it is found."""
    dilated = config.model_copy(update={"dilated": True})
    ways: list[tuple[str, LayerType, ModelConfig]] = [(kind, kind, config) for kind in KINDS]
    ways.insert(3, ("convolutional, dilated", "convolutional", dilated))
    for name, kind, model in ways:
        for n in PATHS:
            found = {"formula": path(kind, n, model), "measured": measured_path(kind, n, model)}
            yield {"kind": name, "n": n} | found


def table_1(by_n: Sequence[Cost], ways: Sequence[dict[str, Any]], d: int) -> Section:
    """Return the paper's table with what was found for the longest n."""
    n = max(one.n for one in by_n)
    far = max(PATHS)
    rows = []
    for kind in KINDS:
        one = next(one for one in of(by_n, kind) if one.n == n)
        with torch.device("meta"):
            found = counted(mixing(kind, n, sizes(d)))
        way = next(way for way in ways if way["kind"] == kind and way["n"] == far)
        rows.append([
            kind, f"O({COMPLEXITY[kind]})", f"{one.operations:,}", f"{found:,}",
            f"{n:,}" if kind == "recurrent" else "1", f"{way['formula']:,}",
            f"{way['measured']:,}", f"n^{fits(by_n, kind, 'mixing'):.2f}",
            f"n^{fits(by_n, kind, 'forward'):.2f}",
        ])  # fmt: skip
    columns = [
        "layer type", "complexity", f"products at n = {n:,}", "counted", "sequential steps",
        f"path at n = {far}", "found", "mixing", "whole layer",
    ]  # fmt: skip
    config = sizes(d)
    return Section(
        "Table 1",
        [
            "Products are multiplications of the mixer alone, by formula and as torch counts them; "
            f"d = {d}, k = {config.kernel}, r = {config.window}.",
            "Sequential steps are those that must wait for the one before.",
            f"The last two columns are how time was found to grow, from n = {LONG:,} on.",
        ],
        [Table(columns, rows)],
    )


def path_section(ways: Sequence[dict[str, Any]]) -> Section:
    """Return how far apart positions are."""
    names = list(dict.fromkeys(way["kind"] for way in ways))
    rows = []
    for name in names:
        of_kind = [way for way in ways if way["kind"] == name]
        rows.append([name, *(f"{way[of]:,}" for way in of_kind for of in ("formula", "measured"))])
    columns = ["layer type", *(f"n = {n}{of}" for n in PATHS for of in ("", ", found"))]
    config = sizes(8)
    return Section(
        "Maximum path length",
        [
            "Hops from one position to another on the shortest way, for the two that are furthest "
            "apart: layers upon each other, or steps of a recurrence. Found by which inputs each "
            "output has a gradient with respect to.",
            "Self-attention: 1, any position sees any other.",
            "Recurrence: n − 1, from one state to the next.",
            f"Convolution of k = {config.kernel}: an output sees (k − 1) / 2 inputs on either side,"
            " so (n − 1) / ((k − 1) / 2), rounded up; the paper's n / k has no constants. Dilated: "
            "log n to the base (k + 1) / 2, where the paper, which has no two sides, has k.",
            f"Restricted to r = {config.window}: (n − 1) / r, rounded up. Restricted and "
            "convolutional layers therefore need depth before all of a long sentence is connected.",
        ],
        [Table(columns, rows)],
    )


def time_section(by_n: Sequence[Cost], d: int) -> Section:
    """Return how time grows with the length."""
    sentences = []
    for kind in KINDS:
        alone, whole = (fits(by_n, kind, what) for what in ("mixing", "forward"))
        expected = 2 if kind == "self-attention" else 1
        theory = "n²" if expected == 2 else "n"
        said = f"{kind}: mixing alone grows as n^{alone:.2f}, in theory as {theory}"
        said += f"; the whole layer as n^{whole:.2f}."
        if kind == "self-attention":
            equal = 6 * d
            said += (
                f" Projections and feed-forward network need 12 n d² products beside mixing's "
                f"2 n² d: up to n = 6 d = {equal:,} they are the larger part, and hide n²."
            )
        else:
            said += " What is beside the mixer is linear in n too."
        if abs(alone - expected) > 0.2:
            said += (
                " The difference is what each call costs whatever it computes, other work on the "
                "machine, and caches that are too small for the longest."
            )
        sentences.append(said)
    slower = [
        one.n
        for one, other in zip(of(by_n, "self-attention"), of(by_n, "recurrent"), strict=True)
        if one.forward > other.forward
    ]
    sentences.append(
        "The paper says that self-attention is the faster one where n < d. Here, "
        + (f"from n = {min(slower):,} on the recurrent layer is" if slower else "it always is")
        + ": a step of a recurrence is a product of one row, which must wait for the one before, "
        "and processors are made for products of many rows at once."
    )
    plots = [
        Plot(title, "positions n", "seconds", [curve(by_n, kind, what) for kind in KINDS])
        for title, what in (
            ("Mixing alone", "mixing"),
            ("Whole layer, forward", "forward"),
            ("Whole layer, forward and backward", "training"),
        )
    ]
    return Section(f"Time and length, d = {d}", sentences, times(by_n, "n"), plots)


def curve(costs: Sequence[Cost], kind: str, what: str, by: str = "n") -> Curve:
    """Return measured times, and the line that theory draws through the longest of them."""
    found = of(costs, kind)
    points = [(float(getattr(one, by)), float(getattr(one, what))) for one in found]
    products = [one.operations if what == "mixing" else one.of_layer for one in found]
    rate = points[-1][1] / products[-1]
    theory = [(x, rate * count) for (x, _), count in zip(points, products, strict=True)]
    return Curve(kind, points, theory)


def times(costs: Sequence[Cost], by: str) -> list[Table]:
    """Return a table for each time, a column for each kind."""
    captions = {
        "mixing": "mixing alone, milliseconds",
        "forward": "whole layer, forward, milliseconds",
        "training": "whole layer, forward and backward, milliseconds",
    }
    values = sorted({getattr(one, by) for one in costs})

    def row(what: str, value: int) -> list[str]:
        found = {one.kind: getattr(one, what) for one in costs if getattr(one, by) == value}
        return [f"{value:,}", *(f"{1e3 * found[kind]:.2f}" for kind in KINDS)]

    return [
        Table([by, *KINDS], [row(what, value) for value in values], caption)
        for what, caption in captions.items()
    ]


def width_section(by_d: Sequence[Cost]) -> Section:
    """Return how time grows with the width."""
    sentences = [
        f"{kind}: mixing grows as d^{fits(by_d, kind, 'mixing', 'd'):.2f}, in theory as "
        f"{'d²' if kind in ('recurrent', 'convolutional') else 'd'}."
        for kind in KINDS
    ]
    sentences.append(
        "Small products use less of what the processor can do than large ones, so the exponents "
        "lie below the theory's; most of all the recurrence's, whose products have one row each."
    )
    plots = [
        Plot("Mixing alone", "width d", "seconds", [curve(by_d, k, "mixing", "d") for k in KINDS]),
        Plot("Whole layer", "width d", "seconds", [curve(by_d, k, "forward", "d") for k in KINDS]),
    ]
    return Section(f"Time and width, n = {WIDTH_AT}", sentences, times(by_d, "d"), plots)


def memory_section(by_n: Sequence[Cost]) -> Section:
    """Return how memory grows with the length."""
    points = {kind: [(float(one.n), one.peak / 2**20) for one in of(by_n, kind)] for kind in KINDS}
    grows = "; ".join(
        f"{kind} n^{exponent([p for p in points[kind] if p[0] >= LONG] or points[kind]):.2f}"
        for kind in KINDS
    )
    return Section(
        "Memory in training",
        [
            "Peak of all tensors of a forward and backward pass, weights apart.",
            f"It grows as: {grows}.",
            "Self-attention's n² weights are not among them: the fused kernel computes them piece "
            "by piece and again in the backward pass. Where weights are recorded, or dropped on a "
            "CPU, they are there, and memory grows with n².",
        ],
        [],
        [Plot("Peak", "positions n", "MiB", [Curve(kind, points[kind]) for kind in KINDS])],
    )
