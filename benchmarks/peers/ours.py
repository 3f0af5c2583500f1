"""Transduce itself, trained as the product trains: by its trainer's updates."""

from pathlib import Path

import torch
from torch import Tensor

from peers.protocol import Batch, Job, System, serve
from transduce.config import merge, parse, read_toml
from transduce.data import batches
from transduce.data.corpus import Corpus
from transduce.experiment import assemble
from transduce.training.machine import keep_pages, pick_workers
from transduce.training.trainer import Trainer


class Ours(System):
    """The trainer's own updates instead of the plain loop."""

    def __init__(self, job: Job, trainer: Trainer) -> None:
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
    keep_pages()
    settings = read_toml(Path(job.config))
    tokens = parse(settings, job.config).training.tokens
    automatic = {
        "precision": job.variant,
        "workers": pick_workers(torch.device("cpu"), tokens),
    }
    config = parse(merge(settings, {"training": automatic}), job.config)
    corpus = Corpus(Path(job.corpus))
    trainer, _ = assemble(config, corpus, corpus.folder / job.variant)
    return Ours(job, trainer)


if __name__ == "__main__":
    serve(build, "transduce")
