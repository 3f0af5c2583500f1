"""Table 1's other rows, each against an independent way of computing it."""

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from tests.conftest import BuildModel
from transduce.config import ModelConfig, parse
from transduce.errors import UsageError
from transduce.exporting import ctranslate2, huggingface, onnx
from transduce.model.layer_types import Convolution, Recurrence, Windows, budget
from transduce.model.transformer import RestrictedAttention, attention

Array = NDArray[np.float64]


def of(**changes: Any) -> ModelConfig:
    return ModelConfig(**({"d_model": 12, "h": 3, "d_k": 4, "d_v": 4, "window": 2} | changes))


def inputs(lengths: list[int], d_model: int = 12) -> tuple[Tensor, Tensor]:
    """Return random positions, padding included, and which are real."""
    real = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    return torch.randn(len(lengths), max(lengths), d_model, dtype=torch.float64), real


def random_weights(module: nn.Module) -> dict[str, Array]:
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.4)
    return {name: p.detach().numpy() for name, p in module.named_parameters()}


# Recurrence, written out with loops


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def lstm(w: dict[str, Array], name: str, xs: Array) -> Array:
    """Gates in the order input, forget, cell, output."""
    c_width = w[f"{name}.weight_hh_l0"].shape[1]
    h, c, said = np.zeros(c_width), np.zeros(c_width), []
    for x in xs:
        gates = w[f"{name}.weight_ih_l0"] @ x + w[f"{name}.weight_hh_l0"] @ h
        gates += w[f"{name}.bias_ih_l0"] + w[f"{name}.bias_hh_l0"]
        i, f, g, o = np.split(gates, 4)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        said.append(h)
    return np.array(said)


def gru(w: dict[str, Array], name: str, xs: Array) -> Array:
    """Gates in the order reset, update, new."""
    h, said = np.zeros(w[f"{name}.weight_hh_l0"].shape[1]), []
    for x in xs:
        r_x, z_x, n_x = np.split(w[f"{name}.weight_ih_l0"] @ x + w[f"{name}.bias_ih_l0"], 3)
        r_h, z_h, n_h = np.split(w[f"{name}.weight_hh_l0"] @ h + w[f"{name}.bias_hh_l0"], 3)
        r, z = sigmoid(r_x + r_h), sigmoid(z_x + z_h)
        h = (1 - z) * np.tanh(n_x + r * n_h) + z * h
        said.append(h)
    return np.array(said)


@pytest.mark.parametrize(("cell", "causal"), [*product(["lstm", "gru"], [False, True])])
def test_recurrence_written_out(cell: str, causal: bool) -> None:
    recurrence = Recurrence(of(cell=cell), causal).double()
    w = random_weights(recurrence)
    x, real = inputs([5, 1, 3])
    ours = recurrence.mix(x, real).detach().numpy()
    run = lstm if cell == "lstm" else gru
    for row, length in enumerate(real.sum(dim=1).tolist()):
        xs = x[row, :length].numpy()
        states = run(w, "forwards", xs)
        if not causal:
            states = np.concatenate([states, run(w, "backwards", xs[::-1])[::-1]], axis=1)
        np.testing.assert_allclose(ours[row, :length], states @ w["W_O.weight"].T, atol=1e-12)


# Convolution, by the library's


@pytest.mark.parametrize(("layer", "causal"), [*product([0, 1, 2], [False, True])])
def test_convolution_by_the_librarys(layer: int, causal: bool) -> None:
    config = of(kernel=3, dilated=True)
    convolution = Convolution(config, causal, layer).double()
    random_weights(convolution)
    x, real = inputs([9, 4, 1])
    ours = convolution.mix(x, real)
    kernels = convolution.W.weight.unflatten(1, (3, 12)).transpose(1, 2)  # out d_model k
    apart = (3 if causal else 2) ** layer
    for row, length in enumerate(real.sum(dim=1).tolist()):
        before = 2 * apart if causal else apart
        alone = functional.pad(x[row : row + 1, :length].mT, (before, 2 * apart - before))
        both = functional.conv1d(alone, kernels, convolution.W.bias, dilation=apart).mT
        A, B = both.chunk(2, dim=-1)
        expected = (A * torch.sigmoid(B)) @ convolution.W_O.weight.mT
        torch.testing.assert_close(ours[row, :length], expected[0], rtol=0, atol=1e-12)


# Windows


@given(n=st.integers(1, 90), r=st.integers(1, 50), causal=st.booleans(), hidden=st.integers(0, 89))
@settings(max_examples=60, deadline=None)
def test_windows_give_what_a_mask_over_all_pairs_gives(
    n: int, r: int, causal: bool, hidden: int
) -> None:
    windows = Windows(n, r, causal)
    Q, K, V = (torch.randn(2, 3, n, 4, dtype=torch.float64) for _ in range(3))
    real = torch.arange(n) < torch.tensor([n, max(1, n - hidden)])[:, None]
    dense = attention(Q, K, V, windows.dense(real))
    blocks = attention(
        windows.of_queries(Q), windows.of_keys(K), windows.of_keys(V), windows.mask(real)
    )
    ours = windows.joined(blocks.transpose(1, 2).flatten(2))
    torch.testing.assert_close(ours, dense.transpose(1, 2).flatten(2), rtol=0, atol=1e-12)


