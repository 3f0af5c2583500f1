"""The reference port: its model and its search, one sentence at a time, nothing kept between steps.

Its model normalises embeddings, so it cannot take our weights: they are random, END is never
generated, and each output ends where ours does.
"""

from importlib import import_module
from typing import Any

import torch
from peers import reference as peer

from translators.protocol import BOS, EOS, PAD, Ids, Job, Translate, padded, serve


def build(variant: str, job: Job) -> Translate:
    model: Any = peer.build(job.of_training()).model
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
