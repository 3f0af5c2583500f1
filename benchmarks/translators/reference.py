"""The reference port: its model and its search, one sentence at a time, nothing kept between steps.

Its model normalises embeddings, so it cannot take our weights: they are random, END is never
generated, and each output ends where ours does.
"""

import sys
from importlib import import_module
from pathlib import Path

import torch

from translators.protocol import BOS, EOS, PAD, Ids, Job, Translate, padded, serve


def build(variant: str, job: Job) -> Translate:
    if not job.reference or not (Path(job.reference) / "transformer" / "Models.py").exists():
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
        n_position=512,
    )
    translator_type = import_module("transformer.Translator").Translator
    with torch.no_grad():
        model.trg_word_prj.weight[EOS] = 0.0

    def translate(numbers: list[int], beam: int) -> list[Ids]:
        outputs: list[Ids] = []
        for i in numbers:
            longest = max(3, job.lengths[i] + 1)  # BEGIN counts
            search = translator_type(model, beam, longest, PAD, PAD, BOS, EOS)
            outputs.append(search.translate_sentence(padded([job.sources[i]])))
        return outputs

    return translate


if __name__ == "__main__":
    serve(build, "")
