"""Search, matrix, alignment and comparison of the inspection page, on traces made by hand."""

import json
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.test_search import AVERAGE, NONE, S1_ALL, A, B, s1, stub
from transduce.config import EOS, DecodingConfig, ModelConfig
from transduce.data.tokenizer import train_tokenizer
from transduce.decoding.constraints import Constraints
from transduce.decoding.recording import Record, Recorder
from transduce.decoding.search import Penalty, beam_search
from transduce.decoding.translator import Translator, translator_of
from transduce.inspection.pages import page
from transduce.inspection.tracing import trace
from transduce.model import Transformer

pytestmark = pytest.mark.browser

SIZES = {"desk": (1440, 900), "phone": (360, 780)}
NAMES = {A: "A", B: "B", EOS: "END"}
Numbers = Sequence[Sequence[float]]


# Traces made by hand ----------------------------------------------------------------------------


def named(text: str) -> dict[str, Any]:
    return {"id": 0, "text": text, "special": text in ("BEGIN", "END")}


def side(words: Sequence[Sequence[str]], end: bool = True) -> dict[str, Any]:
    """A side of words, each made of pieces."""
    pieces = [piece for word in words for piece in word]
    found: list[dict[str, Any]] = []
    at = 0
    for word in words:
        found.append({"text": "".join(word), "pieces": list(range(at, at + len(word)))})
        at += len(word)
    return {
        "text": " ".join(map("".join, words)),
        "tokens": [named(piece) for piece in [*pieces, *["END"] * end]],
        "words": found,
        "pieces": [{"text": piece, "pieces": [i]} for i, piece in enumerate(pieces)],
    }


def by_hand(
    source: Sequence[Sequence[str]] = (("ab",), ("c",)),
    target: Sequence[Sequence[str]] = (("x",), ("y", "z")),
    weights: dict[str, Tensor] | None = None,
    decodings: Sequence[dict[str, Any]] = (),
    **more: Any,
) -> dict[str, Any]:
    """A trace with what these views read. Weights: layers, heads, queries, keys."""
    src, tgt = side(source), side(target)
    S, T = len(src["tokens"]), len(tgt["tokens"])
    sizes = {"encoder_self": (S, S), "decoder_self": (T, T), "cross": (T, S)}
    own = {kind: torch.full((2, 2, q, k), 1 / k) for kind, (q, k) in sizes.items()}
    own["decoder_self"] = own["decoder_self"].tril() / own["decoder_self"].tril().sum(-1, True)
    own |= weights or {}
    tgt["inputs"] = [named("BEGIN"), *tgt["tokens"][:-1]]
    tgt |= {"given": not decodings, "log_probabilities": [-0.5] * T}
    return {
        "source": src,
        "target": tgt,
        "model": {"h": own["cross"].size(1), "N_encoder": 2, "N_decoder": len(own["cross"]),
                  "attention_normaliser": "softmax"},
        "attention": {k: {"layers": list(range(len(w))), "weights": w} for k, w in own.items()},
        "stations": dict.fromkeys(own),
        "badges": {},
        "cannot_show": [],
        "decodings": list(decodings),
    } | more  # fmt: skip


def searched(
    scorer: Callable[[tuple[int, ...]], dict[int, float]],
    limit: int,
    beam: int,
    n_best: int = 1,
    penalty: Penalty = NONE,
    keys: int = 3,
    **more: Any,
) -> dict[str, Any]:
    """The record of a search, as a trace has it; every step looks at the source's first token."""
    recorder = Recorder(penalty, limit, beam)
    beam_search(stub([scorer]), [limit], beam, n_best, penalty, watch=recorder, **more)
    return as_decoding(recorder.record, keys)


def as_decoding(record: Record, keys: int) -> dict[str, Any]:
    def token(id: int) -> dict[str, Any]:
        return named(NAMES.get(id, f"<{id}>")) | {"id": id}

    look = torch.tensor([0.75, *[0.25 / (keys - 1)] * (keys - 1)])
    steps = []
    for step in record.steps:
        live = [
            {
                "id": one.id,
                "tokens": [
                    token(i)
                    for i, x in zip(one.tokens, one.log_probabilities, strict=True)
                    if x > -math.inf
                ],
                "log_probabilities": [
                    x
                    for _, x in zip(one.tokens, one.log_probabilities, strict=True)
                    if x > -math.inf
                ],
                "attention": look,
            }
            for one in step.live
        ]
        candidates = [vars(c) | {"token": token(c.token)} for c in step.candidates]
        steps.append({"live": live, "candidates": candidates})
    outputs = [
        {
            "id": id,
            "text": "".join(NAMES[i] for i in output.tokens if i != EOS),
            "n": len(output.tokens),
            "log_probability": output.log_probability,
            "divisor": record.penalty(len(output.tokens)),
            "score": output.score,
            "finished": output.finished,
        }
        for id, output in zip(record.output_ids, record.outputs, strict=True)
    ]
    return {
        "method": record.method, "beam_size": record.beam_size, "penalty": vars(record.penalty),
        "limit": record.limit, "attention_layer": 0, "steps": steps,
        "end": record.end and vars(record.end), "outputs": outputs,
    }  # fmt: skip


