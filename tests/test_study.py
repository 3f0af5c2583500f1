"""A study in its three forms: lines under each other, a page that runs nothing, numbers."""

import json
from pathlib import Path

import pytest

from transduce.inspection.study import (
    MANY,
    Axis,
    Curve,
    Drawing,
    Example,
    Examples,
    Link,
    Plot,
    Section,
    Study,
    Table,
    blocks,
    page,
    printed,
    short,
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
            [
                Examples(
                    f"worst {HIT}",
                    [Example([(HIT, HIT)], HIT, HIT, Link(HIT, f"{HIT}/1.html"))],
                )
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


def test_links_lead_to_what_lies_beside_and_nowhere_else() -> None:
    assert Link("see", "my pages/ü 1.html").address == "my%20pages/%C3%BC%201.html"
    assert Link("see", "javascript:hit()").address == "javascript%3Ahit%28%29"
    assert Link("see", '"onclick="hit()').address == "%22onclick%3D%22hit%28%29"
    for path in ("/etc/passwd", "//elsewhere/1.html"):
        with pytest.raises(ValueError, match="beside"):
            Link("see", path)


def test_examples_in_both_forms() -> None:
    example = Example(
        [("source", "שלום"), ("output", "")], "sentence 3", "transduce inspect run שלום",
        Link("its page", "pages/1.html"),
    )  # fmt: skip
    study = Study("t", "l", [Section("s", examples=[Examples("worst", [example])])], "m")
    lines = list(printed(study))
    assert lines[lines.index("worst") :] == [
        "worst", "", "  sentence 3", "    source  שלום", "    output",
        "    $ transduce inspect run שלום",
    ]  # fmt: skip
    html = page(study)
    assert '<dd class="text" dir="auto">שלום</dd>' in html
    assert '<dd class="text" dir="auto"></dd>' in html
    assert '<a href="pages/1.html">its page</a>' in html


RISING = [(float(i), float(i)) for i in range(1, MANY + 2)]


def test_a_curve_of_many_points_is_a_line() -> None:
    marked, dense = Curve("few", RISING[:MANY]), Curve("many", RISING)
    assert (marked.dense, dense.dense) == (False, True)
    assert not Curve("theory", RISING, RISING).dense
    plot = Plot("p", "n", "y", [dense], log="y")
    html = page(Study("t", "l", [Section("s", plots=[plot])], "m"))
    assert html.count('class="line"') == 2  # drawn, and in the key
    assert 'class="mark' not in html
    assert Drawing(plot).described() == "p. y over n. many: 1: 1, 41: 41"


def test_one_axis_may_be_logarithmic() -> None:
    curve = Curve("c", [(0.0, 1.0), (50.0, 10.0), (100.0, 100.0)])
    drawing = Drawing(Plot("p", "n", "y", [curve], log="y"))
    xs, ys = ([mark[axis] for mark in drawing.marks(curve)] for axis in "xy")
    assert xs[1] - xs[0] == pytest.approx(xs[2] - xs[1])
    assert ys[1] - ys[0] == pytest.approx(ys[2] - ys[1])
    Drawing(Plot("p", "n", "y", [Curve("c", [(1.0, 0.0), (2.0, 5.0)])], log="x"))


def test_the_course_of_a_curve() -> None:
    assert blocks([(0.0, 0.0), (1.0, 7.0), (2.0, 0.0)], log=False, width=3) == "▁█▁"
    assert blocks([(0.0, 1.0), (1.0, 10.0), (2.0, 100.0)], log=True, width=3) == "▁▅█"
    assert blocks([(0.0, 1.0), (9.0, 5.0)], log=False, width=10) == "▁        █"
    plots = [Plot("Loss", "updates", "nats", [Curve("training", RISING), Curve("few", RISING[:2])])]
    lines = list(printed(Study("t", "l", [Section("s", plots=plots)], "m")))
    (line,) = [line for line in lines if line.startswith("Loss")]
    assert line.startswith("Loss, training      1  ▁")
    assert line.endswith("█    41")


@pytest.mark.parametrize(
    ("values", "log", "texts"),
    [
        (
            [1.5, 3.0],
            True,
            ["1.6", "1.8", "2", "2.2", "2.4", "2.6", "2.8", "3"],
        ),  # powers of ten alone would be none
        ([1e-4, 1e-4], False, ["6e-05", "8e-05", "0.0001", "0.00012", "0.00014"]),
        ([1.0, 1e304], True, None),
        ([1e304, 1e304], True, None),
    ],
)
def test_axes_of_odd_values_have_ticks(
    values: list[float], log: bool, texts: list[str] | None
) -> None:
    axis = Axis(values, 0.0, 100.0, log)
    ticks = axis.ticks()
    assert all(0 <= axis.place(value) <= 100 for value, _ in ticks)
    assert len(ticks) >= 1
    assert texts is None or [text for _, text in ticks] == texts


def test_numbers_in_few_characters() -> None:
    given = [0.02, 2e3, 1.5e6, 3e9, 2e304]
    assert [short(value) for value in given] == ["0.02", "2k", "1.5M", "3G", "2e+304"]
