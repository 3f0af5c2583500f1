"""Numbers typed by hand: the golden example, lecture form, and what does not fit."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.test_tracing import CHECK
from transduce.errors import TransduceError, UsageError
from transduce.inspection.numbers import Numbers, read_numbers, trace_numbers
from transduce.inspection.pages import page
from transduce.inspection.terminal import printed
from transduce.inspection.tracing import as_json

GOLDEN: dict[str, Any] = {
    "q": [[1, 0], [0, 2], [1, 1]],
    "k": [[1, 1], [0, 1], [2, 0]],
    "v": [[1, 0], [0, 1], [3, 3]],
}


def station(given: dict[str, Any]) -> dict[str, Any]:
    found = as_json(trace_numbers(Numbers.model_validate(given), "by hand"))
    CHECK.validate(json.loads(json.dumps(found, allow_nan=False)))
    (own,) = found["stations"].values()
    return own


def test_golden_example() -> None:
    """3 tokens, d_k = 2: scores, weights and outputs to four digits."""
    one = station(GOLDEN)["one"]
    assert one["raw"] == [[1, 0, 2], [2, 2, 0], [2, 1, 2]]
    assert np.round(one["s"], 4).tolist() == [
        [0.7071, 0, 1.4142], [1.4142, 1.4142, 0], [1.4142, 0.7071, 1.4142]
    ]  # fmt: skip
    assert np.round(one["alpha"], 4).tolist() == [
        [0.2840, 0.1400, 0.5760], [0.4458, 0.4458, 0.1084], [0.4011, 0.1978, 0.4011]
    ]  # fmt: skip
    assert np.round(one["b"], 4).tolist() == [[2.0119, 1.8680], [0.7710, 0.7710], [1.6044, 1.4011]]


def test_golden_example_causal() -> None:
    one = station(GOLDEN | {"mask": "causal"})["one"]
    assert np.round(one["alpha"], 4).tolist() == [
        [1, 0, 0], [0.5, 0.5, 0], [0.4011, 0.1978, 0.4011]
    ]  # fmt: skip
    assert np.round(one["b"], 4).tolist() == [[1, 0], [0.5, 0.5], [1.6044, 1.4011]]
    assert one["hidden"] == [[0, 1, 1], [0, 0, 1], [0, 0, 0]]


def test_golden_example_with_padding() -> None:
    one = station(GOLDEN | {"padding": [3]})["one"]
    assert np.round(one["alpha"], 4).tolist() == [
        [0.6698, 0.3302, 0], [0.5, 0.5, 0], [0.6698, 0.3302, 0]
    ]  # fmt: skip
    assert one["hidden"] == [[0, 0, 2]] * 3


def test_golden_layer_norm() -> None:
    """Divisor n: -1.0690 ...; n - 1 would give -0.9258 ..."""
    norm = station({"layer_norm": [[1, 2, 3, 6]]})["norm_after"]
    assert norm["mean"] == [3.0] and norm["variance"] == [3.5]
    assert np.round(norm["output"][0], 4).tolist() == [-1.0690, -0.5345, 0, 1.6036]


def test_everything_hidden_gives_zeros() -> None:
    one = station(GOLDEN | {"padding": [1, 2, 3]})["one"]
    assert not np.any(one["alpha"]) and not np.any(one["b"])


MATRIX = st.lists(st.lists(st.integers(-3, 3), min_size=4, max_size=4), min_size=4, max_size=4)


@given(st.integers(1, 5), st.data(), st.sampled_from([1, 2, 4]))
def test_lecture_form_is_the_transpose(n: int, data: st.DataObject, h: int) -> None:
    """With W_O = identity and columns for tokens, the same numbers come out."""
    row = st.lists(st.integers(-3, 3), min_size=4, max_size=4)
    x = data.draw(st.lists(row, min_size=n, max_size=n))
    W = {name: data.draw(MATRIX) for name in ("W_Q", "W_K", "W_V", "W_O")}
    head = data.draw(st.integers(1, h))
    paper = station({"x": x, "h": h, "head": head} | W)
    flipped = {name: np.transpose(own).tolist() for name, own in W.items()}
    lecture = station(
        {"x": np.transpose(x).tolist(), "h": h, "head": head, "form": "columns"} | flipped
    )
    assert paper == lecture
    by_hand = np.array(x) @ np.array(W["W_Q"])
    width = 4 // h
    own = by_hand[:, (head - 1) * width : head * width]
    assert np.array(paper["one"]["q"]) == pytest.approx(own)
    total = np.array(x) + np.array(paper["concat"]) @ np.array(W["W_O"])
    assert np.array(paper["sum"]) == pytest.approx(total, abs=1e-4)


def test_cross_attention_and_names(tmp_path: Path) -> None:
    given = {"x": [[1, 0]], "memory": [[1, 1], [0, 2]], "tokens": ["le"], "keys": ["the", "cat"]}
    given |= {name: [[1, 0], [0, 1]] for name in ("W_Q", "W_K", "W_V")}
    found = trace_numbers(Numbers.model_validate(given), "by hand")
    assert list(found["stations"]) == ["cross"]
    assert [token["text"] for token in found["source"]["tokens"]] == ["the", "cat"]
    assert "the" in "\n".join(printed(found))
    assert "cat" in page([found], "numbers")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"q": []}, "give q, k and v"),
        ({"q": [[1, 0], [1]]}, "q: all rows must have as many numbers"),
        ({"k": [[1], [2], [3]]}, "q has 2 numbers a token, k 1"),
        ({"v": [[1, 1]]}, "there are 3 keys, but 1 values"),
        ({"padding": [4]}, "there is no key 4"),
        ({"padding": [0]}, "there is no key 0"),
        ({"q": [[1, 0]], "mask": "causal"}, "as many queries as keys"),
        ({"x": [[1, 0]]}, "give either x"),
        ({"W_O": [[1, 0]]}, "W_O takes 1 numbers, but all heads give 2"),
        ({"h": 3}, "3 heads cannot share"),
        ({"head": 2}, "head 2 of 1"),
        ({"tokens": ["a"]}, "1 names for 3 tokens"),
        ({"q": [[1.0, float("inf")]] * 3}, "must be finite"),
        ({"layer_norm": [[1, 2]], "gain": [1]}, "gain needs 2 numbers"),
    ],
    ids=str,
)
def test_what_does_not_fit(change: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        trace_numbers(Numbers.model_validate(GOLDEN | change), "by hand")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"W_Q": [[1, 0]]}, "W_Q takes vectors of 1 numbers, but they have 2"),
        ({"W_Q": []}, "x needs W_Q"),
        ({"h": 3}, "3 heads cannot share"),
    ],
)
def test_matrices_that_do_not_fit(change: dict[str, Any], said: str) -> None:
    given = {"x": [[1, 0]]} | {name: [[1, 0], [0, 1]] for name in ("W_Q", "W_K", "W_V")}
    with pytest.raises(UsageError, match=said):
        trace_numbers(Numbers.model_validate(given | change), "by hand")


def test_files(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text("q = [[1, 0]]\nk = [[1, 1]]\nv = [[1, 0]]\n")
    assert read_numbers(path).q == [[1.0, 0.0]]
    other = tmp_path / "a.json"
    other.write_text(json.dumps(GOLDEN))
    assert read_numbers(other).h == 1
    for text, said in (
        ("q = [", "a.toml"), ("Q = [[1]]", "Q: extra inputs"), ("q = 'a'", "q: "),
        ("mask = 'none' # no\n q = [['x']]", "q.0.0"),
    ):  # fmt: skip
        path.write_text(text)
        with pytest.raises(UsageError, match=said):
            read_numbers(path)
    with pytest.raises(TransduceError, match="No such file"):
        read_numbers(tmp_path / "none.toml")
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(TransduceError, match="no UTF-8"):
        read_numbers(path)
