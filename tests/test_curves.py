"""Curves: few points that look like many, and what cannot be drawn left out."""

import math
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from transduce.config import parse
from transduce.inspection.curves import ENDLESS, MOST, plots, thinned
from transduce.inspection.history import History

heights = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=200)


@given(heights, st.integers(4, 60))
def test_thinning_keeps_ends_and_extremes(ys: list[float], most: int) -> None:
    points = [(float(i), y) for i, y in enumerate(ys)]
    kept = thinned(points, most)
    assert len(kept) <= max(most, min(len(points), most))
    assert kept == sorted(set(kept))
    assert set(kept) <= set(points)
    assert (kept[0], kept[-1]) == (points[0], points[-1])
    assert max(y for _, y in kept) == max(ys)
    assert min(y for _, y in kept) == min(ys)
    if len(points) <= most:
        assert kept == points


def history(updates: list[Any], validations: list[Any], **training: Any) -> History:
    config = parse({"training": training, "evaluation": {"metrics": ["wer", "per"]}}, "test")
    return History(Path("run"), config, updates, validations, [], 0)


UPDATE = {
    "loss": 1.5, "perplexity": math.e, "learning_rate": 1e-3, "gradient_norm": 0.5,
    "target_tokens_per_second": 900.0, "seconds": 90.0,
}  # fmt: skip


def test_what_is_drawn() -> None:
    valid = {"step": 50.0, "valid_loss": 1.25, "valid_perplexity": 3.5, "wer": 40.0, "per": 9.0}
    drawn = plots(history([{"step": 50.0} | UPDATE], [valid]))
    values = {
        plot.title: {curve.name: curve.points for curve in plot.curves} for plot in drawn
    }  # fmt: skip
    assert values == {
        "Loss": {
            "training": [(50.0, 1.0)],  # ln e: the plain one, as that of validation
            "validation": [(50.0, 1.25)],
            "training, with smoothed labels": [(50.0, 1.5)],
        },
        "Perplexity": {"training": [(50.0, math.e)], "validation": [(50.0, 3.5)]},
        "Validation scores": {"wer": [(50.0, 40.0)], "per": [(50.0, 9.0)]},
        "Learning rate": {"rate": [(50.0, 1e-3)]},
        "Gradient norm": {"norm": [(50.0, 0.5)]},
        "Speed": {"speed": [(50.0, 900.0)]},
    }
    assert {plot.x for plot in drawn} == {"updates (50 in 90 s)"}
    assert {plot.title: plot.log for plot in drawn}["Perplexity"] == "y"
    scores = next(plot for plot in drawn if plot.title == "Validation scores")
    assert (scores.level, scores.level_name) == (40.0, "best wer: 40.00, update 50")


def test_without_smoothing_there_is_one_loss() -> None:
    drawn = plots(history([{"step": 50.0} | UPDATE], [], eps_ls=0.0))
    assert [curve.name for curve in drawn[0].curves] == ["training"]
    assert "Validation scores" not in [plot.title for plot in drawn]


def test_what_cannot_be_drawn_is_left_out() -> None:
    odd = {"step": 100.0, "loss": math.nan, "perplexity": 2 * ENDLESS, "gradient_norm": 0.0}
    drawn = {plot.title: plot for plot in plots(history([{"step": 50.0} | UPDATE, odd], []))}
    assert [len(drawn[title].curves[0].points) for title in ("Perplexity", "Gradient norm")] == [
        1,
        1,
    ]
    assert plots(history([{"step": 1.0, "loss": math.nan}], [])) == []


def test_a_long_run_is_a_small_page() -> None:
    rows = [{"step": float(i)} | UPDATE for i in range(1, 20_001)]
    assert all(len(c.points) <= MOST for plot in plots(history(rows, [])) for c in plot.curves)
