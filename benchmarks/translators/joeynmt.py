"""JoeyNMT with our weights, by its own search (which keeps no keys and values)."""

from importlib import import_module
from types import SimpleNamespace

import torch
from peers import joeynmt as peer

from translators.protocol import PAD, Ids, Job, Translate, cut, padded, serve


def build(variant: str, job: Job) -> Translate:
    model = peer.build(job.of_training()).model.eval()
    with torch.no_grad():
        for name, target in model.state_dict().items():
            if name.endswith(".pe"):
                continue
            if name.endswith("_layer.bias") and "pwff" not in name:
                target.zero_()
            else:
                target.copy_(job.tensor(ours(name)))
    search = import_module("joeynmt.search").search

    def translate(numbers: list[int], beam: int) -> list[Ids]:
        src = padded([job.sources[i] for i in numbers])
        batch = SimpleNamespace(
            src=src,
            src_length=(src != PAD).sum(1),
            src_mask=(src != PAD).unsqueeze(1),
            has_trg=False,
            trg_prompt_mask=None,
        )
        limit = src.size(1) + job.max_extra
        outputs, _, _ = search(model, batch, limit, beam, job.alpha)
        return [cut(row) for row in outputs.tolist()]

    return translate


def ours(name: str) -> str:
    """Return our name of one of its weights."""
    if "embed" in name or name == "decoder.output_layer.weight":
        return "source_embedding.weight"
    encoder = name.startswith("encoder")
    parts = {
        "src_src_att": "self_attention",
        "trg_trg_att": "self_attention",
        "src_trg_att": "cross_attention",
        "feed_forward.layer_norm": "feed_forward_norm",
        "feed_forward.pwff_layer.0": "feed_forward.W_1",
        "feed_forward.pwff_layer.3": "feed_forward.W_2",
        "x_layer_norm": "self_attention_norm",
        "dec_layer_norm": "cross_attention_norm",
        ".layer_norm": ".self_attention_norm" if encoder else ".cross_attention_norm",
        "q_layer": "W_Q", "k_layer": "W_K", "v_layer": "W_V", "output_layer": "W_O",
    }  # fmt: skip
    for theirs, own in parts.items():
        name = name.replace(theirs, own)
    return name


if __name__ == "__main__":
    serve(build, "joeynmt")
