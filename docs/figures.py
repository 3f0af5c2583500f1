"""Make the figures of the book from one word's way through a model.

    python docs/figures.py runs/quickstart

Whatever depends on the model comes from its trace (`transduce.inspection.tracing`), as the numbers
of the inspection page do.
"""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from diagrams import loop, shifted, transformer, tree
from drawing import (
    ACCENT,
    INK,
    LINE,
    QUIET,
    WARM,
    WARM_SOFT,
    Trace,
    bare,
    figure,
    labels,
    matrix,
    name_axis,
    outline,
    rounded,
    save,
    sides,
    title,
    use_style,
)
from matplotlib.figure import Figure

from transduce.decoding.translator import translator_of
from transduce.inspection.attention import KINDS
from transduce.inspection.stations import Head, Stations
from transduce.inspection.tracing import trace
from transduce.model.transformer import causal_mask, sinusoids
from transduce.model_folder import load_model
from transduce.training.optimizer import paper_rate

FEW = 48
"""Components of a long vector that are drawn."""


def station(trace: Trace, kind: str) -> tuple[Stations, Head]:
    """Return the stations of a kind of attention, and the head that is followed."""
    found: Stations = trace["stations"][kind]
    assert found.one is not None
    return found, found.one


# What enters (§3.4, §3.5) -----------------------------------------------------------------------


def embedding(trace: Trace) -> Figure:
    """A row of the matrix for each token times √d_model, plus its position."""
    one, _ = station(trace, "encoder_self")
    assert one.embedded is not None and one.x is not None
    parts = (
        one.embedded.scaled,
        one.embedded.position,
        one.embedded.scaled + one.embedded.position,
    )
    names = (r"$\sqrt{d_{model}}\;E[id]$", "$PE(pos)$", "$x$")
    return added(parts, names, sides(trace, "encoder_self")[0])


def residual(trace: Trace) -> Figure:
    """What enters a sub-layer, what it makes of it, and the sum."""
    one, _ = station(trace, "encoder_self")
    assert one.x is not None and one.attended is not None and one.sum is not None
    names = ("$x$", "$Sublayer(x)$", "$x + Sublayer(x)$")
    if trace["model"]["norm_place"] == "pre":
        names = ("$x$", "$Sublayer(LayerNorm(x))$", "$x + Sublayer(LayerNorm(x))$")
    return added((one.x, one.attended, one.sum), names, sides(trace, "encoder_self")[0])


def added(parts: Sequence[torch.Tensor], names: Sequence[str], rows: list[str]) -> Figure:
    """Draw two matrices and their sum, on one scale."""
    drawn = figure(8.6, 2.5)
    top = float(parts[-1].abs().quantile(0.98))
    for axes, part, name, sign in zip(drawn.subplots(1, 3), parts, names, "+= ", strict=True):
        matrix(axes, part[:, :FEW], rows, signed=True, top=top, square=False)
        title(axes, name)
        axes.text(1.06, 0.5, sign, transform=axes.transAxes, ha="center", va="center", fontsize=14)
        axes.set_xlabel(f"1 … {FEW} / {part.size(1)}", color=QUIET, fontsize=7)
    return drawn


