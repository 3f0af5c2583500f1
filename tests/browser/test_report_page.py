"""The data report in a browser: on a desk and on a phone, by day and by night."""

from pathlib import Path
from typing import Any

import pytest

from tests.test_page import HIT, sample_report
from transduce.data.page import report_page

pytestmark = pytest.mark.browser

SIZES = {"desk": (1280, 800), "phone": (390, 844)}


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the page of a report with all that could break one."""
    report = sample_report()
    report["title"] += HIT
    report["advice"].append("word" * 200 + HIT)
    report["parts"]["train"]["inputs"][0]["path"] = "folder/" * 60 + HIT
    report["parts"]["train"]["checks"][0]["examples"][0]["src"] = "long" * 300 + HIT
    report["leaks"][0]["examples"][0]["tgt"] = "\u202e" + "w" * 500 + HIT
    report["examples"][0]["src_pieces"][0] = "▁" + "piece" * 100 + HIT
    file = tmp_path_factory.mktemp("page") / "report.html"
    file.write_text(report_page(report), encoding="utf-8")
    return file


def _open(browser: Any, file: Path, size: str, scheme: str, problems: list[str]) -> Any:
    width, height = SIZES[size]
    page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
    page.set_default_timeout(5000)
    page.on("console", lambda message: problems.append(message.text))
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("requestfailed", lambda request: problems.append(request.url))
    page.goto(file.as_uri())
    return page


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
def test_nothing_runs_and_nothing_sticks_out(
    browser: Any, page_file: Path, size: str, scheme: str
) -> None:
    problems: list[str] = []
    page = _open(browser, page_file, size, scheme, problems)
    for details in page.locator("details").all():
        if details.get_attribute("open") is None:
            details.locator("summary").click()
    assert page.locator("details:not([open])").count() == 0
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
    headings = page.locator("h1, h2:not(.unseen), h3")
    assert headings.count() > 15
    assert all(heading.is_visible() for heading in headings.all())
    assert problems == []
    page.close()


@pytest.mark.parametrize("size", SIZES)
def test_the_examples_of_a_check_open_within_the_window(
    browser: Any, page_file: Path, size: str
) -> None:
    page = _open(browser, page_file, size, "light", [])
    details = page.locator(".checks details").first
    example = details.locator(".pairs")
    assert not example.is_visible()
    details.locator("summary").click()
    assert example.is_visible()
    box = example.bounding_box()
    assert box["x"] >= 0 and box["x"] + box["width"] <= SIZES[size][0]
    page.close()


# What a browser paints behind and before each text; transparent boxes show what is behind them.
CONTRASTS = """() => {
  const channels = colour => {
    const [r, g, b, a = 1] = colour.match(/[\\d.]+/g).map(Number);
    return {rgb: [r, g, b], a};
  };
  const luminance = rgb => rgb.map(c => c / 255)
    .map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const ground = element => {
    for (let e = element; e; e = e.parentElement) {
      const colour = channels(getComputedStyle(e).backgroundColor);
      if (colour.a === 1) return colour.rgb;
    }
  };
  const low = new Set();
  for (const element of document.querySelectorAll("body *")) {
    const own = [...element.childNodes].some(n => n.nodeType === 3 && n.data.trim());
    if (!own || element.classList.contains("mark") || element.tagName === "title") continue;
    const style = getComputedStyle(element);
    const ink = channels(element.closest("svg") ? style.fill : style.color).rgb;
    const [a, b] = [luminance(ink), luminance(ground(element))].sort((x, y) => y - x);
    if ((a + 0.05) / (b + 0.05) < 4.5) low.add(element.className + ": " + element.textContent);
  }
  return [...low];
}"""


def test_both_themes_can_be_read(browser: Any, page_file: Path) -> None:
    backgrounds = set()
    for scheme in ("light", "dark"):
        page = _open(browser, page_file, "desk", scheme, [])
        backgrounds.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
        assert page.evaluate(CONTRASTS) == []
        page.close()
    assert len(backgrounds) == 2


def test_on_paper_the_page_is_light_and_all_open(browser: Any, page_file: Path) -> None:
    page = _open(browser, page_file, "desk", "dark", [])
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not page.locator("nav").is_visible()
    assert page.locator(".checks .pairs").first.is_visible()
    page.close()


def test_nothing_is_cut_off_on_paper(browser: Any, page_file: Path) -> None:
    page = _open(browser, page_file, "desk", "light", [])
    page.set_viewport_size({"width": 720, "height": 1000})  # A4 within its margins
    page.emulate_media(media="print")
    assert page.evaluate("document.documentElement.scrollWidth") <= 720
    page.close()
