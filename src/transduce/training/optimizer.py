"""Adam and its rate (§5.3)."""

import math

import torch
from torch import nn

from transduce.config import TrainingConfig


def paper_rate(step: int, d_model: int, warmup_steps: int, factor: float = 1.0) -> float:
    """Factor · d_model^-0.5 · min(step^-0.5, step · warmup_steps^-1.5) (eq. 3); step from 1."""
    return float(factor * d_model**-0.5 * min(step**-0.5, step * warmup_steps**-1.5))


def learning_rate(step: int, config: TrainingConfig, d_model: int) -> float:
    """Return the rate that update `step` (from 1) uses.

    All schedules but the paper's rise in a straight line to `learning_rate` at `warmup_steps`. Of
    the updates that are left then, let 1 be the first and 0 the one after the last: `linear` falls
    with that share, `cosine` in half a wave, both to zero; `inverse_sqrt` falls with step^-0.5, as
    the paper's does; `constant` stays.
    """
    warmup_steps, peak = config.warmup_steps, config.learning_rate
    if config.schedule == "paper":
        return paper_rate(step, d_model, warmup_steps, config.factor)
    if step <= warmup_steps:
        return peak * step / warmup_steps
    left = max(0.0, (config.steps + 1 - step) / max(1, config.steps + 1 - warmup_steps))
    match config.schedule:
        case "linear":
            return peak * left
        case "cosine":
            return peak * 0.5 * (1.0 - math.cos(math.pi * left))
        case "inverse_sqrt":
            return peak * math.sqrt(warmup_steps / step)
    return peak


def adam(model: nn.Module, config: TrainingConfig) -> torch.optim.Adam:
    """Return Adam with the paper's β1, β2 and ε; the trainer sets the rate before each update."""
    return torch.optim.Adam(
        (parameter for parameter in model.parameters() if parameter.requires_grad),
        lr=0.0,
        betas=(config.beta_1, config.beta_2),
        eps=config.epsilon,
        fused=True,
    )
