"""One head, step by step: what is shown, followed by hand, is what the model computes."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tests.conftest import BuildModel
from transduce.config import BOS, EOS, PAD
from transduce.inspection.attention import KINDS, Kind, attention_weights, module_name, recording
from transduce.inspection.stations import (
    FUTURE,
    PADDING,
    VISIBLE,
    WINDOW,
    Head,
    Stations,
    matrix_of,
    stations,
)
from transduce.inspection.tracing import as_json
from transduce.model import Transformer

Array = NDArray[np.float64]
SRC = torch.tensor([[5, 9, 6, 8, EOS], [7, 5, EOS, PAD, PAD]])
TGT = torch.tensor([[BOS, 11, 6, 7], [BOS, 9, PAD, PAD]])
VARIANTS: list[dict[str, Any]] = [
    {},
    {"norm_place": "pre"},
    {"norm_kind": "rms"},
    {"norm_kind": "batch", "norm_place": "pre"},
    {"attention_biases": True, "activation": "swish", "positions": "learned", "max_positions": 9},
    {"attention_normaliser": "sparsemax", "positions": "none", "scale_embeddings": False},
    {"attention_normaliser": "relu"},
    {"encoder_layer_type": "restricted", "decoder_layer_type": "restricted", "window": 1},
]


def name(variant: dict[str, Any]) -> str:
    return "-".join(map(str, variant.values())) or "paper"


def shaken(model: Transformer) -> Transformer:
    """Give gains, biases and running means values of their own."""
    for parameter in model.parameters():
        if parameter.dim() == 1:
            parameter.data += 0.3 * torch.rand_like(parameter)
    return model


def one(found: Stations) -> Head:
    assert found.one is not None
    return found.one


def projected(x: Array, by: dict[str, Any]) -> Array:
    y = x @ np.array(by["W"]).T
    return y if by["bias"] is None else y + np.array(by["bias"])


def normal(x: Array, by: dict[str, Any]) -> Array:
    """Follow a norm by hand from what is shown."""
    mean, variance = (None if by[k] is None else np.array(by[k]) for k in ("mean", "variance"))
    assert variance is not None
    if by["kind"] != "batch":
        variance = variance[:, None]
        mean = None if mean is None else mean[:, None]
    y = (x - (0.0 if mean is None else mean)) / np.sqrt(variance + by["epsilon"])
    y = y * np.array(by["gain"])
    return y if by["bias"] is None else y + np.array(by["bias"])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("variant", VARIANTS, ids=name)
def test_the_chain_reproduces_the_layer(
    build: BuildModel, variant: dict[str, Any], kind: Kind
) -> None:
    """From the JSON alone: every station from the one before, to the layer's true output."""
    model = shaken(build(**variant))
    layer, head, row, heads = 1, 2, 0, 3
    stack = model.encoder if kind == "encoder_self" else model.decoder
    found = stations(model, SRC, TGT, kind, layer, head, row)
    shown = as_json(found, lambda x: x.tolist())
    eq_1 = shown["one"]
    x = np.array(shown["x"])
    inner = x if shown["norm_before"] is None else normal(x, shown["norm_before"])
    assert inner == pytest.approx(np.array(shown["input"]), abs=1e-9)
    q, k, v = (
        projected(np.array(shown[of]), shown[f"W_{letter}"])
        for of, letter in (("input", "Q"), ("memory", "K"), ("memory", "V"))
    )
    for ours, letter in ((q, "q"), (k, "k"), (v, "v")):
        assert ours == pytest.approx(np.array(eq_1[letter]), abs=1e-9)
    assert q @ k.T == pytest.approx(np.array(eq_1["raw"]), abs=1e-9)
    s = np.array(eq_1["s"])
    assert q @ k.T / math.sqrt(5) == pytest.approx(s, abs=1e-9)
    visible = np.array(eq_1["hidden"]) == VISIBLE
    alpha = np.array(eq_1["alpha"])
    assert not alpha[~visible].any()
    if model.config.attention_normaliser == "softmax":
        e = np.where(visible, np.exp(s - np.where(visible, s, -np.inf).max(1, keepdims=True)), 0)
        assert e / e.sum(1, keepdims=True) == pytest.approx(alpha, abs=1e-7)
        assert alpha.sum(1) == pytest.approx(1.0, abs=1e-6)
    assert alpha @ v == pytest.approx(np.array(eq_1["b"]), abs=1e-6)
    concat = np.array(shown["concat"])
    assert concat[:, head * 7 : (head + 1) * 7] == pytest.approx(np.array(eq_1["b"]), abs=1e-9)
    attended = projected(concat, shown["W_O"])
    out = x + attended
    assert out == pytest.approx(np.array(shown["sum"]), abs=1e-9)
    if shown["norm_after"] is not None:
        out = normal(out, shown["norm_after"])
    assert out == pytest.approx(np.array(shown["out"]), abs=1e-9)
    assert concat.shape[1] == heads * 7
    if kind == "decoder_self":
        assert found.feed_forward is None
        return
    after = shown["feed_forward"]
    total = out + np.array(after["result"])
    if after["norm_after"] is not None:
        total = normal(total, after["norm_after"])
    with torch.inference_mode(), recording(model, lambda _, m: m is stack.layers[layer]) as passed:
        model(SRC, TGT)
    (true,) = (one.output[row].numpy() for one in passed.values())
    assert total == pytest.approx(true, abs=1e-5)
    assert np.array(after["out"]) == pytest.approx(true, abs=1e-9)


