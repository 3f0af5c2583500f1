"""The inspection page in a browser: it shows what the trace has, and asks for nothing."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from tests.test_numbers import GOLDEN
from tests.test_tracing import translator
from transduce.inspection.numbers import Numbers, trace_numbers
from transduce.inspection.pages import page
from transduce.inspection.tracing import as_json, trace

pytestmark = pytest.mark.browser

SIZES = {"desk": (1440, 900), "phone": (360, 740)}
HIT = "<img src=x onerror=document.title='hit'>"


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    return trace(translator(d_model=32, N=3), "abc de abc")


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory, found: dict[str, Any]) -> Path:
    """Write a page whose texts try to be markup, and whose words run from right to left."""
    source = found["source"] | {"text": f"abc {HIT}"}
    tokens = [dict(token) for token in source["tokens"]]
    tokens[1]["text"], tokens[2]["text"] = HIT, "שלום"
    path = tmp_path_factory.mktemp("inspect") / "page.html"
    whole = found | {"source": source | {"tokens": tokens}}
    path.write_text(page([whole], f"model {HIT}"), encoding="utf-8")
    return path


def opened(
    browser: Any, file: Path, problems: list[str], size: str = "desk", scheme: str = "light",
    state: str = "",
) -> Any:  # fmt: skip
    width, height = SIZES[size]
    page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
    page.set_default_timeout(20000)
    page.on("console", lambda message: problems.append(message.text))
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("request", lambda r: problems.append(r.url) if not r.url.startswith("file:") else None)
    page.goto(f"{file.as_uri()}#{state}")
    page.wait_for_selector("#check span")
    return page


VIEWS = ["", "view=overview", "view=overview&sort=entropy", "view=head&kind=cross&heads=all"]
STATIONS = [f"kind={kind}&station={n}&token=2" for kind in ("encoder_self", "decoder_self", "cross")
            for n in range(10)]  # fmt: skip


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
def test_every_view_fits_and_asks_for_nothing(
    browser: Any, file: Path, size: str, scheme: str
) -> None:
    problems: list[str] = []
    own = opened(browser, file, problems, size, scheme)
    for state in VIEWS + STATIONS:
        own.evaluate("state => { location.hash = state; }", state)
        own.wait_for_timeout(30)
        wide = own.evaluate(
            "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        )
        assert wide <= 0, state
        assert own.inner_text("#view").strip()
    assert own.title() != "hit" and not own.query_selector("main img")
    assert not problems
    own.close()


def test_the_check_line(browser: Any, file: Path) -> None:
    """The page follows its numbers by hand, and would notice a wrong one."""
    problems: list[str] = []
    own = opened(browser, file, problems)
    assert own.inner_text("#check").startswith("✓")
    worst = own.evaluate("transduce.checked(transduce.traces[0])")
    assert 0 < worst < 1e-5
    spoiled = own.evaluate("""() => {
        const own = transduce.traces[0], alpha = own.stations.cross.one.alpha;
        transduce.numbers(own, alpha).data[0] += 0.01;
        return transduce.checked(own);
    }""")
    assert spoiled == pytest.approx(0.01, rel=0.5) or spoiled > 0.005
    own.close()


def test_the_numbers_are_those_of_the_trace(
    browser: Any, file: Path, found: dict[str, Any]
) -> None:
    problems: list[str] = []
    own = opened(browser, file, problems, state="kind=cross&station=4&token=1&digits=8&table=true")
    one = found["stations"]["cross"].one
    shown = own.eval_on_selector_all(
        ".keys-table tbody tr", "rows => rows.map(row => row.cells[3].innerText)"
    )
    assert [float(x) for x in shown] == pytest.approx(one.alpha[1].tolist(), abs=6e-9)
    exponentials = own.eval_on_selector_all(
        ".keys-table tbody tr", "rows => rows.map(row => +row.cells[2].innerText)"
    )
    s = one.s[1].tolist()
    assert exponentials == pytest.approx([math.exp(x - max(s)) for x in s], abs=1e-7)
    own.evaluate("location.hash = 'kind=cross&station=5&token=1&digits=8'")
    own.wait_for_timeout(50)
    b = own.eval_on_selector_all(
        "section[aria-label=vectors] > .vector:last-child .component",
        "cells => cells.map(cell => +cell.innerText.replace('−', '-'))",
    )
    assert b == pytest.approx(one.b[1, : len(b)].tolist(), abs=6e-9)
    own.close()


def test_by_keyboard_alone(browser: Any, file: Path) -> None:
    """Through all views, stations, tokens, layers and heads, with the keys that ? names."""
    problems: list[str] = []
    own = opened(browser, file, problems)
    state = "JSON.parse(JSON.stringify(transduce.state))"
    names = own.eval_on_selector_all("[role=tab]", "tabs => tabs.map(tab => tab.id)")
    for number, name in enumerate(names, start=1):
        own.keyboard.press(str(number))
        assert own.get_attribute(f"#{name}", "aria-selected") == "true"
    own.keyboard.press("1")
    for _ in range(12):
        own.keyboard.press("n")
    assert own.evaluate(state)["station"] == 9
    own.keyboard.press("p")
    own.keyboard.press("ArrowRight")
    own.keyboard.press("f")
    now = own.evaluate(state)
    assert (now["station"], now["token"], now["form"]) == (8, 1, "lecture")
    own.keyboard.press("t")
    assert own.query_selector("main table.numbers")
    own.keyboard.press("t")
    own.keyboard.press("3")
    own.keyboard.press("]")
    own.keyboard.press(".")
    now = own.evaluate(state)
    assert (now["layer"], now["head"]) == (1, 1)
    own.keyboard.press("/")
    own.keyboard.type("END\n")
    assert own.evaluate(state)["token"] == len(names_of(own)) - 1
    own.evaluate("document.activeElement.blur()")
    own.keyboard.press("?")
    assert own.is_visible("dialog#keys")
    own.keyboard.press("Escape")
    assert not own.is_visible("dialog#keys")
    own.keyboard.press("1")
    own.keyboard.press("Home")
    own.focus("#tab-stations")
    own.keyboard.press("ArrowRight")
    assert own.evaluate("document.activeElement.id") == names[1]
    assert not problems
    own.close()


def names_of(page: Any) -> list[str]:
    names: list[str] = page.evaluate(
        "transduce.sides(transduce.traces[0], transduce.state.kind).queries.map(t => t.text)"
    )
    return names


def test_a_view_can_be_mailed(browser: Any, file: Path) -> None:
    problems: list[str] = []
    own = opened(browser, file, problems)
    own.click("#station-4")
    own.click("#token-2")
    address = own.evaluate("location.hash")
    other = opened(browser, file, problems, state=address[1:])
    assert other.evaluate("transduce.state") == own.evaluate("transduce.state")
    assert other.inner_text("h2.station-name") == "5. Softmax"
    for nonsense in ("layer=99&head=-3&token=1e9&station=77&kind=x&view=y", "a=b", "%%%"):
        wild = opened(browser, file, problems, state=nonsense)
        assert wild.inner_text("#view").strip()
        wild.close()
    assert not problems


def test_the_golden_example(browser: Any, tmp_path: Path) -> None:
    """Numbers typed by hand: the printed digits on the page, in both forms."""
    file = tmp_path / "numbers.html"
    traced = trace_numbers(
        Numbers.model_validate(GOLDEN | {"layer_norm": [[1, 2, 3, 6]]}), "golden"
    )
    file.write_text(page([traced], "golden"), encoding="utf-8")
    problems: list[str] = []
    for form in ("paper", "lecture"):
        own = opened(browser, file, problems, state=f"station=3&table=true&form={form}")
        text = own.inner_text("#view")
        for number in ("0.2840", "0.1400", "0.5760", "0.4458", "0.1084", "0.4011", "0.1978"):
            assert number in text
        own.keyboard.press("n")
        text = own.inner_text("#view")
        for number in ("2.0119", "1.8680", "0.7710", "1.6044", "1.4011"):
            assert number in text
        own.keyboard.press("n")
        text = own.inner_text("#view")
        for number in ("−1.0690", "−0.5345", "0.0000", "1.6036"):
            assert number in text
        own.close()
    assert not problems


def test_two_sentences_in_one_page(browser: Any, tmp_path: Path) -> None:
    own = translator()
    file = tmp_path / "two.html"
    traces = [trace(own, "abc de"), trace(own, "ab")]
    file.write_text(page(traces, "model"), encoding="utf-8")
    problems: list[str] = []
    shown = opened(browser, file, problems, state="trace=1&token=5")
    last = len(traces[1]["source"]["tokens"]) - 1
    assert shown.evaluate("transduce.state.token") == last  # the other sentence is shorter
    shown.select_option("#trace-choice", "0")
    assert shown.evaluate("transduce.state.trace") == 0
    assert not problems
    json.dumps(as_json(traces), allow_nan=False)