# In the browser ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tab(browser: Any) -> Any:
    """One tab for all, with what went wrong in it."""
    tab = browser.new_page()
    tab.set_default_timeout(10_000)
    tab.problems = []
    tab.on("console", lambda message: tab.problems.append(message.text))
    tab.on("pageerror", lambda error: tab.problems.append(str(error)))
    tab.route("http*://**/*", lambda route: tab.problems.append(route.request.url))
    return tab


Open = Callable[..., Any]


@pytest.fixture
def show(tab: Any, tmp_path: Path) -> Iterator[Open]:
    """Open the page of some traces; nothing may be asked for, and nothing may go wrong."""
    tab.problems.clear()

    def show(
        traces: Sequence[dict[str, Any]], state: str, size: str = "desk", scheme: str = "light"
    ) -> Any:
        file = tmp_path / "page.html"
        file.write_text(page(traces, "model"), encoding="utf-8")
        width, height = SIZES[size]
        tab.set_viewport_size({"width": width, "height": height})
        tab.emulate_media(color_scheme=scheme)
        tab.goto("about:blank")
        tab.goto(f"{file.as_uri()}#{state}")
        return tab

    yield show
    assert tab.problems == []


def texts(view: Any, selector: str) -> list[str]:
    """The texts of elements."""
    return [" ".join(text.split()) for text in view.locator(selector).all_text_contents()]


def rows(view: Any, selector: str) -> list[list[str]]:
    """The body of a table."""
    found = view.locator(f"{selector} tbody tr").evaluate_all(
        "all => all.map(row => [...row.cells].map(cell => cell.textContent))"
    )
    return [[" ".join(cell.split()) for cell in row] for row in found]


def written(x: float, digits: int = 4) -> str:
    return f"{x:.{digits}f}".replace("-", "−")


def numbers(view: Any, name: str) -> list[list[float]]:
    """The numbers of a matrix that is shown as a table."""
    found = rows(view, f"[aria-label='{name}'] table")
    return [[float(cell.split()[0].replace("−", "-")) for cell in row[1:]] for row in found]


RTL = (("של", "ום"), ("עולם",), ("<script>window.hit=1</script>",), ("w" * 70,))
VIEWS = ["decoding", "decoding&beside=0.1", "matrix", "matrix&table=true", "alignment",
         "alignment&across=true", "alignment&links=threshold&table=true", "comparison"]  # fmt: skip


@pytest.mark.parametrize(("size", "scheme"), [("desk", "light"), ("phone", "dark")])
@pytest.mark.parametrize("view", VIEWS)
def test_nothing_sticks_out_and_nothing_runs(show: Open, view: str, size: str, scheme: str) -> None:
    one = by_hand(
        RTL, RTL[::-1], decodings=[searched(s1, 9, 4, 3, keys=6), searched(s1, 9, 1, keys=6)]
    )
    other = by_hand(RTL, RTL, {"encoder_self": torch.rand(2, 2, 6, 6)})
    opened = show([one, other], f"view={view}", size, scheme)
    assert opened.locator(".empty").count() == 0
    assert opened.evaluate("document.documentElement.scrollWidth <= innerWidth")
    outside = opened.evaluate(
        """[...document.querySelectorAll("#view *")].filter(element =>
            !element.closest(".scroll, svg, .bars th")  // what scrolls, and what is cut off
            && element.getBoundingClientRect().right > innerWidth + 1
        ).map(element => element.outerHTML.slice(0, 80))"""
    )
    assert outside == []
    assert opened.evaluate("typeof window.hit") == "undefined"


@pytest.mark.parametrize("view", VIEWS)
def test_whatever_is_chosen_has_a_name(show: Open, view: str) -> None:
    one = by_hand(decodings=[searched(s1, 9, 4, 3), searched(s1, 9, 1)])
    opened = show([one, by_hand()], f"view={view}")
    nameless = opened.evaluate(
        """[...document.querySelectorAll("#view button, #view select, #view input")].filter(e =>
            !(e.labels && [...e.labels].some(l => l.textContent.trim()))
            && !e.getAttribute("aria-label") && !e.textContent.trim()).map(e => e.outerHTML)"""
    )
    assert nameless == []
    repeated = opened.evaluate(
        """[...document.querySelectorAll("[id]")].map(e => e.id).filter((id, i, all) =>
            all.indexOf(id) < i)"""
    )
    assert repeated == []


