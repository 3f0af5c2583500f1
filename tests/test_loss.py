"""The loss: which label smoothing, what counts, and what a batch of nothing does."""

import pytest
import torch

from transduce.training import loss as module
from transduce.training.loss import label_smoothed, projected_loss

PROBABILITIES = torch.tensor([0.05, 0.10, 0.60, 0.20, 0.05], dtype=torch.float64)
LOGITS = PROBABILITIES.log()[None, None]
LABEL = torch.tensor([[2]])


def test_the_definition() -> None:
    """A17: over all classes, not over four or three of them."""
    loss = label_smoothed(LOGITS, LABEL, 0.1)
    assert loss.sum.item() == pytest.approx(0.668029, abs=1e-6)
    assert loss.unsmoothed.item() == pytest.approx(0.510826, abs=1e-6)
    assert label_smoothed(LOGITS, LABEL, 0.0).sum.item() == pytest.approx(0.510826, abs=1e-6)


def test_logits_need_not_be_normalised() -> None:
    assert label_smoothed(LOGITS + 7.0, LABEL, 0.1).sum.item() == pytest.approx(0.668029, abs=1e-6)


@pytest.mark.parametrize("garbage", [0.0, 1e30, float("inf"), float("nan")])
def test_padding_counts_nowhere(garbage: float) -> None:
    logits = torch.cat([LOGITS, torch.full((1, 10, 5), garbage, dtype=torch.float64)], dim=1)
    logits.requires_grad_()
    labels = torch.cat([LABEL, torch.zeros(1, 10, dtype=torch.int64)], dim=1)
    loss = label_smoothed(logits, labels, 0.1)
    assert loss.tokens.item() == 1
    assert loss.sum.item() == pytest.approx(0.668029, abs=1e-6)
    loss.sum.backward()
    assert logits.grad is not None and (logits.grad[:, 1:] == 0).all()


def test_nothing_but_padding() -> None:
    """A26: a sum of 0 over 0 tokens, and a gradient of zeros."""
    logits = torch.randn(2, 3, 5, requires_grad=True)
    loss = label_smoothed(logits, torch.zeros(2, 3, dtype=torch.int64), 0.1)
    assert (loss.sum.item(), loss.tokens.item(), loss.unsmoothed.item()) == (0.0, 0, 0.0)
    loss.sum.backward()
    assert logits.grad is not None and (logits.grad == 0).all()


def test_equals_the_librarys() -> None:
    logits = torch.randn(3, 4, 7, dtype=torch.float64)
    labels = torch.randint(0, 7, (3, 4))
    expected = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), labels.flatten(), ignore_index=0, label_smoothing=0.3, reduction="sum"
    )
    torch.testing.assert_close(label_smoothed(logits, labels, 0.3).sum, expected)


def test_finite_differences() -> None:
    logits = torch.randn(2, 3, 5, dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([[1, 2, 0], [4, 0, 0]])
    torch.autograd.gradcheck(lambda x: label_smoothed(x, labels, 0.1).sum, logits)


def test_half_precision_is_summed_in_float32() -> None:
    logits = (100 * torch.randn(1, 50, 9)).bfloat16()
    labels = torch.randint(1, 9, (1, 50))
    assert label_smoothed(logits, labels).sum.dtype == torch.float32
    assert torch.equal(
        label_smoothed(logits, labels).sum, label_smoothed(logits.float(), labels).sum
    )


@pytest.mark.parametrize(("chunk", "rows"), [(1024, 64), (5, 2), (4, 4)])
def test_without_holding_the_logits(monkeypatch: pytest.MonkeyPatch, chunk: int, rows: int) -> None:
    """In chunks, with its own gradient: the same numbers as by the definition."""
    monkeypatch.setattr(module, "CHUNK", chunk)
    monkeypatch.setattr(module, "ROWS", rows)
    W = torch.randn(7, 3, dtype=torch.float64, requires_grad=True)
    b = torch.randn(7, dtype=torch.float64, requires_grad=True)
    states = torch.randn(3, 4, 3, dtype=torch.float64, requires_grad=True)
    labels = torch.randint(0, 7, (3, 4))
    without = projected_loss(states, W, labels, 0.2)
    torch.testing.assert_close(without.sum, label_smoothed(states @ W.T, labels, 0.2).sum)
    ours = projected_loss(states, W, labels, 0.2, b)
    expected = label_smoothed(states @ W.T + b, labels, 0.2)
    for one, other in zip(ours, expected, strict=True):
        torch.testing.assert_close(one, other)
    gradients = torch.autograd.grad(ours.sum / 5, (states, W, b))
    right = torch.autograd.grad(expected.sum / 5, (states, W, b))
    torch.testing.assert_close(gradients, right)


def test_projected_in_half_precision() -> None:
    W, states = torch.randn(50, 16), torch.randn(3, 4, 16)
    labels = torch.randint(0, 50, (3, 4))
    with torch.autocast("cpu", torch.bfloat16):
        loss = projected_loss(states, W, labels)
    assert loss.sum.dtype == torch.float32
    torch.testing.assert_close(
        loss.sum, label_smoothed(states @ W.T, labels).sum, rtol=0.01, atol=0
    )


def test_projected_nothing_but_padding() -> None:
    """A26, and huge numbers under the padding."""
    W = torch.randn(5, 3, requires_grad=True)
    states = torch.full((2, 3, 3), 1e20, requires_grad=True)
    loss = projected_loss(states, W, torch.zeros(2, 3, dtype=torch.int64), 0.1)
    assert (loss.sum.item(), loss.tokens.item(), loss.unsmoothed.item()) == (0.0, 0, 0.0)
    for gradient in torch.autograd.grad(loss.sum, (states, W)):
        assert (gradient == 0).all()


@pytest.mark.parametrize("frozen", ["states", "W"])
def test_what_is_frozen_gets_no_gradient(frozen: str) -> None:
    given = {
        "states": torch.randn(3, 4, 3, dtype=torch.float64),
        "W": torch.randn(7, 3, dtype=torch.float64),
    }
    labels = torch.randint(0, 7, (3, 4))
    (other,) = given.keys() - {frozen}
    given[other].requires_grad_()
    projected_loss(given["states"], given["W"], labels).sum.backward()
    ours = given[other].grad
    (right,) = torch.autograd.grad(
        label_smoothed(given["states"] @ given["W"].t(), labels).sum, given[other]
    )
    assert ours is not None and given[frozen].grad is None
    torch.testing.assert_close(ours, right)
