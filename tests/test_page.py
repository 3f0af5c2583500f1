"""The data report as a page: everything of the report is on it, escaped, and nothing else."""

import copy
import itertools
import math
import re
from collections.abc import Callable, Iterable
from html.parser import HTMLParser
from typing import Any

import jinja2
import pytest

from transduce.data.page import report_page

HIT = "<script>window.hit=1</script>"
VOID = {"meta", "br", "link", "img", "input", "hr"}
FOREIGN_EMPTY = {"rect", "line"}


def _bins(edges: list[float] | list[int], peak: float, total: int) -> list[list[Any]]:
    """Spread a total over bins, as lengths are: a hump, and a long tail to the right."""
    middles = [(low + high) / 2 for low, high in itertools.pairwise(edges)]
    shape = [x / peak * math.exp(1 - x / peak) for x in middles]
    shape = [s**3 for s in shape]
    scale = total / sum(shape)
    return [
        [low, high, int(scale * s)]
        for low, high, s in zip(edges[:-1], edges[1:], shape, strict=True)
    ]


def _lengths(step: int, bins: int, peak: float, total: int) -> dict[str, Any]:
    return {
        "bins": _bins([step * i for i in range(bins + 1)], peak, total),
        "mean": round(peak * 1.32, 1),
        "median": int(peak * 1.2),
        "p95": int(peak * 2.6),
        "max": step * bins - 2,
    }


def _side(letters: str, total: int, stretch: float) -> dict[str, Any]:
    characters = int(total * 28.1 * stretch)
    return {
        "characters": characters,
        "words": characters // 6,
        "distinct_words": 15000 + int(9000 * stretch),
        "distinct_words_capped": False,
        "distinct_characters": len(letters) + 31,
        "lengths": _lengths(10, 24, 22 * stretch, total),
        "top_characters": [
            [letter, int(characters * 0.16 * 0.9**i)] for i, letter in enumerate(letters)
        ],
    }


def _tokens(total: int, stretch: float) -> dict[str, Any]:
    return {
        "tokens": int(total * 7.4 * stretch),
        "vocabulary": 8000,
        "used": 7912,
        "unknown": 0,
        "byte_pieces": 12,
        "pieces_per_word": round(1.31 * stretch, 2),
        "lengths": _lengths(3, 20, 6 * stretch, total),
    }


def _statistics(total: int) -> dict[str, Any]:
    edges = [0.25, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.35, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0]
    return {
        "source": _side(" etaonihsrdlyuTmwgc.fpIvkb,'", total, 1.0),
        "target": _side(" enisrtahdulcgmobwk.fzvIäüSß\u0308\u00a0", total, 1.18),
        "ratios": {"bins": _bins(edges, 1.1, total), "median": 1.13},
        "duplicates": {
            "pairs": total // 9000,
            "near_pairs": total // 700,
            "sources": total // 5,
            "targets": total // 8,
        },
        "tokens": {"source": _tokens(total, 1.0), "target": _tokens(total, 1.12)},
    }


def _pieces(written: str) -> list[str]:
    return written.split(" ")