def test_views_that_have_nothing_to_show(show: Open) -> None:
    opened = show([by_hand()], "view=decoding")
    assert "the target was given" in opened.locator("#view").inner_text().lower()
    assert "Compare" not in texts(opened, "[role=tab]")
    none = by_hand()
    none["attention"]["cross"] = {"layers": [], "weights": torch.zeros(0, 2, 4, 4)}
    none["cannot_show"] = ["the decoder's: its layers are recurrent"]
    opened = show([none], "view=matrix&kind=cross")
    assert "its layers are recurrent" in opened.locator("#view").inner_text()


# The search -------------------------------------------------------------------------------------


def test_the_tree_has_the_seven_strings(show: Open) -> None:
    opened = show([by_hand(decodings=[searched(s1, 9, 10, 7, AVERAGE)])], "view=decoding")
    finished = opened.locator(".tree .node.finished")
    assert finished.count() == 7
    found = set()
    for node in finished.all():
        label, division = texts(node, "text")
        total, n, score = (
            float(x.replace("−", "-")) for x in division.replace(" = ", " / ").split(" / ")
        )
        assert label == ("END · 1 token" if n == 1 else f"END · {n:.0f} tokens")
        found.add((total, n, score))
    expected = {
        (round(total, 3), len(string) + 1, round(score, 3))
        for string, (total, score) in S1_ALL.items()
    }
    assert len(expected) == 7
    for ours, theirs in zip(sorted(found), sorted(expected), strict=True):
        assert ours == pytest.approx(theirs, abs=1.1e-3)
    assert texts(opened, ".tree .node.final text:first-of-type") == ["B", "END · 2 tokens"]
    outputs = texts(opened, ".outputs .output-text")
    assert outputs == ["B", "AA", "AB", "A", "BA", "BB", "the empty text"]
    first = opened.locator(".outputs li").first.inner_text()
    assert "−1.0217 / 2.0000 = −0.5108" in first


def test_the_table_is_the_record(show: Open) -> None:
    """All steps by keys, and every candidate in words."""
    decoding = searched(s1, 9, 1)
    opened = show([by_hand(decodings=[decoding])], "view=decoding")
    said = {"kept": "kept", "finished": "finished", "cut": "dropped: others better",
            "forbidden": "dropped: may not come here"}  # fmt: skip
    for number, step in enumerate(decoding["steps"]):
        assert f"step={number}" in opened.url or number == 0
        found = rows(opened, ".candidates")
        assert len(found) == len(step["candidates"])
        for row, one in zip(found, step["candidates"], strict=True):
            assert row[0] == str(one["rank"]) and row[2] == one["token"]["text"]
            assert row[3:6] == [
                written(one[x]).replace("−inf", "−∞") for x in ("log_probability", "total", "score")
            ]
            assert row[6].removesuffix(", the output's path") == said[one["fate"]]
        opened.keyboard.press("n")
    assert texts(opened, ".candidates caption") == [f"greedy: candidates of step {number + 1}"]
    opened.keyboard.press("p")
    opened.keyboard.press("ArrowLeft")
    assert "step" not in opened.url.partition("#")[2]  # the first
    hypotheses = [row[1] for row in rows(opened, ".candidates")]
    assert set(hypotheses) == {"BEGIN"}


def test_every_fate_is_drawn_in_its_own_way(show: Open) -> None:
    first_not_a = Constraints(banned=lambda tokens: [] if tokens else [A])
    decodings = [
        searched(s1, 3, 3, 3, constraints=[first_not_a], same=len),
        searched(lambda prefix: {A: 0.7, B: 0.3}, 3, 2),
    ]
    opened = show([by_hand(decodings=decodings)], "view=decoding&beside=0.1")
    fates = ["kept", "cut", "forbidden", "duplicate", "limit"]
    looks = set()
    for fate in fates:
        line = opened.locator(f".tree .edge.{fate}:not(.final):not(.output)").first
        looks.add(line.evaluate("e => getComputedStyle(e).strokeDasharray"))
        marks = opened.locator(f".tree .node.{fate} .fate-mark").count()
        assert (marks > 0) == (fate != "kept")
    assert len(looks) == len(fates) and "none" in looks
    width = "e => parseFloat(getComputedStyle(e).strokeWidth)"
    widths = [
        opened.locator(f".tree .edge.{kind}").first.evaluate(width)
        for kind in ("final", "kept", "cut")
    ]
    assert widths[0] > 2 * widths[1] > 2 * widths[2]
    every = [one for d in decodings for step in d["steps"] for one in step["candidates"]]
    legend = " ".join(texts(opened, ".tree-legend li"))
    for fate, name in [("kept", "kept"), ("forbidden", "forbidden"), ("limit", "length limit")]:
        assert f"{name} {sum(one['fate'] == fate for one in every)}" in legend


