"""Adam and its rate (§5.3)."""

import torch
from torch import nn

from transduce.config import TrainingConfig


def paper_rate(step: int, d_model: int, warmup_steps: int, factor: float = 1.0) -> float:
    """Factor · d_model^-0.5 · min(step^-0.5, step · warmup_steps^-1.5) (eq. 3); step from 1."""
    return float(factor * d_model**-0.5 * min(step**-0.5, step * warmup_steps**-1.5))


def linear_rate(step: int, steps: int, warmup_steps: int, peak: float) -> float:
    """Up to `peak` at `warmup_steps`, then straight down to reach zero after the last step."""
    up = step / warmup_steps
    down = (steps + 1 - step) / max(1, steps + 1 - warmup_steps)
    return max(0.0, peak * min(up, down))


def learning_rate(step: int, config: TrainingConfig, d_model: int) -> float:
    """Return the rate that update `step` (from 1) uses."""
    if config.schedule == "linear":
        return linear_rate(step, config.steps, config.warmup_steps, config.learning_rate)
    return paper_rate(step, d_model, config.warmup_steps, config.factor)


def adam(model: nn.Module, config: TrainingConfig) -> torch.optim.Adam:
    """Return Adam with the paper's β1, β2 and ε; the trainer sets the rate before each update."""
    return torch.optim.Adam(
        model.parameters(),
        lr=0.0,
        betas=(config.beta_1, config.beta_2),
        eps=config.epsilon,
        fused=True,
    )
