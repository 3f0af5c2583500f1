"""The schedule (A20), at the steps where others were off by one."""

import pytest
from torch import nn

from transduce.config import TrainingConfig
from transduce.training.optimizer import adam, learning_rate, paper_rate


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


@pytest.mark.parametrize(
    ("schedule", "after"),
    [
        ("linear", [0.6, 0.5, 0.4, 0.3, 0.2, 0.1]),
        ("cosine", [0.6653, 0.5682, 0.4279, 0.2721, 0.1318, 0.0347]),
        ("inverse_sqrt", [0.6261, 0.5715, 0.5292, 0.4950, 0.4667, 0.4427]),
        ("constant", [0.7] * 6),
    ],
)
def test_schedules_with_a_peak(schedule: str, after: list[float]) -> None:
    """The same way up; the way down computed by hand: 0.35 (1 - cos(pi 6/7)) is 0.6653."""
    config = TrainingConfig.model_validate(
        {"schedule": schedule, "steps": 10, "warmup_steps": 4, "learning_rate": 0.7}
    )
    rates = [learning_rate(step, config, 512) for step in range(1, 11)]
    assert rates[:4] == pytest.approx([0.175, 0.35, 0.525, 0.7])
    assert rates[4:] == pytest.approx(after, abs=5e-5)
    alone = config.model_copy(update={"steps": 1, "warmup_steps": 1})
    assert learning_rate(1, alone, 512) == pytest.approx(0.7)
    beyond = learning_rate(11, config, 512)
    assert (beyond == 0.0) == (schedule in ("linear", "cosine"))


def test_adam_leaves_frozen_parameters_out() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[0].requires_grad_(False)
    assert len(adam(model, TrainingConfig()).param_groups[0]["params"]) == 2
