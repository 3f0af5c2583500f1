"""OpenNMT-py: its model (pre-norm) with random weights, and its beam search."""

from importlib import import_module
from typing import Any

import torch
from peers import opennmt as peer

from translators.endings import Ending
from translators.protocol import Ids, Job, Translate, padded, serve


def build(variant: str, job: Job) -> Translate:
    model: Any = peer.build(job.of_training()).model.eval()
    model.generator = Ending(model.generator)
    vocabularies = peer.vocabularies_of(job.of_training())
    scorer = import_module("onmt.translate.beam_search").GNMTGlobalScorer(
        job.alpha, 0.0, "wu", "none"
    )
    translator_type = import_module("onmt.translate.translator").Translator

    def translate(numbers: list[int], beam: int) -> list[Ids]:
        src = padded([job.sources[i] for i in numbers])
        model.generator.after(job, numbers)
        translator = translator_type(
            model, vocabularies, beam_size=beam, global_scorer=scorer, dump_beam="",
            max_length=src.size(1) + job.max_extra, max_length_ratio=0.0,
        )  # fmt: skip
        batch = {"src": src[:, :, None], "srclen": (src != 0).sum(1)}
        batch["indices"] = batch["ind_in_bucket"] = torch.arange(len(src))
        found = translator.translate_batch(batch, attn_debug=False)
        return [outputs[0].tolist() for outputs in found["predictions"]]

    return translate


if __name__ == "__main__":
    serve(build, "OpenNMT-py")