def test_embeddings_and_positions(build: BuildModel) -> None:
    """What enters the first layer is row · √d_model + position."""
    model = build()
    found = stations(model, SRC, TGT, "encoder_self", 0, 0)
    assert found.embedded is not None
    torch.testing.assert_close(found.x, found.embedded.scaled + found.embedded.position)
    row = model.source_embedding.weight[9].detach()
    torch.testing.assert_close(found.embedded.scaled[1], row * math.sqrt(14))
    assert found.embedded.scale == pytest.approx(math.sqrt(14))
    assert float(found.embedded.position[1, 0]) == pytest.approx(math.sin(1.0))
    assert stations(model, SRC, TGT, "cross", 0, 0).embedded is None


def test_what_is_hidden_and_why(build: BuildModel) -> None:
    model = build()
    padded = one(stations(model, SRC, TGT, "encoder_self", 0, 0, row=1))
    assert padded.hidden[0].tolist() == [VISIBLE] * 3 + [PADDING] * 2
    causal = one(stations(model, SRC, TGT, "decoder_self", 0, 0))
    assert causal.hidden.tolist() == [[FUTURE if j > i else VISIBLE for j in range(4)]
                                      for i in range(4)]  # fmt: skip
    assert causal.alpha[0].tolist() == [1.0, 0.0, 0.0, 0.0]
    near = build(encoder_layer_type="restricted", window=1)
    hidden = one(stations(near, SRC, TGT, "encoder_self", 0, 0)).hidden
    assert hidden[0].tolist() == [VISIBLE, VISIBLE, WINDOW, WINDOW, WINDOW]


@pytest.mark.parametrize("kind", KINDS)
def test_company_changes_nothing(build: BuildModel, kind: Kind) -> None:
    model = build()
    together = stations(model, SRC, TGT, kind, 0, 1, row=1)
    alone = stations(model, SRC[1:, :3], TGT[1:, :2], kind, 0, 1)
    q, k = one(alone).alpha.shape
    torch.testing.assert_close(one(together).alpha[:q, :k], one(alone).alpha)
    assert together.out is not None
    torch.testing.assert_close(together.out[:q], alone.out)


def test_attention_shown_is_attention_used(build: BuildModel) -> None:
    """Rows sum to 1, nothing is padding, the future is 0, and company changes nothing."""
    model = build()
    pairs = [([5, 9, 6, 8], [11, 6, 7]), ([7, 5], [9]), ([4], [])]
    together = attention_weights(model, pairs)
    for (src, tgt), weights in zip(pairs, together, strict=True):
        alone = attention_weights(model, [(src, tgt)])[0]
        S, T = len(src) + 1, len(tgt) + 1
        sizes = {"encoder_self": (S, S), "decoder_self": (T, T), "cross": (T, S)}
        for kind in KINDS:
            assert weights[kind].shape == (2, 3, *sizes[kind])
            torch.testing.assert_close(weights[kind], alone[kind])
            torch.testing.assert_close(
                weights[kind].sum(-1), torch.ones(weights[kind].shape[:3], dtype=torch.float64)
            )
        assert not weights["decoder_self"].triu(1).any()


def test_rows_belong_to_the_step_that_made_the_token(build: BuildModel) -> None:
    """The weights of row t are those with which the cached step gives token t's probabilities."""
    model = build()
    src, tgt = [5, 9, 6, 8], [11, 6, 7]
    weights = attention_weights(model, [(src, tgt)])[0]["cross"]
    names = [f"{module_name('cross', layer)}.weights" for layer in (0, 1)]
    with torch.inference_mode(), recording(model, lambda name, _: name in names) as passed:
        state = model.start(torch.tensor([[*src, EOS]]))
        for t, token in enumerate([BOS, *tgt]):
            _, state = model.step(torch.tensor([[token]]), state)
            for layer, own in enumerate(names):
                torch.testing.assert_close(passed[own].output[0, :, 0], weights[layer, :, t])


def test_other_layer_types_have_cross_attention_alone(build: BuildModel) -> None:
    model = build(encoder_layer_type="recurrent", decoder_layer_type="convolutional")
    weights = attention_weights(model, [([5, 6], [7])])[0]
    assert weights["encoder_self"].shape == (0, 3, 3, 3)
    assert weights["cross"].shape == (2, 3, 2, 3)
    assert one(stations(model, SRC, TGT, "cross", 1, 0)).alpha.shape == (4, 5)


def test_matrix_of_a_linear_map() -> None:
    linear = torch.nn.Linear(3, 2).double()
    W, bias = matrix_of(linear, torch.zeros(1, 3, dtype=torch.float64))
    torch.testing.assert_close(W, linear.weight.detach())
    assert bias is not None
    torch.testing.assert_close(bias, linear.bias.detach())
    assert matrix_of(torch.nn.Linear(3, 2, False), torch.zeros(1, 3))[1] is None
