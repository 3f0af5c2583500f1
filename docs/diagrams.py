"""The figures made of boxes and lines: the whole model, its input and output, the search."""

import math
from collections.abc import Sequence
from typing import Any

from drawing import (
    ACCENT,
    ACCENT_SOFT,
    BESIDE,
    LINE,
    PAPER,
    QUIET,
    WARM,
    WARM_SOFT,
    Trace,
    arrow,
    bare,
    box,
    figure,
    label,
    labels,
    name_axis,
    outline,
    sides,
    title,
)
from matplotlib.axes import Axes
from matplotlib.figure import Figure


def transformer(trace: Trace) -> Figure:
    """Figure 1, with the names of the classes."""
    drawn = figure(7.6, 6.4)
    axes = drawn.subplots()
    bare(axes)
    axes.set(xlim=(-0.6, 9.6), ylim=(-1.2, 8.5))
    last = ("FeedForward", ACCENT_SOFT)
    top = stack(axes, 2.4, [("SelfAttention", WARM_SOFT), last], "Encoder", -1)
    causal, cross = ("SelfAttention (causal)", WARM_SOFT), ("MultiHeadAttention", WARM_SOFT)
    stack(axes, 6.8, [causal, cross, last], "Decoder", 1)
    over = top + 0.75
    arrow(axes, (2.4, top), (2.4, over), (4.35, over), (4.35, 3.45), (5.55, 3.45), colour=ACCENT)
    axes.text(3.4, over + 0.1, "memory → K, V", ha="center", fontsize=8, color=ACCENT)
    axes.text(6.88, 2.98, "Q", fontsize=8, color=QUIET)
    box(axes, 6.8, 7.15, "output $E^T$, softmax", ACCENT_SOFT, 2.5)
    arrow(axes, (6.8, 7.4), (6.8, 7.85))
    axes.text(6.8, 8.05, " ".join(sides(trace, "cross")[0]), ha="center", fontsize=9)
    for x, side in ((2.4, "encoder_self"), (6.8, "decoder_self")):
        axes.text(x, -1.0, " ".join(sides(trace, side)[0]), ha="center", fontsize=9)
    return drawn


def stack(
    axes: Axes, x: float, sublayers: Sequence[tuple[str, str]], name: str, side: int
) -> float:
    """Draw embedding, positions and a stack of layers, upwards; return where its last box ends.

    Its name and the residual connections stand to the left (-1) or to the right (1).
    """
    box(axes, x, 0.0, r"Embedding $\cdot\,\sqrt{d_{model}}$", ACCENT_SOFT, 2.5)
    arrow(axes, (x, -0.7), (x, -0.25))
    axes.text(x, 0.68, "⊕", ha="center", va="center", fontsize=14)
    arrow(axes, (x, 0.25), (x, 0.52))
    axes.text(x + 0.3, 0.68, "∿ positions", va="center", fontsize=8)
    y, before = 1.7, 0.84
    for sublayer, colour in sublayers:
        arrow(axes, (x, before), (x, y - 0.25))
        box(axes, x, y, sublayer, colour, 2.5)
        arrow(axes, (x, y + 0.25), (x, y + 0.45))
        box(axes, x, y + 0.7, "Add & Norm", PAPER, 2.5)
        out, edge, low = x + 1.55 * side, x + 1.25 * side, y - 0.45
        arrow(axes, (x, low), (out, low), (out, y + 0.7), (edge, y + 0.7), colour=BESIDE)
        y, before = y + 1.75, y + 0.95
    top = before + 0.25
    outline(axes, x - 1.75, 1.0, 3.5, top - 1.0, BESIDE)
    where = "right" if side < 0 else "left"
    axes.text(x + 1.9 * side, (1.0 + top) / 2, f"{name}\n× N", ha=where, va="center", fontsize=10)
    if side > 0:
        arrow(axes, (x, before), (x, top + 0.4))
    return before


