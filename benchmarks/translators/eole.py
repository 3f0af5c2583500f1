"""eole: its model (pre-norm) with random weights, and its beam search."""

from importlib import import_module
from types import SimpleNamespace
from typing import Any

import torch
from peers import eole as peer

from translators.endings import Ending
from translators.protocol import Ids, Job, Translate, padded, serve


def build(variant: str, job: Job) -> Translate:
    model: Any = peer.build(job.of_training()).model.eval()
    model.generator = Ending(model.generator)
    vocabularies = peer.vocabularies_of(job.of_training())
    settings = import_module("eole.config.inference").DecodingConfig().model_dump()
    scorer_type = import_module("eole.predict.beam_search").GNMTGlobalScorer
    translator_type = import_module("eole.predict.translator").Translator
    shape = SimpleNamespace(add_estimator=False, estimator_type="", encoder=None)

    def translate(numbers: list[int], beam: int) -> list[Ids]:
        src = padded([job.sources[i] for i in numbers])
        model.generator.after(job, numbers)
        config = SimpleNamespace(
            **settings
            | {"beam_size": beam, "max_length": src.size(1) + job.max_extra, "max_length_ratio": 0}
            | {"transforms": [], "optional_eos": [], "context_length": 0, "data_type": "text"}
            | {"report_align": False, "gold_align": False, "self_attn_backend": "pytorch"}
            | {"estim_only": False, "dynamic_shapes": True, "report_time": False}
            | {"fuse_kvq": False, "fuse_gate": False, "tgt_file_prefix": False, "seed": -1}
        )
        translator = translator_type(
            model, vocabularies, config, shape, device_id=-1,
            global_scorer=scorer_type(job.alpha, 0.0, "wu", "none"),
        )  # fmt: skip
        numbered = torch.arange(len(src))
        batch = {"src": src, "srclen": (src != 0).sum(1), "left_pad": False}
        batch |= {"ind_in_bucket": numbered, "cid_line_number": numbered}
        found = translator.predict_batch(batch, attn_debug=False)
        return [list(map(int, outputs[0])) for outputs in found["predictions"]]

    return translate


if __name__ == "__main__":
    serve(build, "eole")
