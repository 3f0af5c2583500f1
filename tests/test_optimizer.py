"""The schedule (A20), at the steps where others were off by one."""

import pytest

from transduce.config import TrainingConfig
from transduce.training.optimizer import learning_rate, linear_rate, paper_rate


@pytest.mark.parametrize(
    ("step", "rate"),
    [
        (1, 1.746928e-07), (3999, 6.98596550e-04), (4000, 6.98771243e-04),
        (4001, 6.98683913e-04), (16000, 3.49385621e-04),
    ],
)  # fmt: skip
def test_the_papers_schedule(step: int, rate: float) -> None:
    assert paper_rate(step, 512, 4000) == pytest.approx(rate, rel=1e-6)
    assert learning_rate(step, TrainingConfig(), 512) == pytest.approx(rate, rel=1e-6)


@pytest.mark.parametrize(
    ("step", "rate"), [(1, 0.00395285), (2, 0.00790569), (10, 0.03952847), (40, 0.01976424)]
)
def test_a_short_warm_up(step: int, rate: float) -> None:
    assert paper_rate(step, 64, 10) == pytest.approx(rate, rel=1e-5)
    assert paper_rate(step, 64, 10, factor=2.0) == pytest.approx(2 * rate, rel=1e-5)


def test_the_linear_schedule() -> None:
    rates = [linear_rate(step, steps=10, warmup_steps=4, peak=0.7) for step in range(1, 11)]
    assert rates[:4] == pytest.approx([0.175, 0.35, 0.525, 0.7])
    assert rates[4:] == pytest.approx([0.6, 0.5, 0.4, 0.3, 0.2, 0.1])
    assert linear_rate(1, steps=1, warmup_steps=1, peak=0.7) == pytest.approx(0.7)
    assert linear_rate(11, steps=10, warmup_steps=4, peak=0.7) == 0.0