def positions(trace: Trace) -> Figure:
    """The sinusoids, and how alike two positions are."""
    d_model: int = trace["model"]["d_model"]
    table = sinusoids(64, d_model)
    drawn = figure(8.6, 3.0)
    left, right = drawn.subplots(1, 2, width_ratios=[1.25, 1])
    matrix(left, table, signed=True, top=1.0, square=False)
    left.set(xlabel="$2i,\\ 2i+1$", ylabel="$pos$", yticks=[0, 16, 32, 48])
    left.set_xticks([0, d_model // 2, d_model], ["0", str(d_model // 2), str(d_model)])
    title(left, "$PE(pos)$")
    for pos, style in ((16, "-"), (32, "--"), (48, ":")):
        offsets = torch.arange(-15, 16)
        alike = table[pos + offsets] @ table[pos] / (d_model / 2)
        right.plot(offsets, alike, style, color=(ACCENT, WARM, INK)[pos // 16 - 1], lw=1.6,
                   label=f"$pos = {pos}$")  # fmt: skip
    right.set(xlabel="$k$", ylim=(0, 1.05))
    right.spines[["top", "right"]].set_visible(False)
    right.legend(frameon=False, fontsize=8)
    title(right, r"$PE(pos) \cdot PE(pos + k)\;/\;\frac{d_{model}}{2}$")
    return drawn


# Attention (§3.2) -------------------------------------------------------------------------------


def head(trace: Trace) -> Figure:
    """One head of the decoder's self-attention, from products to weights."""
    found, one = station(trace, "decoder_self")
    rows, columns = sides(trace, "decoder_self")
    drawn = figure(8.4, 8.2)
    first, second, third, fourth = drawn.subplots(2, 2).flat
    small = 2 if len(rows) <= 12 else None
    matrix(first, one.raw, rows, columns, signed=True, digits=None if small is None else 1)
    title(first, r"① $\;q \cdot k$")
    matrix(second, one.s, rows, columns, signed=True, digits=small)
    title(second, r"② $\;s = q \cdot k\;/\;\sqrt{d_k}$")
    matrix(third, one.s, rows, columns, signed=True, hidden=one.hidden, digits=small)
    title(third, "③  mask")
    matrix(fourth, one.alpha, rows, columns, top=1.0, digits=small)
    title(fourth, r"④ $\;\alpha = softmax(s)$")
    drawn.supxlabel(
        f"decoder, layer {found.layer + 1}, head {found.head + 1}", fontsize=8, color=QUIET
    )
    return drawn


def output(trace: Trace) -> Figure:
    """The output of one query: values weighted and added up."""
    found, one = station(trace, "encoder_self")
    queries, keys = sides(trace, "encoder_self")
    i = len(queries) // 2
    drawn = figure(8.6, 3.4)
    grid = drawn.add_gridspec(2, 3, height_ratios=[len(keys), 1.4], width_ratios=[0.55, 1, 1])
    bars, values, weighted = (drawn.add_subplot(grid[0, c]) for c in range(3))
    places = [j + 0.5 for j in range(len(keys))]
    bars.barh(places, rounded(one.alpha[i]).numpy(), height=0.75, color=ACCENT)
    bars.set(ylim=(len(keys), 0), xlim=(0, 1), xticks=[0, 1])
    name_axis(bars, keys)
    bars.spines[["top", "right", "left"]].set_visible(False)
    title(bars, rf"$\alpha$   ({queries[i]})")
    matrix(values, one.v, signed=True, square=False)
    title(values, "$v$")
    parts = one.alpha[i][:, None] * one.v
    top = float(torch.cat([parts, one.b[i : i + 1]]).abs().max())
    matrix(weighted, parts, signed=True, top=top, square=False)
    title(weighted, r"$\alpha\,v$")
    under = drawn.add_subplot(grid[1, 2])
    matrix(under, one.b[i : i + 1], [r"$b=\Sigma\,\alpha v$"], signed=True, top=top, square=False)
    note = drawn.add_subplot(grid[1, :2])
    bare(note)
    place = f"encoder, layer {found.layer + 1}, head {found.head + 1}"
    note.text(0.0, 0.4, place, fontsize=8, color=QUIET, va="center")
    return drawn


def heads(trace: Trace) -> Figure:
    """All heads of one layer of each kind of attention."""
    h: int = trace["model"]["h"]
    shown = min(h, 8)
    drawn = figure(8.6, 8.6 * 3.3 / max(4, shown))
    grid = drawn.subplots(3, shown, squeeze=False)
    for line, kind in zip(grid, KINDS, strict=True):
        found, _ = station(trace, kind)
        whole = trace["attention"][kind]
        weights = whole["weights"][whole["layers"].index(found.layer)]
        rows, columns = sides(trace, kind)
        for at, axes in enumerate(line):
            matrix(axes, weights[at], rows if at == 0 else (), columns, top=1.0)
            axes.tick_params(labelsize=6)
            title(axes, f"$head_{at + 1}$")
        line[0].set_ylabel(f"{said(kind)}\nlayer {found.layer + 1}", fontsize=8)
    return drawn


def maps(trace: Trace) -> Figure:
    """All layers of the three kinds of attention, each the mean of its heads."""
    layers = max(len(trace["attention"][kind]["layers"]) for kind in KINDS)
    drawn = figure(8.6, 2.9 * layers)
    grid = drawn.subplots(layers, 3, squeeze=False)
    for column, kind in enumerate(KINDS):
        rows, columns = sides(trace, kind)
        for line, weights in zip(grid, trace["attention"][kind]["weights"], strict=False):
            matrix(line[column], weights.mean(dim=0), rows, columns, top=1.0)
        grid[0][column].set_title(said(kind), pad=10)
    for number, line in enumerate(grid):
        line[0].set_ylabel(f"layer {number + 1}")
    return drawn


def said(kind: str) -> str:
    """Return what a kind of attention is called."""
    return {"encoder_self": "encoder self", "decoder_self": "decoder self (causal)"}.get(
        kind, "cross"
    )


def cross(trace: Trace) -> Figure:
    """Cross-attention: what each output token looked at in the source."""
    found, _ = station(trace, "cross")
    rows, columns = sides(trace, "cross")
    whole = trace["attention"]["cross"]
    weights = whole["weights"][whole["layers"].index(found.layer)].mean(dim=0)
    drawn = figure(0.42 * len(columns) + 1.2, 0.42 * len(rows) + 0.9)
    axes = drawn.subplots()
    matrix(axes, weights, rows, columns, top=1.0, digits=2)
    return drawn


# Masks (§3.2.3) ---------------------------------------------------------------------------------


def masks(trace: Trace) -> Figure:
    """The causal mask, two that are wrong, and padding."""
    inputs = labels(trace["target"]["inputs"])[:5]
    n = len(inputs)
    right = causal_mask(n)
    padded = [*labels(trace["source"]["tokens"])[:2], "END", "PAD", "PAD"]
    real = torch.tensor([[token != "PAD" for token in padded]]).expand(len(padded), -1)
    drawn = figure(8.8, 2.6)
    panels = (
        (r"✓  $j \leq i$", right, inputs, inputs, ACCENT),
        ("✗  $j < i$", right & ~torch.eye(n, dtype=torch.bool), inputs, inputs, WARM),
        (r"✗  $j \geq i$", right.T, inputs, inputs, WARM),
        (r"✓  $k_j \neq PAD$", real, padded, padded, ACCENT),
    )
    for axes, (name, mask, rows, columns, colour) in zip(drawn.subplots(1, 4), panels, strict=True):
        matrix(axes, 0.35 * mask.double(), rows, columns, top=1.0, hidden=(~mask).long())
        title(axes, name, colour)
    return drawn


# Add & Norm (§3.1) ------------------------------------------------------------------------------


def layer_norm(trace: Trace) -> Figure:
    """One position before and after: a row of the matrix has mean 0 and variance 1."""
    found, _ = station(trace, "encoder_self")
    norm = found.norm_before or found.norm_after
    assert norm is not None and norm.mean is not None
    rows = sides(trace, "encoder_self")[0]
    i = len(rows) // 2
    x = norm.input[i]
    after = (x - norm.mean[i]) / (norm.variance[i] + norm.epsilon).sqrt()
    drawn = figure(8.8, 2.8)
    whole, before, behind = drawn.subplots(1, 3, width_ratios=[1.2, 1, 1])
    matrix(whole, norm.input, rows, signed=True, square=False)
    outline(whole, 0, i, norm.input.size(1), 1)
    whole.set_xlabel(f"$d_{{model}} = {norm.input.size(1)}$", fontsize=8, color=QUIET)
    title(whole, "$x$")
    for axes, values, name in (
        (before, x, f"$x$   ({rows[i]})"),
        (behind, after, r"$(x-\mu)\,/\,\sqrt{\sigma^2+\epsilon}$"),
    ):
        # Of all digits: means of rounded numbers may lie half-way.
        mean, deviation = (float(rounded(it)) for it in (values.mean(), values.std(correction=0)))
        axes.vlines(range(len(values)), 0, rounded(values).numpy(), color=ACCENT, linewidth=0.9)
        axes.axhspan(mean - deviation, mean + deviation, color=WARM_SOFT, zorder=0)
        axes.axhline(mean, color=WARM, linewidth=1.2)
        axes.set(xticks=[])
        axes.spines[["top", "right", "bottom"]].set_visible(False)
        title(axes, name)
        said = rf"$\mu = {mean + 0.0:.2f},\ \ \sigma = {deviation:.2f}$".replace("-0.00", "0.00")
        axes.set_xlabel(said, color=WARM)
    return drawn


def axes_of_norms(trace: Trace) -> Figure:
    """Over what a mean is taken: rows are positions, columns features, three sentences."""
    drawn = figure(8.8, 2.6)
    n, d, count = 4, 6, 3
    panels = (
        ("✓  $d_{model}$", ACCENT, [(1, 0, 1, 1, d)]),
        ("✗  $pos$", WARM, [(1, 0, 0, n, 1)]),
        (r"✗  $pos \times d_{model}$", WARM, [(1, 0, 0, n, d)]),
        (r"✗  $B \times pos$", WARM, [(s, 0, 0, n, 1) for s in range(count)]),
    )
    for axes, (name, colour, parts) in zip(drawn.subplots(1, 4), panels, strict=True):
        bare(axes)
        axes.set(xlim=(-0.3, d + 0.3), ylim=((n + 0.8) * count, -0.3))
        axes.set_aspect("equal")
        for s in range(count):
            above = s * (n + 0.8)
            for i in range(n):
                for j in range(d):
                    taken = any(
                        s == which and y <= i < y + height and x <= j < x + width
                        for which, x, y, height, width in parts
                    )
                    fill = (ACCENT if colour == ACCENT else WARM) if taken else "white"
                    axes.fill([j, j + 1, j + 1, j], [above + i] * 2 + [above + i + 1] * 2,
                              facecolor=fill, edgecolor=LINE, linewidth=0.6)  # fmt: skip
        title(axes, name, colour)
        axes.set_xlabel("$d_{model}$", fontsize=7, color=QUIET)
        axes.set_ylabel(r"$B \times pos$", fontsize=7, color=QUIET)
    return drawn


def feed_forward(trace: Trace) -> Figure:
    """How many hidden units are not zero after max(0, ·), by position."""
    found, _ = station(trace, "encoder_self")
    short = found.feed_forward
    assert short is not None
    rows = sides(trace, "encoder_self")[0]
    drawn = figure(7.0, 2.4)
    left, right = drawn.subplots(1, 2, width_ratios=[1, 1.9])
    x = torch.linspace(-2, 2, 101)
    left.plot(x, x.relu(), color=ACCENT, lw=2)
    left.axhline(0, color=LINE, zorder=0)
    left.spines[["top", "right"]].set_visible(False)
    title(left, "$max(0, x)$")
    active = (short.d_ff - short.zeros).tolist()
    right.bar(range(len(rows)), short.d_ff, color=LINE, width=0.8)
    right.bar(range(len(rows)), active, color=ACCENT, width=0.8)
    right.set_xticks(range(len(rows)), rows)
    right.set(ylim=(0, short.d_ff), yticks=[0, short.d_ff])
    right.tick_params(length=0)
    right.spines[["top", "right", "left"]].set_visible(False)
    title(right, r"$\#\{\,j : (x W_1 + b_1)_j > 0\,\}\;/\;d_{ff}$")
    return drawn


# Learning (§5.3) --------------------------------------------------------------------------------


def rate(trace: Trace) -> Figure:
    """The learning rate of eq. 3."""
    drawn = figure(6.4, 2.6)
    axes = drawn.subplots()
    steps = range(1, 20_001, 20)
    for d_model, warmup, colour in ((512, 4000, ACCENT), (512, 8000, WARM), (256, 4000, INK)):
        rates = [paper_rate(step, d_model, warmup) for step in steps]
        name = rf"$d_{{model}} = {d_model},\ warmup = {warmup}$"
        axes.plot(steps, rates, color=colour, lw=1.8, label=name)
    axes.set(xlabel="$step$", ylabel="$lrate$", xlim=(0, 20_000), ylim=(0, None))
    axes.legend(frameon=False, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    return drawn


FIGURES: dict[str, Callable[[Trace], Figure]] = {
    "transformer": transformer,
    "shifted": shifted,
    "embedding": embedding,
    "positions": positions,
    "head": head,
    "output": output,
    "masks": masks,
    "heads": heads,
    "maps": maps,
    "cross": cross,
    "residual": residual,
    "layer-norm": layer_norm,
    "norm-axes": axes_of_norms,
    "feed-forward": feed_forward,
    "rate": rate,
    "loop": loop,
    "tree": tree,
}
"""All figures by the names of their files."""


def make(model: Path, word: str, out: Path) -> list[Path]:
    """Draw all figures of a word's way through a model, and return the files.

    It is followed in float64: the last digits of float32 change with where in memory numbers lie,
    and would change drawings where they are rounded.
    """
    use_style()
    config, exact, tokenizers = load_model(model)
    seen = trace(translator_of(exact.double(), tokenizers, config.decoding), word)
    out.mkdir(parents=True, exist_ok=True)
    made = []
    for name, draw in FIGURES.items():
        made.append(out / f"{name}.svg")
        save(draw(seen), made[-1])
    return made


def main() -> None:
    """Read the command line, and make the figures."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "model", type=Path, help="a model folder or a run, as of transduce quickstart"
    )
    parser.add_argument("--word", default="attention", help="the word that is followed")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "figures")
    asked = parser.parse_args()
    for path in make(asked.model, asked.word, asked.out):
        print(path)


if __name__ == "__main__":
    main()
