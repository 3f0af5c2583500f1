"""The loss: which label smoothing, what counts, and what a batch of nothing does."""

import pytest
import torch

from transduce.training.loss import label_smoothed

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
