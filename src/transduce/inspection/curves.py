"""The curves of a training: loss, perplexity, scores, rate, gradient norm and speed."""

import math
from collections.abc import Sequence

from transduce.inspection.history import History, Point, points
from transduce.inspection.study import Curve, Plot
from transduce.pricing import duration

MOST = 300
"""Points of a curve that are drawn; of more, those are that show its extremes."""
ENDLESS = 1e15
"""A perplexity beyond is that of a training that has failed, and would hide all others."""


def plots(history: History) -> list[Plot]:
    """Return the plots of all that the logs have, over the updates."""
    updates, validations = history.updates, history.validations
    plain = [(x, math.log(y)) for x, y in positive(points(updates, "perplexity"))]
    losses = [("training", plain), ("validation", points(validations, "valid_loss"))]
    if history.config.training.eps_ls > 0:
        losses.append(("training, with smoothed labels", points(updates, "loss")))
    perplexities = [
        ("training", sensible(points(updates, "perplexity"))),
        ("validation", sensible(points(validations, "valid_perplexity"))),
    ]
    norms = positive(points(updates, "gradient_norm"))
    speeds = points(updates, "target_tokens_per_second")
    found = [
        plot(history, "Loss", "nats per target token", losses, log=False),
        plot(history, "Perplexity", "perplexity", perplexities),
        scores(history),
        plot(
            history, "Learning rate", "rate",
            [("rate", points(updates, "learning_rate"))], log=False,
        ),
        plot(history, "Gradient norm", "norm", [("norm", norms)]),
        plot(history, "Speed", "target tokens per second", [("speed", speeds)], log=False),
    ]  # fmt: skip
    return [one for one in found if one is not None]


def scores(history: History) -> Plot | None:
    """Return the validation scores, and the best of the first one as a level; None without any."""
    curves = [
        (name, points(history.validations, name)) for name in history.config.evaluation.metrics
    ]
    best = history.standing().best
    level = best[0].score if best else None
    name = f"best {history.metric}: {level:.2f}, update {best[0].step:,}" if best else ""
    return plot(history, "Validation scores", "score", curves, False, level, name)


def plot(
    history: History,
    title: str,
    y: str,
    curves: Sequence[tuple[str, Sequence[Point]]],
    log: bool = True,
    level: float | None = None,
    level_name: str = "",
) -> Plot | None:
    """Return a plot over the updates, y logarithmic or not; None if there is nothing to draw."""
    drawn = [Curve(name, thinned(some)) for name, some in curves if some]
    if not drawn:
        return None
    known = math.isfinite(history.seconds)
    x = f"updates ({history.steps:,} in {duration(history.seconds)})" if known else "updates"
    return Plot(title, x, y, drawn, "y" if log else False, level=level, level_name=level_name)


def positive(some: Sequence[Point]) -> list[Point]:
    """Return the points that have a logarithm."""
    return [(x, y) for x, y in some if y > 0]


def sensible(some: Sequence[Point]) -> list[Point]:
    """Return the perplexities that can be drawn beside others."""
    return [(x, y) for x, y in some if 0 < y < ENDLESS]


def thinned(some: Sequence[Point], most: int = MOST) -> list[Point]:
    """Return at most so many points that look like all: ends, and both extremes of each stretch.

    >>> thinned([(1.0, 5.0), (2.0, 9.0), (3.0, 2.0), (4.0, 4.0), (5.0, 1.0)], most=4)
    [(1.0, 5.0), (2.0, 9.0), (3.0, 2.0), (5.0, 1.0)]
    """
    if len(some) <= most:
        return list(some)
    inner, parts = some[1:-1], (most - 2) // 2
    kept = [some[0]]
    for part in range(parts):
        stretch = inner[part * len(inner) // parts : (part + 1) * len(inner) // parts]
        by_height = sorted(stretch, key=lambda point: point[1])
        kept += sorted({by_height[0], by_height[-1]})
    return [*kept, some[-1]]