def test_the_mask_of_a_window_by_hand() -> None:
    real = torch.tensor([[True, True, True, False]])
    around = [[1, 1, 0, 0], [1, 1, 1, 0], [0, 1, 1, 0], [0, 0, 1, 0]]
    assert Windows(4, 1, False).dense(real)[0, 0].int().tolist() == around
    before = [[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 0]]
    assert Windows(4, 1, True).dense(real)[0, 0].int().tolist() == before


def test_windows_hold_as_many_numbers_as_positions_and_windows_ask_for() -> None:
    """Scores of all blocks: at most n (b + 2r) of them, whatever n is."""
    for n in (1_000, 4_000, 16_000):
        windows = Windows(n, 16, causal=False)
        scores = windows.count * windows.block * (windows.block + 2 * 16)
        assert scores <= (n + windows.block) * (32 + 2 * 16)


@pytest.mark.parametrize("causal", [False, True])
def test_recorded_weights_are_those_used(causal: bool) -> None:
    mixer = RestrictedAttention(of(), causal).double().eval()
    x, real = inputs([7, 3])
    plain = mixer.mix(x, real)
    seen: list[Tensor] = []
    mixer.weights.register_forward_hook(lambda m, i, out: seen.append(out))
    torch.testing.assert_close(mixer.mix(x, real)[real], plain[real], rtol=0, atol=1e-12)
    assert seen[0].shape == (2, 3, 7, 7)
    mask = Windows(7, 2, causal).dense(real)
    assert (seen[0][~mask.expand_as(seen[0])] == 0).all()
    rows = seen[0].transpose(1, 2)[real]
    torch.testing.assert_close(rows.sum(-1), torch.ones_like(rows[..., 0]))


# Budget and settings


@pytest.mark.parametrize("kind", ["recurrent", "convolutional", "restricted"])
@pytest.mark.parametrize("cell", ["lstm", "gru"])
@pytest.mark.parametrize("kernel", [3, 7])
def test_the_same_number_of_parameters(kind: str, cell: str, kernel: int) -> None:
    """Within half of what one more unit of the inner width costs."""
    from transduce.model.transformer import mixer

    config = of(d_model=512, h=8, d_k=64, d_v=64, cell=cell, kernel=kernel)
    for causal in (False, True):
        module = mixer(config, kind, causal, 0)  # type: ignore[arg-type]
        assert isinstance(module, nn.Module)
        count = sum(p.numel() for p in module.parameters() if p.dim() > 1)
        assert budget(config) == 4 * 512**2
        assert abs(count / budget(config) - 1) < 0.01


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"window": 0, "encoder_layer_type": "restricted"}, "window"),
        ({"kernel": 4, "encoder_layer_type": "convolutional"}, "must be odd"),
        ({"kernel": 1, "decoder_layer_type": "convolutional"}, "kernel"),
        ({"encoder_layer_type": "recursive"}, "recurrent"),
        ({"cell": "rnn"}, "lstm"),
        ({"attention_normaliser": "hardmax"}, "sparsemax"),
        ({"norm_kind": "group"}, "batch"),
    ],
)
def test_what_cannot_be_is_refused_when_it_is_read(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        parse({"model": wrong}, "the recipe")


def test_an_even_kernel_is_good_in_the_decoder(build: BuildModel) -> None:
    assert parse({"model": {"kernel": 4, "decoder_layer_type": "convolutional"}}, "").model


def test_batch_norm_takes_whole_batches() -> None:
    parse({"model": {"norm_kind": "batch"}}, "")
    with pytest.raises(UsageError, match=r"training\.workers must be 1"):
        parse({"model": {"norm_kind": "batch"}, "training": {"workers": 2}}, "")


@pytest.mark.parametrize(
    "changes",
    [
        *({"encoder_layer_type": kind} for kind in ("restricted", "recurrent", "convolutional")),
        *({"decoder_layer_type": kind} for kind in ("restricted", "recurrent", "convolutional")),
        {"norm_kind": "rms"}, {"norm_kind": "batch"}, {"attention_normaliser": "relu"},
        {"attention_normaliser": "sparsemax"}, {"attention_normaliser": "entmax"},
    ],
    ids=lambda changes: "-".join(map(str, changes.values())),
)  # fmt: skip
def test_no_export_carries_it_and_each_names_it(changes: dict[str, Any]) -> None:
    config = of(**changes)
    for format in (ctranslate2, huggingface, onnx):
        assert any(next(iter(changes)) in name for name in format.refused(config))


def test_settings_of_parts_that_are_not_there_stop_no_export() -> None:
    config = of(window=7, kernel=5, dilated=True, cell="gru")
    assert ctranslate2.refused(config) == onnx.refused(config) == []
    assert not any("kernel" in name for name in huggingface.refused(config))
