"""The page of a training in a browser: on a desk and on a phone, by day and by night."""

from pathlib import Path
from typing import Any

import pytest

from tests.browser.test_report_page import CONTRASTS
from transduce.inspection.study import (
    MANY,
    Curve,
    Example,
    Examples,
    Link,
    Plot,
    Section,
    Study,
    Table,
    write_page,
)

pytestmark = pytest.mark.browser

SIZES = {"desk": (1440, 900), "phone": (360, 740)}
HIT = "<script>window.hit = true</script><img src=x onerror='window.hit = true'>"


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a page with all that could break one, and what it links to."""
    folder = tmp_path_factory.mktemp("page")
    (folder / "my pages").mkdir()
    (folder / "my pages" / "1 ü.html").write_text("<title>here</title>")
    many = [(float(i), 1.0 + (i % 7)) for i in range(1, 20 * MANY)]
    curves = [Curve(f"training {HIT}", many), Curve("validation", many[:: 5 * MANY])]
    command = "transduce inspect run '" + "w" * 400 + "'"
    texts = [
        ("source", "שלום עולם"),
        ("reference", "long" * 200),
        (f"updates 100,000 to 200,000, right {HIT}", f"\u202e abc {HIT}"),
        ("output", ""),
    ]
    example = Example(texts, f"sentence 1 {HIT}", command, Link("its page", "my pages/1 ü.html"))
    columns = ["updates", "time", "loss", "perplexity", "bleu", "chrf", "best"]
    row = ["100,000", "10 h 57 min", "1.446", "4.24", "35.38", "60.00", "✓"]
    study = Study(
        f"The training of {HIT}", "word" * 100,
        [
            Section("Curves", ["x" * 300], [Table(columns, [row])],
                    [Plot(f"Loss {HIT}", "updates", "nats", curves, log="y")] * 2),
            Section("Worst sentences", examples=[Examples("Worst", [example] * 3)]),
        ],
        "a machine",
    )  # fmt: skip
    write_page(study, folder / "report.html")
    return folder / "report.html"


def _open(browser: Any, file: Path, size: str, scheme: str, requests: list[str]) -> Any:
    width, height = SIZES[size]
    page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
    page.set_default_timeout(5000)
    page.on("console", lambda message: requests.append(message.text))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(file.as_uri())
    return page


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
def test_nothing_runs_nothing_is_asked_for_nothing_sticks_out(
    browser: Any, page_file: Path, size: str, scheme: str
) -> None:
    requests: list[str] = []
    page = _open(browser, page_file, size, scheme, requests)
    page.wait_for_load_state("networkidle")
    assert requests == [page_file.as_uri()]
    widths = page.evaluate(
        "[document.documentElement.scrollWidth, document.documentElement.clientWidth]"
    )
    assert widths[0] <= widths[1]
    outside = page.evaluate(
        """[...document.querySelectorAll("body *")].filter(element =>
            !element.closest(".scroll") && !element.closest("svg")
            && element.getBoundingClientRect().right > innerWidth + 1
        ).map(element => element.outerHTML.slice(0, 80))"""
    )
    assert outside == []
    assert page.evaluate("typeof window.hit") == "undefined"
    assert page.evaluate(CONTRASTS) == []
    page.close()


def test_each_text_has_its_own_direction(browser: Any, page_file: Path) -> None:
    page = _open(browser, page_file, "phone", "light", [])
    texts = page.locator(".examples li").first.locator("dd")
    assert [text.evaluate("e => getComputedStyle(e).direction") for text in texts.all()] == [
        "rtl", "ltr", "ltr", "ltr",
    ]  # fmt: skip
    assert texts.last.evaluate("e => getComputedStyle(e, '::before').content") == '"nothing"'
    page.close()


def test_a_link_leads_to_the_page_beside(browser: Any, page_file: Path) -> None:
    page = _open(browser, page_file, "desk", "light", [])
    link = page.get_by_role("link", name="its page").first
    link.focus()
    page.keyboard.press("Enter")
    page.wait_for_function("document.title == 'here'")
    page.close()


def test_a_dense_curve_is_a_line_that_can_be_seen(browser: Any, page_file: Path) -> None:
    page = _open(browser, page_file, "desk", "dark", [])
    line = page.locator("svg.plot .line").first
    assert line.evaluate("e => getComputedStyle(e).fill") == "none"
    assert line.evaluate("e => getComputedStyle(e).stroke") != "none"
    box = line.bounding_box()
    assert box["width"] > 300 and box["height"] > 100
    assert page.locator("svg.plot .mark").count() == 2 * 4
    page.close()