@pytest.mark.parametrize(
    ("scorer", "limit", "beam", "said"),
    [
        (s1, 9, 2, ["−1.6477", "at most 1.0000", "9 tokens", "could be −1.6477", "−1.0217"]),
        (s1, 9, 1, ["after step 3", "no hypothesis was left"]),
        (lambda prefix: {A: 0.7, B: 0.3}, 3, 2, ["the length limit, 3 tokens", "−1.0700"]),
    ],
    ids=["bound", "nothing lives", "limit"],
)
def test_why_it_ended(show: Open, scorer: Any, limit: int, beam: int, said: list[str]) -> None:
    opened = show([by_hand(decodings=[searched(scorer, limit, beam)])], "view=decoding")
    text = opened.locator(".card").inner_text()
    assert all(part in text for part in said), text


def test_two_searches_beside_each_other(show: Open) -> None:
    decodings = [searched(s1, 9, 2), searched(s1, 9, 1)]
    opened = show([by_hand(decodings=decodings)], "view=decoding")
    opened.locator("#beside").select_option("0.1")
    assert "beside=0.1" in opened.url
    assert texts(opened, ".card h3") == ["Output (beam 2)", "Output (greedy)"]
    assert opened.locator(".tree").count() == 2
    assert texts(opened, ".card mark") == ["B", "AA"] or texts(opened, ".card mark") == [
        "B",
        "A",
        "A",
    ]
    opened.keyboard.press("n")
    opened.keyboard.press("n")
    assert "Over: it ended after step 2" in opened.locator("#view").inner_text()
    two = show([by_hand(decodings=decodings), by_hand((("ab",), ("d",)), decodings=decodings)],
               "view=decoding&beside=1.0")  # fmt: skip
    assert texts(two, ".card h3") == ["Output (1: ab c · beam 2)", "Output (2: ab d · beam 2)"]


def test_what_may_come_next(show: Open) -> None:
    """At temperature 1 the model's own; at 2 shares of what is shown, and what is not is said."""
    decoding = searched(s1, 9, 2)
    hopes = decoding["steps"][0]["live"][0]
    hopes["tokens"], hopes["log_probabilities"] = (
        hopes["tokens"][:2],
        hopes["log_probabilities"][:2],
    )
    opened = show([by_hand(decodings=[decoding])], "view=decoding")
    assert [row[2] for row in rows(opened, ".bars")] == ["55 %", "40 %", "5.0 %"]
    assert "all others have 5.0 % together" in opened.locator(".next").inner_text()
    opened.locator("#temperature").fill("2")
    raised = [math.sqrt(0.55), math.sqrt(0.4)]
    shares = [f"{100 * x / sum(raised):.0f} %" for x in raised]
    assert [row[2] for row in rows(opened, ".bars")] == shares
    assert "At temperature 1 all others have 5.0 %" in opened.locator(".next").inner_text()
    assert "temperature=2" in opened.url


def test_where_a_step_looks(show: Open) -> None:
    """Pieces of a word together, END by itself."""
    source = (("a", "b"), ("c",))
    opened = show([by_hand(source, decodings=[searched(s1, 9, 2, keys=4)])], "view=decoding")
    assert texts(opened, ".looked li") == ["ab 83 %", "c 8 %", "END 8 %"]
    colours = opened.locator(".looked li").evaluate_all(
        "all => all.map(e => getComputedStyle(e).backgroundColor)"
    )
    assert colours[0] != colours[1] == colours[2]


def test_another_candidate_and_its_hypothesis(show: Open) -> None:
    decoding = searched(s1, 9, 2)
    opened = show([by_hand(decodings=[decoding])], "view=decoding&step=1")
    after = opened.locator("#search-0-hypothesis option:checked")
    first = after.inner_text()
    opened.keyboard.press("j")
    assert opened.locator(".candidates tr.picked td").first.inner_text() == "2"
    assert after.inner_text() != first
    opened.locator("#search-0-4").click()
    fourth = decoding["steps"][1]["candidates"][3]
    assert f"node={fourth['id']}" in opened.url
    assert opened.locator(".tree .node.chosen").get_attribute("data-node") == str(fourth["id"])
    opened.locator(
        f".tree .node[data-node='{decoding['steps'][0]['candidates'][1]['id']}']"
    ).click()
    assert "step" not in opened.url.partition("#")[2]  # back at the first
    opened.reload()
    assert opened.locator(".candidates tr.picked td").first.inner_text() == "2"


@pytest.fixture(scope="module")
def long() -> dict[str, Any]:
    """60 steps, and sentences of 200 tokens."""
    words = [(f"w{i}",) for i in range(199)]
    torch.manual_seed(0)
    weights = {kind: torch.randn(2, 2, 200, 200).softmax(-1) for kind in ("cross", "encoder_self")}
    scorer = lambda prefix: {A: 0.6, B: 0.4} if len(prefix) < 59 else {EOS: 1.0}  # noqa: E731
    return by_hand(words, words, weights, [searched(scorer, 70, 4, keys=200)])


