"""Hugging Face's Marian with our weights, by its `generate`: as shipped, or in bfloat16."""

from typing import Any

import torch
from peers import marian as peer

from translators.protocol import PAD, Ids, Job, Translate, cut, padded, serve


def build(variant: str, job: Job) -> Translate:
    model: Any = peer.build(job.of_training()).model.eval()
    state = model.state_dict()
    with torch.no_grad():
        for name, target in state.items():
            if name.endswith("embed_positions.weight"):
                target.copy_(sinusoids(*target.shape))
            elif name == "final_logits_bias" or name.endswith("_proj.bias"):
                target.zero_()
            else:
                target.copy_(job.tensor(ours(name)))
    if variant == "bfloat16":
        model = model.bfloat16()

    @torch.inference_mode()
    def translate(numbers: list[int], beam: int) -> list[Ids]:
        src = padded([job.sources[i] for i in numbers])
        outputs = model.generate(
            input_ids=src,
            attention_mask=(src != PAD).long(),
            num_beams=beam,
            length_penalty=job.alpha,
            do_sample=False,
            max_new_tokens=src.size(1) + job.max_extra,
        )
        return [cut(row) for row in outputs[:, 1:].tolist()]

    return translate


def ours(name: str) -> str:
    """Return our name of one of its weights."""
    if "embed_tokens" in name or name in ("model.shared.weight", "lm_head.weight"):
        return "source_embedding.weight"
    parts = {
        "model.": "",
        "self_attn_layer_norm": "self_attention_norm",
        "encoder_attn_layer_norm": "cross_attention_norm",
        "final_layer_norm": "feed_forward_norm",
        "self_attn": "self_attention",
        "encoder_attn": "cross_attention",
        "q_proj": "W_Q", "k_proj": "W_K", "v_proj": "W_V", "out_proj": "W_O",
        "fc1": "feed_forward.W_1", "fc2": "feed_forward.W_2",
    }  # fmt: skip
    for theirs, own in parts.items():
        name = name.replace(theirs, own)
    return name


def sinusoids(length: int, d_model: int) -> torch.Tensor:
    """Return the paper's table (§3.5): theirs has sines and cosines in halves."""
    pos = torch.arange(length, dtype=torch.float64)[:, None]
    angle = pos / 10000 ** (torch.arange(0, d_model, 2, dtype=torch.float64) / d_model)
    return torch.stack([angle.sin(), angle.cos()], dim=2).flatten(1)


if __name__ == "__main__":
    serve(build, "transformers")
