"""Other normalisers and norms, against other ways of computing them."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from transduce.model.transformer import NORMALISERS, LayerNorm
from transduce.model.variants import BatchNorm, RMSNorm, masked_relu, masked_sparsemax

NAMES = sorted(NORMALISERS)


def projection(z: list[float]) -> list[float]:
    """The nearest point of the simplex: τ found by bisection."""
    low, high = min(z) - 1, max(z)
    for _ in range(200):
        tau = (low + high) / 2
        low, high = (tau, high) if sum(max(0.0, one - tau) for one in z) > 1 else (low, tau)
    return [max(0.0, one - tau) for one in z]


@given(st.lists(st.floats(-30, 30), min_size=1, max_size=40))
@settings(deadline=None)
def test_sparsemax_is_the_projection_onto_the_simplex(z: list[float]) -> None:
    P = masked_sparsemax(torch.tensor(z, dtype=torch.float64)[None, None, None], None)
    assert P.flatten().tolist() == pytest.approx(projection(z), abs=1e-9)


def test_sparsemax_of_two_scores_by_hand() -> None:
    """Of (t, 0) it is (1 + t) / 2 between −1 and 1, then 0 and 1 (Martins and Astudillo, §2.3)."""
    t = torch.tensor([-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0])
    scores = torch.stack([t, torch.zeros(7)], dim=-1)[None, None]
    first = masked_sparsemax(scores, None)[0, 0, :, 0]
    assert first.tolist() == [0.0, 0.0, 0.25, 0.5, 0.75, 1.0, 1.0]


@pytest.mark.parametrize("name", NAMES)
def test_nan_stays_nan(name: str) -> None:
    """So that the training that it comes from can say so."""
    scores = torch.tensor([[[[1.0, float("nan"), 2.0]]]])
    assert NORMALISERS[name](scores, None).isnan().any()


def test_relu_takes_the_mean_over_the_keys_that_may_be_seen() -> None:
    scores = torch.tensor([[[[2.0, -1.0, 3.0, 5.0]]]])
    mask = torch.tensor([[[[True, True, True, False]]]])
    assert masked_relu(scores, mask).flatten().tolist() == pytest.approx([2 / 3, 0, 1, 0])
    assert masked_relu(scores, None).flatten().tolist() == pytest.approx([0.5, 0, 0.75, 1.25])


@pytest.mark.parametrize("name", NAMES)
def test_what_is_hidden_gets_nothing_and_changes_nothing(name: str) -> None:
    normalise = NORMALISERS[name]
    mask = torch.rand(2, 1, 5, 9) < 0.5
    mask[0, 0, 1] = False
    mask[1, 0, 2] = True
    scores = 3 * torch.randn(2, 3, 5, 9, dtype=torch.float64)
    P = normalise(scores, mask)
    assert (P[~mask.expand_as(P)] == 0).all()
    assert (P[0, :, 1] == 0).all()
    shown = mask[0, 0, 0]
    torch.testing.assert_close(
        P[0, :, 0][:, shown], normalise(scores[:1, :, :1, shown], None)[0, :, 0],
        rtol=0, atol=1e-12,
    )  # fmt: skip
    if name != "relu":
        torch.testing.assert_close(P[1, :, 2].sum(-1), torch.ones(3, dtype=torch.float64))
    assert normalise(scores.bfloat16(), mask).dtype == torch.float32


@pytest.mark.parametrize("name", NAMES)
def test_gradients_by_finite_differences(name: str) -> None:
    """At points where they exist: no score on an edge of the support."""
    mask = torch.ones(1, 1, 3, 6, dtype=torch.bool)
    mask[0, 0, 0, 3:] = mask[0, 0, 1] = False
    scores = torch.tensor(
        [[[[0.3, 0.1, -2.0, 0.7, 1.1, 0.2]] * 2 + [[1.6, 1.3, -0.7, 0.05, 0.4, 1.45]]]],
        dtype=torch.float64, requires_grad=True,
    )  # fmt: skip
    torch.autograd.gradcheck(lambda x: NORMALISERS[name](x, mask), scores)


def test_the_gradient_of_sparsemax_on_its_support() -> None:
    """dP less its mean over the support, zero outside (Martins and Astudillo, 2016, eq. 9)."""
    scores = torch.tensor([1.0, 0.6, -3.0], dtype=torch.float64, requires_grad=True)
    P = masked_sparsemax(scores[None, None, None], None)
    P.backward(torch.tensor([[[[5.0, 1.0, 7.0]]]], dtype=torch.float64))
    assert scores.grad is not None and scores.grad.tolist() == pytest.approx([2.0, -2.0, 0.0])


# Norms


def batch() -> tuple[Tensor, Tensor]:
    real = torch.arange(7) < torch.tensor([7, 3, 1])[:, None]
    return torch.randn(3, 7, 5, dtype=torch.float64) * 3 + 1, real


def test_batch_norm_is_the_librarys_over_the_real_positions() -> None:
    ours, theirs = BatchNorm(5, eps=1e-5).double(), nn.BatchNorm1d(5, eps=1e-5).double()
    for _ in range(3):
        x, real = batch()
        torch.testing.assert_close(ours(x, real)[real], theirs(x[real]), rtol=0, atol=1e-12)
    assert theirs.running_mean is not None and theirs.running_var is not None
    torch.testing.assert_close(ours.running_mean.data, theirs.running_mean, rtol=0, atol=1e-12)
    before = 0.9**3  # what is left of the first 1; the library's variance is n / (n − 1) times ours
    torch.testing.assert_close(theirs.running_var - before, 1.1 * (ours.running_variance - before))
    ours.eval()
    theirs.running_var.copy_(ours.running_variance)
    x, real = batch()
    torch.testing.assert_close(ours(x, real), theirs.eval()(x.flatten(0, 1)).view(3, 7, 5))
    torch.testing.assert_close(ours(x[:1, :2]), ours(x, real)[:1, :2])


def test_layer_norm_is_of_one_position_alone() -> None:
    """Neither over the batch nor over the positions; by hand for one row."""
    norm = LayerNorm(3, eps=0.0).double()
    x = torch.tensor([[[1.0, 2.0, 6.0], [5.0, 5.0, 8.0]]], dtype=torch.float64)
    mean, deviation = 3.0, np.sqrt((4 + 1 + 9) / 3)
    by_hand = [(value - mean) / deviation for value in (1.0, 2.0, 6.0)]
    assert norm(x)[0, 0].tolist() == pytest.approx(by_hand)
    x[0, 1] = 100.0 * torch.randn(3)
    assert norm(x)[0, 0].tolist() == pytest.approx(by_hand)


def test_rms_norm_by_hand() -> None:
    norm = RMSNorm(3, eps=0.0).double()
    x = torch.tensor([[[1.0, 2.0, 2.0]]], dtype=torch.float64)
    assert norm(x).flatten().tolist() == pytest.approx([x / np.sqrt(3) for x in (1.0, 2.0, 2.0)])