def test_a_long_search_is_drawn_in_part(show: Open, long: dict[str, Any]) -> None:
    opened = show([long], "view=decoding")
    assert "Steps 1 to 24 of 60" in opened.locator(".search-tree").inner_text()
    opened.locator("#step").fill("60")
    assert "Steps 37 to 60 of 60" in opened.locator(".search-tree").inner_text()
    assert opened.locator(".tree .node").count() <= 24 * 8
    opened.locator("#dropped").uncheck()
    fates = opened.locator(".tree .edge.cut")
    assert fates.count() <= 8
    before = rows(opened, ".candidates")[0][1]
    assert before.startswith("… ") and len(before) < 20
    seen = opened.locator("#search-0-scroll").evaluate(
        """box => { const own = box.querySelector(".node.chosen").getBoundingClientRect(),
            around = box.getBoundingClientRect();
            return own.left >= around.left && own.right <= around.right; }"""
    )
    assert seen


# The matrix -------------------------------------------------------------------------------------

HEADS = torch.tensor(
    [
        [
            [[0.5, 0.5, 0.0], [0.25, 0.25, 0.5], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]],
            [[0.0, 1.0, 0.0], [0.25, 0.5, 0.25], [0.0, 0.0, 1.0], [0.5, 0.5, 0.0]],
        ],
        [
            [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [1.0, 0.0, 0.0]],
            [[0.0, 0.0, 1.0], [0.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]],
        ],
    ]
)


@pytest.mark.parametrize(
    ("state", "name", "expected"),
    [
        ("layer=1&head=1", "layer 2, head 2", HEADS[1, 1]),
        ("heads=mean", "layer 1, mean of all 2 heads", HEADS[0].mean(0)),
        ("heads=max&layers=max", "greatest of layers 1, 2, greatest of all 2 heads",
         HEADS.amax((0, 1))),
        ("heads=mean&layers=max", "greatest of layers 1, 2, mean of all 2 heads",
         HEADS.mean(1).amax(0)),
        ("norm=columns", "layer 1, head 1", HEADS[0, 0] / HEADS[0, 0].sum(0)),
    ],
)  # fmt: skip
def test_one_matrix(show: Open, state: str, name: str, expected: Tensor) -> None:
    opened = show([by_hand(weights={"cross": HEADS})], f"view=matrix&kind=cross&table=true&{state}")
    found = numbers(opened, f"cross-attention, {name}")
    assert found == [pytest.approx(row, abs=6e-5) for row in expected.tolist()]


def test_rows_are_named_by_what_they_are(show: Open) -> None:
    opened = show([by_hand()], "view=matrix&kind=cross&token=1")
    assert texts(opened, ".aside h3") == ["Step 2 (input x, produced y)"]
    assert texts(opened, ".row-labels .slot") == ["x", "y", "z", "END"]
    opened.locator("#kind").select_option("decoder_self")
    assert texts(opened, ".row-labels .slot") == ["BEGIN", "x", "y", "z"]
    assert texts(opened, ".column-labels .slot") == ["BEGIN", "x", "y", "z"]
    opened.locator("#table").check()
    hidden = opened.locator("td.hidden")
    assert hidden.count() == 6 and "a later token" in hidden.first.inner_text()


def test_the_row_of_the_matrix_is_chosen_and_said(show: Open) -> None:
    opened = show([by_hand(weights={"cross": HEADS})], "view=matrix&kind=cross")
    box = opened.locator("#map").bounding_box()
    opened.mouse.move(box["x"] + box["width"] * 5 / 6, box["y"] + box["height"] * 3 / 8)
    assert "produced y) → END: 0.500000" in opened.locator(".said").inner_text()
    opened.mouse.down()
    opened.mouse.up()
    assert "token=1" in opened.url and "key=2" in opened.url
    assert rows(opened, ".bars")[0] == ["END", "", "0.5000"]
    opened.locator("#map").focus()
    opened.keyboard.press("ArrowDown")
    opened.keyboard.press("ArrowLeft")
    opened.keyboard.press("Enter")
    assert "token=2" in opened.url and "key=1" in opened.url
    opened.keyboard.press("]")
    opened.keyboard.press(".")
    assert texts(opened, "figcaption") == ["Cross-attention, layer 2, head 2"]


def test_a_matrix_is_saved(show: Open, tmp_path: Path) -> None:
    opened = show([by_hand(weights={"cross": HEADS})], "view=matrix&kind=cross")
    saved = {}
    for kind in ("PNG", "SVG", "CSV", "JSON"):
        with opened.expect_download() as download:
            opened.get_by_role("button", name=kind).click()
        name = download.value.suggested_filename
        assert name == f"cross-attention-layer-1-head-1.{kind.lower()}"
        download.value.save_as(tmp_path / name)
        saved[kind] = (tmp_path / name).read_bytes()
    assert saved["PNG"].startswith(b"\x89PNG")
    assert saved["SVG"].count(b"<rect") == 12
    assert saved["CSV"].decode().splitlines()[:2] == [',"ab","c","END"', '"x",0.5,0.5,0']
    assert json.loads(saved["JSON"])["values"] == HEADS[0, 0].tolist()


