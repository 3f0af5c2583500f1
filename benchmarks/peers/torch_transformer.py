"""torch.nn.Transformer, with the embeddings and the output that it leaves to its user."""

import math

import torch
from torch import Tensor, nn

from peers.protocol import PAD, Batch, Job, System, serve, sinusoids


class Model(nn.Module):
    def __init__(self, job: Job) -> None:
        super().__init__()
        self.transformer = nn.Transformer(
            job.d_model, job.h, job.N, job.N, job.d_ff, job.dropout, batch_first=True
        )
        self.embedding = nn.Embedding(job.vocabulary, job.d_model, padding_idx=PAD)
        nn.init.normal_(self.embedding.weight, std=job.d_model**-0.5)
        self.dropout = nn.Dropout(job.dropout)
        self.positions: Tensor
        self.register_buffer("positions", sinusoids(512, job.d_model))

    def embedded(self, ids: Tensor) -> Tensor:
        scale = math.sqrt(self.embedding.embedding_dim)
        return self.dropout(self.embedding(ids) * scale + self.positions[: ids.size(1)])

    def forward(self, src: Tensor, tgt_in: Tensor) -> Tensor:
        future = torch.ones(tgt_in.size(1), tgt_in.size(1), dtype=torch.bool).triu(1)
        decoded = self.transformer(
            self.embedded(src),
            self.embedded(tgt_in),
            tgt_mask=future,
            src_key_padding_mask=src == PAD,
            memory_key_padding_mask=src == PAD,
            tgt_is_causal=True,
        )
        return decoded @ self.embedding.weight.T


def build(job: Job) -> System:
    model = Model(job)

    def logits(batch: Batch) -> Tensor:
        found: Tensor = model(batch.src, batch.tgt_in)
        return found

    return System(job, model, logits)


if __name__ == "__main__":
    serve(build, "torch")
