"""A toy that shows what a part does: small models that learn to copy random letters."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from transduce.config import BOS, EOS, PAD, ModelConfig, TrainingConfig
from transduce.model import Transformer
from transduce.training.loss import projected_loss
from transduce.training.optimizer import adam, learning_rate

LETTERS = 26
SENTENCES = 64
"""In a batch."""


def letters(lengths: Sequence[int], draw: torch.Generator) -> Int[Tensor, "B S"]:
    """Return random letters of some lengths, each with END, padded."""
    rows = torch.full((len(lengths), max(lengths) + 1), PAD)
    for row, length in zip(rows, lengths, strict=True):
        row[:length] = torch.randint(EOS + 1, EOS + 1 + LETTERS, (length,), generator=draw)
        row[length] = EOS
    return rows


def shifted(targets: Int[Tensor, "B T"]) -> Int[Tensor, "B T"]:
    """Return what the decoder reads: BEGIN, then the targets but for END."""
    inputs = targets.roll(1, dims=1).masked_fill(targets == PAD, PAD)
    inputs[:, 0] = BOS
    return inputs


def copier(
    longest: int,
    updates: int,
    seed: int = 1,
    name: str = "copier",
    tell: Callable[[str], None] = lambda line: None,
    **model: Any,
) -> Transformer:
    """Return a model that has learned to copy up to so many letters.

    Args:
        longest: letters of the longest sentence of training.
        updates: of 64 sentences each.
        seed: decides the weights and the letters.
        name: of the model, for `tell`.
        tell: is told the loss now and then.
        model: settings of it.
    """
    torch.manual_seed(seed)
    sizes: dict[str, Any] = {
        "source_vocabulary": EOS + 1 + LETTERS, "target_vocabulary": EOS + 1 + LETTERS,
        "N": 2, "d_model": 64, "d_ff": 128, "h": 4, "P_drop": 0.0, "norm_place": "pre",
    }  # fmt: skip
    made = Transformer(ModelConfig(**(sizes | model)))
    draw = torch.Generator().manual_seed(seed)
    training = TrainingConfig(
        schedule="linear", learning_rate=3e-3, warmup_steps=100, steps=updates, eps_ls=0.0
    )
    optimizer = adam(made, training)
    for update in range(1, updates + 1):
        lengths = torch.randint(1, longest + 1, (SENTENCES,), generator=draw).tolist()
        tgt = letters(lengths, draw)
        loss = projected_loss(made.states(tgt, shifted(tgt)), made.output.weight, tgt, 0.0)
        per_token = loss.sum / loss.tokens
        optimizer.param_groups[0]["lr"] = learning_rate(update, training, made.config.d_model)
        optimizer.zero_grad()
        per_token.backward()
        optimizer.step()
        if update % 20 == 0:
            tell(f"{name}: update {update:,} of {updates:,}, loss {per_token.item():.3f}")
    return made.eval()


@torch.inference_mode()
def copied(model: Transformer, src: Int[Tensor, "B S"]) -> Bool[Tensor, " B"]:
    """Say of which sentences the greedy output is exactly the source."""
    state, tokens = model.start(src), torch.full((len(src), 1), BOS)
    right = torch.ones(len(src), dtype=torch.bool)
    for expected in src.T:
        logits, state = model.step(tokens, state)
        tokens = logits.argmax(dim=-1)
        right &= (tokens[:, 0] == expected) | (expected == PAD)
        tokens = torch.where(tokens == PAD, EOS, tokens)
    return right


@torch.inference_mode()
def right_letters(model: Transformer, src: Int[Tensor, "B S"]) -> Bool[Tensor, "B S"]:
    """Say which next tokens are found when those before are given; padding counts as wrong."""
    return (model(src, shifted(src)).argmax(dim=-1) == src) & (src != PAD)