def sample_report() -> dict[str, Any]:
    """Return a report like that of a real corpus of English and German sentences."""
    arabic = "هل يمكنك أن تأتي معي إلى السوق؟"
    return {
        "version": 1,
        "title": "deu.txt",
        "parts": {
            "train": {
                "inputs": [
                    {
                        "path": "deu.txt",
                        "format": "tsv",
                        "read": 169813,
                        "kept": 169000,
                        "weight": 1.0,
                        "tag": "",
                    },
                    {
                        "path": "corpora/software/2024/messages.de.po",
                        "format": "po",
                        "read": 4210,
                        "kept": 4011,
                        "weight": 0.5,
                        "tag": "<ui>",
                    },
                ],
                "read": 174023,
                "kept": 173011,
                "dropped": 1012,
                "checks": [
                    {
                        "name": "empty target",
                        "action": "drop",
                        "count": 3,
                        "lines": ["12", "deu.txt:99", "messages.de.po:2048"],
                        "examples": [{"file": "deu.txt", "line": 12, "src": "Go.", "tgt": ""}],
                    },
                    {
                        "name": "lengths very different",
                        "action": "drop",
                        "count": 1009,
                        "lines": [f"deu.txt:{201 + 977 * i}" for i in range(10)],
                        "examples": [
                            {
                                "file": "deu.txt",
                                "line": 201,
                                "src": "Why?",
                                "tgt": "Warum hast du mir das nicht schon gestern gesagt, als wir "
                                "noch etwas hätten ändern können?",
                            },
                            {
                                "file": "messages.de.po",
                                "line": 77,
                                "src": "https://example.org/" + "a-very-long-address/" * 9,
                                "tgt": "Siehe dort.",
                            },
                        ],
                    },
                    {
                        "name": "HTML entities",
                        "action": "fix",
                        "count": 41,
                        "lines": ["messages.de.po:15", "messages.de.po:311"],
                        "examples": [
                            {
                                "file": "messages.de.po",
                                "line": 15,
                                "src": "Save &amp; close",
                                "tgt": "Speichern &amp; schließen",
                            }
                        ],
                    },
                    {
                        "name": "another script",
                        "action": "report",
                        "count": 2,
                        "lines": ["deu.txt:5120", "deu.txt:88123"],
                        "examples": [
                            {
                                "file": "deu.txt",
                                "line": 5120,
                                "src": "Can you come to the market with me?",
                                "tgt": arabic,
                            }
                        ],
                    },
                    {
                        "name": "fuzzy translations",
                        "action": "skip",
                        "count": 120,
                        "lines": ["messages.de.po:40", "messages.de.po:52"],
                        "examples": [],
                    },
                    {"name": "markup", "action": "report", "count": 0, "lines": [], "examples": []},
                    {
                        "name": "wrong character set",
                        "action": "fix",
                        "count": 0,
                        "lines": [],
                        "examples": [],
                    },
                ],
                **_statistics(173011),
            },
            "valid": {
                "inputs": [
                    {
                        "path": "valid.tsv",
                        "format": "tsv",
                        "read": 1000,
                        "kept": 1000,
                        "weight": 1.0,
                        "tag": "",
                    }
                ],
                "read": 1000,
                "kept": 1000,
                "dropped": 0,
                "checks": [],
                **_statistics(1000),
            },
            "test": {
                "inputs": [
                    {
                        "path": "test.tsv",
                        "format": "tsv",
                        "read": 2000,
                        "kept": 1996,
                        "weight": 1.0,
                        "tag": "",
                    }
                ],
                "read": 2000,
                "kept": 1996,
                "dropped": 4,
            },
        },
        "leaks": [
            {
                "part": "valid",
                "pairs": 1000,
                "source": {"exact": 17, "normalised": 23},
                "target": {"exact": 31, "normalised": 38},
                "pair": {"exact": 5, "normalised": 6},
                "examples": [
                    {"src": "I'm hungry.", "tgt": "Ich habe Hunger.", "kind": "pair", "line": 3},
                    {"src": "Stop it!", "tgt": "Lass das!", "kind": "source", "line": 458},
                ],
            },
            {
                "part": "test",
                "pairs": 1996,
                "source": {"exact": 0, "normalised": 0},
                "target": {"exact": 0, "normalised": 0},
                "pair": {"exact": 0, "normalised": 0},
                "examples": [],
            },
        ],
        "vocabularies": {
            "source": {"kind": "bpe", "size": 8000, "joint": True},
            "target": {"kind": "bpe", "size": 8000, "joint": True},
        },
        "examples": [
            {
                "line": 1,
                "src": "Go.",
                "tgt": "Geh.",
                "src_pieces": ["▁Go", "."],
                "tgt_pieces": ["▁G", "eh", "."],
                "src_ids": [1045, 6],
                "tgt_ids": [67, 390, 6],
            },
            {
                "line": 2,
                "src": "I should have told you about the weather forecast.",
                "tgt": "Ich hätte dir von der Wettervorhersage erzählen sollen.",
                "src_pieces": _pieces(
                    "▁I ▁should ▁have ▁told ▁you ▁about ▁the ▁weather ▁fore cast ."
                ),
                "tgt_pieces": _pieces(
                    "▁Ich ▁hätte ▁dir ▁von ▁der ▁Wetter vor hers age ▁erz ählen ▁sollen ."
                ),
                "src_ids": [13, 210, 88, 402, 31, 149, 24, 1733, 2950, 3121, 6],
                "tgt_ids": [28, 611, 160, 99, 41, 2204, 350, 4096, 517, 930, 1288, 1012, 6],
            },
            {
                "line": 3,
                "src": "Can you come to the market with me? 🙂",
                "tgt": arabic,
                "src_pieces": _pieces(
                    "▁Can ▁you ▁come ▁to ▁the ▁market ▁with ▁me ? ▁ <0xF0> <0x9F> <0x99> <0x82>"
                ),
                "tgt_pieces": _pieces("▁هل ▁يمكنك ▁أن ▁تأتي ▁معي ▁إلى ▁السوق ؟"),
                "src_ids": [301, 31, 255, 20, 24, 1410, 57, 70, 36, 5, 244, 163, 157, 134],
                "tgt_ids": [5012, 6120, 340, 7001, 811, 377, 6999, 42],
            },
        ],
        "advice": [
            "34,602 training sources occur more than once, so a model sees several right answers "
            'to them. To keep one of each exact pair: [cleaning] duplicates = "drop"',
            "17 validation sources are also training sources: scores on them are too good. "
            '[cleaning] leaks = "drop"',
        ],
    }


