"""A study in its three forms: lines under each other, a page that runs nothing, numbers."""

import json
from pathlib import Path

from transduce.inspection.study import (
    Axis,
    Curve,
    Plot,
    Section,
    Study,
    Table,
    page,
    printed,
    write_json,
)

HIT = "<script>hit()</script>"
STUDY = Study(
    f"Study {HIT}",
    f"Lede {HIT}",
    [
        Section(
            f"What it costs {HIT}",
            [f"Nothing {HIT}"],
            [Table(["type", "ms"], [[HIT, "1,024.5"], ["recurrent", "–"]], f"caption {HIT}")],
            [
                Plot(
                    f"time {HIT}", "n", "seconds",
                    [Curve(HIT, [(16.0, 1e-3), (4096.0, 0.5)], [(16.0, 2e-3), (4096.0, 1.0)])],
                ),
                Plot(
                    "rows", "row", "BLEU", [Curve("mean", [(0.0, 30.0)], (), [(29.0, 31.0)])],
                    log=False, names=[HIT], level=30.5,
                ),
            ],
        )
    ],
    "a machine",
    {"numbers": [1, 2]},
)  # fmt: skip


def test_text_is_never_markup() -> None:
    """A40."""
    html = page(STUDY)
    assert "<script" not in html
    assert html.count("&lt;script&gt;") > 10
    assert "default-src 'none'" in html


def test_columns_stand_under_each_other() -> None:
    lines = list(printed(STUDY))
    start = lines.index(f"type{' ' * (len(HIT) - 4)}       ms")
    assert lines[start + 2 : start + 4] == [
        f"{HIT}  1,024.5",
        f"recurrent{' ' * (len(HIT) - 9)}        –",
    ]


def test_the_numbers(tmp_path: Path) -> None:
    write_json(STUDY, tmp_path / "study.json")
    assert json.loads((tmp_path / "study.json").read_text())["numbers"] == [1, 2]


def test_axes_by_hand() -> None:
    log = Axis([1.0, 100.0], 0.0, 108.0, log=True)  # with 4 % at both ends
    assert [log.place(value) for value in (1.0, 10.0, 100.0)] == [4.0, 54.0, 104.0]
    assert (54.0, "10") in [(log.place(value), text) for value, text in log.ticks()]
    even = Axis([0.0, 10.0], 100.0, 0.0, log=False)
    assert even.place(5.0) == 50.0
    assert [text for _, text in even.ticks()] == ["0", "2", "4", "6", "8", "10"]
    assert Axis([3.0, 3.0], 0.0, 10.0, log=False).place(3.0) == 5.0


def test_a_column_is_of_numbers_or_it_is_not() -> None:
    rows = [["4 heads", "–", "n^2.01", "54.19 ± 4.59"], ["row of x", "12", "n^1", "-9.72 [-11, 7]"]]
    assert Table(["a", "b", "c", "d"], rows).to_the_right == [False, True, True, True]
    assert Table(["a"], []).to_the_right == [False]