def test_hovering_is_quick(show: Open, long: dict[str, Any]) -> None:
    """200 x 200: the middle of a hundred moves; the machine may be busy at any of them."""
    opened = show([long], "view=matrix&kind=cross")
    middle = opened.evaluate(
        """() => { const map = document.getElementById("map"), times = [];
            const { left, top } = map.getBoundingClientRect();
            for (let i = 0; i < 100; i++) {
              const start = performance.now();
              map.dispatchEvent(new MouseEvent("mousemove",
                { clientX: left + 13 * i + 3, clientY: top + 13 * i + 3 }));
              document.body.offsetHeight;
              times.push(performance.now() - start);
            }
            return times.sort((a, b) => a - b)[50]; }"""
    )
    assert middle < 50
    assert "w99" in opened.locator(".said").inner_text()


# Alignment --------------------------------------------------------------------------------------

# Three source pieces and END, three target pieces and END; words: ab = 0 1, c = 2; x = 0, yz = 1 2.
WEIGHTS = torch.tensor([[0.5, 0.25, 0.125, 0.125], [0.0, 0.25, 0.25, 0.5],
                        [0.25, 0.0, 0.75, 0.0], [0.0, 0.0, 0.0, 1.0]])  # fmt: skip
SHARES = "Share of each source word in the look of each target word"


def aligned(weights: Tensor = WEIGHTS, **more: Any) -> dict[str, Any]:
    cross = torch.stack([weights, weights])[None].repeat(2, 1, 1, 1)
    return by_hand((("a", "b"), ("c",)), (("x",), ("y", "z")), {"cross": cross}, **more)


@pytest.mark.parametrize(
    ("state", "shares", "pairs"),
    [
        ("", [[0.75, 0.125], [0.25, 0.5]], "0-0 1-1"),
        ("later=true", [[0.25, 0.25], [0.125, 0.375]], "0-0 1-1"),
        ("links=threshold&threshold=0.25", [[0.75, 0.125], [0.25, 0.5]], "0-0 0-1 1-1"),
        ("links=threshold&threshold=0.6", [[0.75, 0.125], [0.25, 0.5]], "0-0"),
        ("words=false", [[0.5, 0.25, 0.125], [0.0, 0.25, 0.25], [0.25, 0.0, 0.75]], "0-0 1-1 2-2"),
    ],
)
def test_alignment_by_hand(show: Open, state: str, shares: Numbers, pairs: str) -> None:
    opened = show([aligned()], f"view=alignment&table=true&{state}")
    assert numbers(opened, SHARES) == [pytest.approx(row, abs=6e-5) for row in shares]
    assert opened.locator("#pairs").inner_text() == pairs
    links = rows(opened, ".links")
    assert [f"{row[0]}-{row[2]}" for row in links] == pairs.split()
    assert [row[4] for row in links] == [written(shares[int(row[2])][int(row[0])]) for row in links]
    assert opened.locator(".wires path").count() == len(links)


def test_weights_that_sum_to_something_else_count_by_their_shares(show: Open) -> None:
    scaled = WEIGHTS * torch.tensor([[3.0], [0.5], [1.0], [0.0]])
    opened = show([aligned(scaled)], "view=alignment&table=true")
    assert numbers(opened, SHARES) == [[0.75, 0.125], [0.25, 0.5]]


def test_without_an_end_the_last_piece_has_no_later_step(show: Open) -> None:
    one = aligned(WEIGHTS[:3])
    one["target"]["tokens"].pop()
    one["target"]["inputs"].pop()
    opened = show([one], "view=alignment&table=true&later=true")
    assert numbers(opened, SHARES) == [[0.25, 0.25], [0.25, 0.75]]


def test_layer_and_heads_of_an_alignment(show: Open) -> None:
    """Unless chosen, the mean over the heads of the last but one layer."""
    cross = torch.zeros(3, 2, 4, 3)
    cross[..., 2] = 1.0
    cross[1, 0] = torch.tensor([1.0, 0.0, 0.0])
    cross[1, 1] = torch.tensor([0.0, 0.5, 0.5])
    cross[0, 1] = torch.tensor([0.0, 1.0, 0.0])
    opened = show([by_hand(weights={"cross": cross})], "view=alignment&table=true")
    assert opened.locator("#alignment-layer").input_value() == "1"
    assert numbers(opened, SHARES)[0] == [0.5, 0.25]
    for key in (".", ".", "["):
        opened.keyboard.press(key)
    assert numbers(opened, SHARES)[0] == [0.0, 1.0]
    assert "decoder layer 1, head 2" in opened.locator(".aside").inner_text()
    assert opened.locator("#pairs").inner_text() == "1-0 1-1"


