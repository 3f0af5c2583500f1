"""Transduce itself, trained as the product trains; or without one of the things it is fast by."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from peers.protocol import Batch, Job, System, serve
from transduce.assembly import assemble
from transduce.config import TrainingConfig, merge, parse, read_toml
from transduce.data import batches
from transduce.data.corpus import Corpus
from transduce.model import transformer
from transduce.training import gradients, trainer
from transduce.training.loss import Loss, label_smoothed
from transduce.training.machine import keep_pages, pick_workers


class Ours(System):
    """The trainer's own updates instead of the plain loop."""

    def __init__(self, job: Job, trainer: trainer.Trainer) -> None:
        super().__init__(job, trainer.model, self.own_logits)
        self.trainer = trainer

    def own_logits(self, batch: Batch) -> Tensor:
        logits: Tensor = self.model(batch.src, batch.tgt_in)
        return logits

    def update(self, batch: Batch) -> float:
        done = self.trainer.update([batches.Batch(*batch)])
        self.trainer.progress.step += 1
        return done.sums.loss


def build(job: Job) -> System:
    precision, _, left_out = job.variant.partition(" without ")
    if left_out in WITHOUT:
        WITHOUT[left_out]()
    elif left_out not in ("", "pages kept", "parts side by side"):
        sys.exit(f"nothing to leave out is called {left_out!r}")
    if left_out != "pages kept":
        keep_pages()
    settings = read_toml(Path(job.config))
    tokens = parse(settings, job.config).training.tokens
    whole = left_out == "parts side by side" or "compiled" in job.variant
    automatic = {
        "precision": precision.split()[0],
        "compile": "compiled" in job.variant,
        "workers": 1 if whole else pick_workers(torch.device("cpu"), tokens),
    }
    config = parse(merge(settings, {"training": automatic}), job.config)
    corpus = Corpus(Path(job.corpus))
    assembled, _ = assemble(config, corpus, corpus.folder / job.variant)
    return Ours(job, assembled)


# What the product does, undone --------------------------------------------------------------------


def joined_projections() -> None:
    def forward(self: Any, x: Tensor, memory: Tensor, mask: Tensor | None) -> Tensor:
        from_memory = [self.W_K, self.W_V]
        if x is memory:
            W = torch.cat([W.weight for W in (self.W_Q, *from_memory)])
            Q, K, V = functional.linear(x, W).chunk(3, dim=-1)
        else:
            W = torch.cat([W.weight for W in from_memory])
            Q, (K, V) = self.W_Q(x), functional.linear(memory, W).chunk(2, dim=-1)
        return self.attend(self.split(Q), self.split(K), self.split(V), mask)

    transformer.MultiHeadAttention.forward = forward  # type: ignore[method-assign]


def library_dropout() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        return functional.dropout(x, self.P_drop, self.training)

    transformer.Dropout.forward = forward  # type: ignore[method-assign]


def softmax_by_autograd() -> None:
    def masked_softmax(scores: Tensor, mask: Tensor | None) -> Tensor:
        if mask is None:
            return scores.softmax(-1, torch.float32)
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
        return scores.softmax(-1, torch.float32).masked_fill(~mask, 0.0)

    transformer.masked_softmax = masked_softmax


def whole_logits() -> None:
    def loss(states: Tensor, W: Tensor, tgt_out: Tensor, eps_ls: float = 0.1) -> Loss:
        return label_smoothed(functional.linear(states, W), tgt_out, eps_ls)

    setattr(gradients, "projected_loss", loss)  # noqa: B010 (not one of its public names)


def fused_attention() -> None:
    transformer.fused_pays = lambda Q, P_drop=0.0: True


def plain_adam() -> None:
    def adam(model: nn.Module, config: TrainingConfig) -> torch.optim.Adam:
        return torch.optim.Adam(model.parameters(), betas=(0.9, 0.98), eps=1e-9)

    setattr(trainer, "adam", adam)  # noqa: B010


WITHOUT: dict[str, Callable[[], None]] = {
    "separate projections": joined_projections,
    "dropout by bits": library_dropout,
    "own gradient of the softmax": softmax_by_autograd,
    "loss in chunks": whole_logits,
    "explicit attention": fused_attention,
    "fused Adam": plain_adam,
}


if __name__ == "__main__":
    serve(build, "transduce")