def shifted(trace: Trace) -> Figure:
    """What the model is given and what it is to return, position below position."""
    source, target = trace["source"]["tokens"], trace["target"]
    rows = [("src", source), ("tgt_in", target["inputs"]), ("tgt_out", target["tokens"])]
    drawn = figure(8.2, 2.3)
    axes = drawn.subplots()
    bare(axes)
    axes.set(xlim=(-1.3, max(len(source), len(target["tokens"]))), ylim=(3.45, -0.2))
    for (name, tokens), y in zip(rows, (0.2, 1.5, 2.7), strict=True):
        axes.text(-0.25, y + 0.3, name, ha="right", va="center", family="DejaVu Sans Mono")
        for j, token in enumerate(tokens):
            colour = WARM_SOFT if token["special"] else ACCENT_SOFT
            box(axes, j + 0.5, y + 0.25, label(token), colour, 0.9, 0.5)
            axes.text(j + 0.5, y + 0.66, str(token["id"]), ha="center", fontsize=6.5, color=QUIET)
    for j in range(len(target["tokens"]) - 1):
        arrow(axes, (j + 0.7, 2.7), (j + 1.3, 2.3), colour=BESIDE)
    return drawn


# The search (§6.1) ------------------------------------------------------------------------------


def loop(trace: Trace) -> Figure:
    """Greedy search from BEGIN to END: at each step the most probable next tokens."""
    greedy = next(
        (one for one in trace["decodings"] if one["beam_size"] == 1), trace["decodings"][0]
    )
    steps, few = greedy["steps"], 5
    drawn = figure(8.8, 2.9)
    given = "BEGIN"
    for axes, step in zip(drawn.subplots(1, len(steps), squeeze=False)[0], steps, strict=True):
        live = step["live"][0]
        shown = labels(live["tokens"][:few])
        p = [round(math.exp(x), 3) for x in live["log_probabilities"][:few]]
        kept = next(
            (one for one in step["candidates"] if one["fate"] in ("kept", "finished")), None
        )
        taken = "" if kept is None else label(kept["token"])
        colours = [WARM if name == taken else ACCENT for name in shown]
        places = [i + 0.5 for i in range(len(shown))]
        axes.barh(places, p, height=0.8, color=colours)
        axes.set(xlim=(0, 1), ylim=(few, 0), xticks=[])
        name_axis(axes, shown)
        axes.spines[["top", "right", "bottom"]].set_visible(False)
        title(axes, given)
        axes.set_xlabel(f"→ {taken}", color=WARM)
        given = taken
    return drawn


def tree(trace: Trace) -> Figure:
    """The beam search: what lived on, what ended, what was cut."""
    decoding = trace["decodings"][0]
    nodes = {
        one["id"]: one | {"step": number}
        for number, step in enumerate(decoding["steps"], start=1)
        for one in step["candidates"]
        if one["fate"] in ("kept", "finished", "duplicate")
        or (one["fate"] == "cut" and one["rank"] <= decoding["beam_size"] + 2)
    }
    best = set()
    at: int = decoding["outputs"][0]["id"]
    while at:
        best.add(at)
        at = nodes[at]["parent"]
    place = placed(nodes)
    drawn = figure(9.0, 0.22 * max(place.values()) + 0.8)
    axes = drawn.subplots()
    bare(axes)
    steps = len(decoding["steps"])
    axes.set(xlim=(-0.3, steps + 0.8), ylim=(max(place.values()) + 0.8, -0.8))
    for id, one in sorted(nodes.items(), key=lambda item: item[0] in best):
        x, y, above = one["step"], place[id], place[one["parent"]]
        chosen, cut = id in best, one["fate"] == "cut"
        colour = WARM if chosen else QUIET if cut else ACCENT
        axes.plot([x - 0.45, x - 0.28], [above, y], color=LINE if cut else colour,
                  lw=2.2 if chosen else 1.0, ls=":" if cut else "-")  # fmt: skip
        text = f"{label(one['token'])} " + f"{one['total']:.2f}".replace("-", "−")
        if one["fate"] == "finished":
            text += "\u2009/\u2009" + f"{one['total'] / one['score']:.2f}"
        axes.text(x - 0.25, y, text, va="center", fontsize=6.5, color=colour,
                  fontweight="bold" if chosen else "normal")  # fmt: skip
    axes.text(0.5, place[0], "BEGIN", va="center", ha="right", fontsize=7, color=WARM)
    return drawn


def placed(nodes: dict[int, dict[str, Any]]) -> dict[int, float]:
    """Give each node of a tree a height: leaves one below the other, others amid their own."""
    below: dict[int, list[int]] = {}
    for id, one in nodes.items():
        below.setdefault(one["parent"], []).append(id)
    place: dict[int, float] = {}
    free = 0

    def put(id: int) -> None:
        nonlocal free
        for child in below.get(id, ()):
            put(child)
        if id in below:
            own = [place[child] for child in below[id]]
            place[id] = (own[0] + own[-1]) / 2
        else:
            place[id] = float(free)
            free += 1

    put(0)
    return place