class _Page(HTMLParser):
    """A page's tags and texts; fails at what a browser would have to guess."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        assert len(attributes) == len(attrs), f"twice the same attribute: {attrs}"
        self.tags.append((tag, attributes))
        self.texts += [attributes[name] or "" for name in ("aria-label",) if name in attributes]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in FOREIGN_EMPTY, tag
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def _changed(value: Any, change: Callable[[Any], Any], leave: Iterable[str] = ()) -> Any:
    """Return a report with every leaf changed, but for those below some keys."""
    if isinstance(value, dict):
        return {k: v if k in leave else _changed(v, change, leave) for k, v in value.items()}
    if isinstance(value, list):
        return [_changed(v, change, leave) for v in value]
    return change(value)


def _empty(report: dict[str, Any], part: str) -> None:
    """Make a part of the report one without any pairs."""
    lengths = {"bins": [], "mean": 0.0, "median": 0, "p95": 0, "max": 0}
    side = {
        "characters": 0,
        "words": 0,
        "distinct_words": 0,
        "distinct_words_capped": False,
        "distinct_characters": 0,
        "lengths": lengths,
        "top_characters": [],
    }
    report["parts"][part] = {
        "inputs": [],
        "read": 0,
        "kept": 0,
        "dropped": 0,
        "checks": [],
        "source": side,
        "target": side,
        "ratios": {"bins": [], "median": 0.0},
        "duplicates": {"pairs": 0, "near_pairs": 0, "sources": 0, "targets": 0},
        "tokens": None,
    }


def test_the_page_is_whole_and_needs_nothing_else() -> None:
    page = report_page(sample_report())
    parsed = _Page(page)
    assert page.startswith("<!doctype html>\n<html lang=")
    assert not {"script", "link", "img", "iframe", "object", "form", "base"} & {
        tag for tag, _ in parsed.tags
    }
    ids = [attributes["id"] for _, attributes in parsed.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    for tag, attributes in parsed.tags:
        assert not any(name.startswith("on") for name in attributes), tag
        assert not {"src", "srcset", "action", "data", "xlink:href"} & attributes.keys()
        if "href" in attributes:
            assert attributes["href"] in {f"#{id_}" for id_ in ids}
        if "aria-labelledby" in attributes:
            assert attributes["aria-labelledby"] in ids
    css = page[page.index("<style>") : page.index("</style>")]
    assert "url(" not in css and "@import" not in css
    metas = parsed.all("meta")
    assert {"charset": "utf-8"} in metas
    assert {"name": "color-scheme", "content": "light dark"} in metas
    assert {
        "http-equiv": "Content-Security-Policy",
        "content": "default-src 'none'; style-src 'unsafe-inline'",
    } in metas
    assert any(meta.get("name") == "viewport" for meta in metas)


def test_headings_are_in_order_and_table_heads_have_a_scope() -> None:
    parsed = _Page(report_page(sample_report()))
    levels = [int(tag[1]) for tag, _ in parsed.tags if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
    assert len(parsed.all("th")) > 20
    assert all(th["scope"] in ("row", "col") for th in parsed.all("th"))
    assert all(svg.get("aria-label") for svg in parsed.all("svg") if svg.get("role") == "img")


def test_the_same_report_gives_the_same_page_and_is_not_changed() -> None:
    report = sample_report()
    before = copy.deepcopy(report)
    assert report_page(report) == report_page(sample_report())
    assert report == before


def test_every_text_is_escaped() -> None:
    texts: list[str] = []

    def infect(value: Any) -> Any:
        if not isinstance(value, str) or value == "\u00a0":
            return value  # what cannot be seen is told by its number
        texts.append(f"{value}{HIT}{len(texts)}\"'")
        return texts[-1]

    report = sample_report()
    for check in report["parts"]["train"]["checks"]:
        check["count"] += 1  # of what was not found, only the name is told
    report = _changed(report, infect)
    report["parts"][f"other{HIT}"] = report["parts"].pop("test")
    page = report_page(report)
    parsed = _Page(page)
    assert "<script" not in page
    shown = "".join(parsed.texts)
    assert [text for text in texts if text not in shown] == []
    for name in report["parts"]:
        assert name in shown
    # Apart from what is written into texts, infection changes nothing.
    harmless = _Page(report_page(sample_report()))
    assert {tag for tag, _ in parsed.tags} == {tag for tag, _ in harmless.tags}
    assert {name for _, attributes in parsed.tags for name in attributes} == {
        name for _, attributes in harmless.tags for name in attributes
    }


def test_every_number_is_on_the_page() -> None:
    numbers: list[str] = []
    plain = 0

    def count(value: Any) -> Any:
        if isinstance(value, bool) or not isinstance(value, int | float) or value == 0:
            return value
        unique = 1_000_003 + 7919 * len(numbers)
        numbers.append(f"{unique:,}" + (".25" if isinstance(value, float) else ""))
        return unique + 0.25 if isinstance(value, float) else unique

    def identify(value: Any) -> Any:
        nonlocal plain
        if not isinstance(value, int):
            return value
        plain += 1
        numbers.append(str(5_000_000 + plain))
        return 5_000_000 + plain

    report = _changed(sample_report(), count, ("bins", "examples"))
    report["examples"] = _changed(report["examples"], identify)
    for part in report["parts"].values():
        for check in part.get("checks", []):
            check["examples"] = _changed(check["examples"], identify)
    for leak in report["leaks"]:
        leak["examples"] = _changed(leak["examples"], identify)
    text = _Page(report_page(report)).text
    assert len(numbers) > 200
    missing = [n for n in numbers if not re.search(rf"(?<![\d,.]){re.escape(n)}(?!,?\d)", text)]
    assert missing == []


def test_histograms_name_every_bin() -> None:
    report = sample_report()
    report["parts"]["train"]["source"]["lengths"]["bins"] = [
        [0, 1, 7],
        [1, 1500, 4321],
        [1500, 1510, 0],
    ]
    report["parts"]["train"]["ratios"]["bins"] = [[0.0625, 0.5, 12], [0.5, math.inf, 34]]
    labels = [svg.get("aria-label") or "" for svg in _Page(report_page(report)).all("svg")]
    assert "Source, in characters. 0: 7; 1 to 1,499: 4,321; 1,500 to 1,509: 0." in labels
    assert "Training, target / source. 0.0625 to 0.5: 12; 0.5 to ∞: 34." in labels


def test_a_last_bin_that_holds_the_tail_is_labelled_so() -> None:
    report = sample_report()
    lengths = report["parts"]["train"]["source"]["lengths"]
    lengths["bins"] = [[0, 10, 400], [10, 20, 100], [20, 9877, 3]]
    page = report_page(report)
    figure = page[page.index("<figure>") : page.index("</figure>")]
    assert re.findall(r'anchor="(?:start|middle|end)">([^<]+)<', figure) == [
        "400",  # the highest bar
        *("0", "10", "20", "20+"),
    ]
    assert "20 to 9,876: 3." in figure and figure.count('class="tail"') == 1
    assert report_page(sample_report()).count('class="tail"') == 0


def test_bars_are_as_high_as_their_counts() -> None:
    report = sample_report()
    report["parts"]["train"]["source"]["lengths"]["bins"] = [
        [0, 10, 400],
        [10, 20, 100],
        [20, 30, 0],
        [30, 40, 1],
    ]
    page = report_page(report)
    figure = page[page.index("<figure>") : page.index("</figure>")]
    heights = re.findall(r'width="0\.88"\s+height="([\d.]+)"', figure)
    assert heights == ["100.0", "25.0", "0", "1"]  # one pair of 400 can still be seen


@pytest.mark.parametrize(
    ("count", "total", "share"),
    [
        (0, 5, "0%"),
        (5, 5, "100%"),
        (1, 3, "33.33%"),
        (1, 169813, "&lt; 0.01%"),
        (169812, 169813, "&gt; 99.99%"),
    ],
)
def test_shares_say_all_or_nothing_only_where_it_is_true(
    count: int, total: int, share: str
) -> None:
    report = sample_report()
    report["parts"]["train"] |= {"read": total, "kept": count, "dropped": total - count}
    page = report_page(report)
    assert re.search(rf'{count:,}\s+<span class="quiet">{share}</span>', page)


def test_leaks_are_a_warning_and_none_is_good() -> None:
    report = sample_report()
    page = report_page(report)
    assert page.count('class="verdict warning"') == page.count('class="verdict good"') == 1
    report["leaks"][1]["target"]["normalised"] = 1
    page = report_page(report)
    assert page.count('class="verdict warning"') == 2 and 'verdict good"' not in page
    report["leaks"] = []
    text = _Page(report_page(report)).text
    assert "There are no validation or test pairs to compare with." in text


def test_characters_that_cannot_be_seen_are_named() -> None:
    report = sample_report()
    report["parts"]["train"]["source"]["top_characters"] = [
        [" ", 9], ["\u0301", 8], ["\u200f", 7], ["\u3000", 6], ["ß", 5],
    ]  # fmt: skip
    page = report_page(report)
    glyphs = re.findall(r'<span class="glyph[^>]*>([^<]*)</span>', page)
    assert glyphs[:5] == ["space", "◌\u0301", "U+200F", "U+3000", "ß"]


def test_a_report_with_hardly_anything() -> None:
    report = sample_report()
    _empty(report, "train")
    del report["parts"]["valid"], report["parts"]["test"]
    report |= {"leaks": [], "vocabularies": None, "examples": [], "advice": []}
    text = _Page(report_page(report)).text
    for said in (
        "Nothing to advise.",
        "There are no validation or test pairs to compare with.",
        "Nothing was found.",
        "No pairs.",
        "No vocabulary was made.",
        "No prepared pairs to show.",
    ):
        assert said in text
    assert "Validation" not in text.replace("Validation and test pairs that", "")


def test_no_parts_at_all() -> None:
    report = sample_report() | {"parts": {}, "leaks": []}
    _Page(report_page(report))


def test_a_validation_part_without_pairs() -> None:
    report = sample_report()
    _empty(report, "valid")
    text = _Page(report_page(report)).text
    assert text.count("No pairs.") == 3  # source, target, ratio


def test_a_part_that_was_not_compared() -> None:
    report = sample_report()
    report["parts"]["valid"]["duplicates"] = {}
    page = report_page(report)
    table = page[page.index("Pairs, exactly") : page.index('id="lengths"')]
    assert "Training" in table and "Validation" not in table


def test_one_bin_and_a_word_count_that_was_capped() -> None:
    report = sample_report()
    source = report["parts"]["train"]["source"]
    source |= {"distinct_words": 1_000_000, "distinct_words_capped": True}
    source["lengths"] = {"bins": [[3, 4, 60]], "mean": 3.0, "median": 3, "p95": 3, "max": 3}
    parsed = _Page(report_page(report))
    assert "at least 1,000,000" in parsed.text
    assert "Source, in characters. 3: 60." in parsed.text


def test_half_a_surrogate_pair_does_not_break_the_page() -> None:
    report = sample_report()
    report["examples"][0]["src"] = "a\ud800b"
    assert "a?b" in report_page(report)


def test_a_report_that_lacks_a_key_is_refused() -> None:
    report = sample_report()
    del report["parts"]["train"]["inputs"][0]["path"]
    with pytest.raises(jinja2.UndefinedError, match="path"):
        report_page(report)