def test_one_word_is_shown_in_pieces(show: Open) -> None:
    one = by_hand((("w", "o", "r", "d"),), (("W",), ("ER",), ("D",)))
    opened = show([one], "view=alignment")
    assert texts(opened, ".units.target li") and opened.locator(".units.source li").count() == 4
    assert "source pieces (it is one word)" in opened.locator(".aside").inner_text()


def test_right_to_left(show: Open) -> None:
    """The first word of such a sentence is at the right; in columns, words end at the lines."""
    one = by_hand((("של", "ום"), ("עולם",), ("a",)), (("x",), ("y",), ("z",)))
    opened = show([one], "view=alignment&across=true")
    source, target = (
        opened.locator(f".units.{side} li").evaluate_all(
            "all => all.map(e => e.getBoundingClientRect().left)"
        )
        for side in ("source", "target")
    )
    assert source[0] > source[1] > source[2] and target[0] < target[1] < target[2]
    line = opened.locator(".wires path").last.evaluate(
        """e => { const box = e.ownerSVGElement.getBoundingClientRect();
            return [e.dataset.source, box.left + e.getPointAtLength(0).x]; }"""
    )
    middle = (
        opened.locator(".units.source li")
        .nth(int(line[0]))
        .evaluate("e => { const r = e.getBoundingClientRect(); return r.left + r.width / 2; }")
    )
    assert line[1] == pytest.approx(middle, abs=1)
    opened.locator(".units.source li").first.focus()
    opened.keyboard.press("ArrowLeft")
    assert opened.evaluate("document.activeElement.textContent").startswith("עולם")
    opened.locator("#across").uncheck()
    right = opened.locator(".units.source li").evaluate_all(
        """all => all.map(e => { const range = document.createRange();
            range.selectNode(e.firstChild); return range.getBoundingClientRect().right; })"""
    )
    assert max(right) - min(right) < 1


def test_a_word_shows_its_links(show: Open) -> None:
    opened = show([aligned()], "view=alignment&links=threshold&threshold=0.2")
    opened.locator(".units.source li").first.hover()
    assert opened.locator(".said").first.inner_text() == "ab: x 0.7500, yz 0.2500"
    assert opened.locator(".wires path.here").count() == 2
    assert opened.locator(".units li.linked").count() == 2
    opened.mouse.move(0, 0)
    assert opened.locator(".wires path.here").count() == 0
    opened.locator(".units li[tabindex='0']").focus()
    for key in ("ArrowDown", "ArrowLeft"):
        opened.keyboard.press(key)
    assert opened.evaluate("document.activeElement.firstChild.data") == "c"
    widths = opened.locator(".wires path").evaluate_all(
        """all => all.map(e => [e.dataset.source, e.dataset.target,
            e.getAttribute("stroke-width")].map(Number))"""
    )
    by_link = {(i, j): width for i, j, width in widths}
    assert by_link[0, 0] > by_link[1, 1] > by_link[0, 1]


def test_the_pairs_are_saved(show: Open, tmp_path: Path) -> None:
    opened = show([aligned()], "view=alignment")
    with opened.expect_download() as download:
        opened.get_by_role("button", name="Save").click()
    download.value.save_as(tmp_path / "pairs")
    assert (tmp_path / "pairs").read_text() == "0-0 1-1\n"


def test_the_threshold_moves(show: Open) -> None:
    opened = show([aligned()], "view=alignment&links=threshold&threshold=0.2")
    assert opened.locator(".wires path").count() == 3
    opened.locator("#threshold").focus()
    for _ in range(6):
        opened.keyboard.press("ArrowRight")
    assert opened.locator(".wires path").count() == 2
    assert opened.evaluate("document.activeElement.id") == "threshold"
    assert "threshold=0.26" in opened.url


def test_an_empty_target(show: Open) -> None:
    one = by_hand(target=())
    opened = show([one], "view=alignment")
    assert "nothing to align" in opened.locator("#view").inner_text()


# Comparison -------------------------------------------------------------------------------------


