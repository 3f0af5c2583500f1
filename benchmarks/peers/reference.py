"""The reference port jadore801120/attention-is-all-you-need-pytorch: its model classes.

Its own loss stands in a script that imports packages which are no longer made; torch's
cross-entropy, which is faster, takes its place.
"""

import sys
from importlib import import_module
from pathlib import Path

from torch import Tensor

from peers.protocol import PAD, Batch, Job, System, serve


def build(job: Job) -> System:
    if not (Path(job.reference) / "transformer" / "Models.py").exists() or not job.reference:
        raise FileNotFoundError("no checkout given (--reference FOLDER)")
    sys.path.insert(0, job.reference)
    model = import_module("transformer.Models").Transformer(
        job.vocabulary,
        job.vocabulary,
        src_pad_idx=PAD,
        trg_pad_idx=PAD,
        d_word_vec=job.d_model,
        d_model=job.d_model,
        d_inner=job.d_ff,
        n_layers=job.N,
        n_head=job.h,
        d_k=job.d_model // job.h,
        d_v=job.d_model // job.h,
        dropout=job.dropout,
        n_position=512,
    )

    def logits(batch: Batch) -> Tensor:
        found: Tensor = model(batch.src, batch.tgt_in)
        return found.view(*batch.tgt_in.shape, -1)

    return System(job, model, logits)


if __name__ == "__main__":
    serve(build, "attention-is-all-you-need-pytorch")