def test_two_sentences_of_equal_length(show: Open) -> None:
    first = by_hand((("ab",), ("c",)), (("x",), ("y", "z")), {"cross": HEADS}, name="m")
    other = HEADS.clone()
    other[0, 0, 1] = torch.tensor([0.25, 0.65, 0.1])
    second = by_hand((("ab",), ("d",)), (("x",), ("w", "z")), {"cross": other}, name="m")
    opened = show([first, second], "view=comparison&kind=cross&table=true")
    assert texts(opened, ".card mark") == ["c", "y", "d", "w"]
    assert texts(opened, ".card h3") == ["1: ab c", "2: ab d"]
    found = numbers(opened, "Difference, the second minus the first")
    assert found == [pytest.approx(row, abs=6e-5) for row in (other[0, 0] - HEADS[0, 0]).tolist()]
    assert rows(opened, ".differences") == [
        ["y | w", "c | d", "0.2500", "0.6500", "+0.4000"],
        ["y | w", "END", "0.5000", "0.1000", "−0.4000"],
    ] or rows(opened, ".differences") == [
        ["y | w", "END", "0.5000", "0.1000", "−0.4000"],
        ["y | w", "c | d", "0.2500", "0.6500", "+0.4000"],
    ]
    opened.locator("#table").uncheck()
    colours = opened.locator("#difference").evaluate(
        """map => { const w = map.width / 3, y = map.height / 4 + 6;
            const row = map.getContext("2d").getImageData(0, y, map.width, 1).data;
            return [0, 1, 2].map(j => [...row.slice(4 * (w * j + 6), 4 * (w * j + 7))]); }"""
    )
    assert len({tuple(colour) for colour in colours}) == 3  # nothing, more, less


def test_two_models_and_what_the_other_lacks(show: Open) -> None:
    first = by_hand(weights={"cross": HEADS}, name="small")
    second = by_hand(weights={"cross": HEADS[:1]}, name="large")
    opened = show([first, second], "view=comparison&kind=cross&layer=1")
    assert texts(opened, ".card h3") == ["1: small", "2: large"]
    text = opened.locator("#view").inner_text()
    assert "the outputs are the same" in text and "layer 2 is not here" in text
    opened.locator("#layer").select_option("0")
    assert opened.locator(".differences").count() == 0
    assert "There is none" in opened.locator("#view").inner_text()


def test_lengths_that_differ(show: Open) -> None:
    first, second = by_hand(), by_hand((("ab",), ("c",), ("d",)))
    opened = show([first, second], "view=comparison&kind=cross")
    assert opened.locator("canvas").count() == 2
    text = opened.locator("#view").inner_text()
    assert "the first matrix has 4 rows and 3 columns, the second 4 and 4" in text


def test_tokens_side_by_side(show: Open) -> None:
    first = by_hand(target=(("x",), ("y", "z")))
    second = by_hand(target=(("x",), ("z",), ("u",)))
    second["target"]["log_probabilities"] = [-0.25, -1.0, -2.0, -0.5]
    opened = show([first, second], "view=comparison")
    opened.locator("summary").click()
    assert rows(opened, "details table") == [
        ["x", "−0.5000", "x", "−0.2500", "0.2500"],
        ["y", "−0.5000", "", "", ""],
        ["z", "−0.5000", "z", "−1.0000", "−0.5000"],
        ["", "", "u", "−2.0000", ""],
        ["END", "−0.5000", "END", "−0.5000", "0.0000"],
    ]


# A model ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def translator() -> Translator:
    """A random model over letters; its gains are large, so that outputs differ."""
    lines = ["abcde ab"] * 3
    tokenizer = train_tokenizer(lines, "char", 30, normalization="NFC", byte_fallback=False)
    sizes = {"source_vocabulary": len(tokenizer), "target_vocabulary": len(tokenizer), "N": 3,
             "d_model": 16, "d_ff": 24, "h": 2, "P_drop": 0.0}  # fmt: skip
    torch.manual_seed(3)
    model = Transformer(ModelConfig.model_validate(sizes))
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.5)
    return translator_of(model.eval(), (tokenizer, tokenizer), DecodingConfig(max_extra=5))


def test_a_model_of_its_own(show: Open, translator: Translator) -> None:
    """The page shows what the trace has: the record, exact weights, words of pieces."""
    one = trace(translator, "ab cde", "de abc")
    opened = show([one], "view=matrix&kind=cross&layer=2&head=1&table=true")
    name = "cross-attention, layer 3, head 2"
    expected = one["attention"]["cross"]["weights"][2, 1].tolist()
    assert numbers(opened, name) == [pytest.approx(row, abs=6e-5) for row in expected]
    opened.evaluate("location.hash = 'view=alignment'")
    assert [text.split()[0] for text in texts(opened, ".units.source li")] == ["ab", "cde"]
    found = trace(translator, "ab cde")
    opened = show([found, trace(translator, "ab cda")], "view=decoding")
    best = found["decodings"][0]["outputs"][0]
    line = opened.locator(".outputs li").first.inner_text()
    assert f"{written(best['log_probability'])} / {written(best['divisor'])}" in line
    assert f"= {written(best['score'])}" in line
    assert json.dumps(best["text"])[1:-1] in line
    opened.evaluate("location.hash = 'view=comparison&kind=encoder_self'")
    assert opened.locator("canvas").count() == 3
