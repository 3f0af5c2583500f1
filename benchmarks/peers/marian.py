"""Hugging Face's Marian: as shipped (float32, sdpa), or tuned by hand (bfloat16, eager)."""

from contextlib import nullcontext
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from peers.protocol import BOS, EOS, PAD, Batch, Job, System, serve


def build(job: Job) -> System:
    transformers = import_module("transformers")
    tuned = job.variant == "tuned"
    settings: dict[str, Any] = {
        "vocab_size": job.vocabulary,
        "d_model": job.d_model,
        "encoder_layers": job.N,
        "decoder_layers": job.N,
        "encoder_attention_heads": job.h,
        "decoder_attention_heads": job.h,
        "encoder_ffn_dim": job.d_ff,
        "decoder_ffn_dim": job.d_ff,
        "activation_function": "relu",
        "dropout": job.dropout,
        "scale_embedding": True,
        "pad_token_id": PAD,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "decoder_start_token_id": BOS,
        "forced_eos_token_id": None,
        "max_position_embeddings": 512,
        "tie_word_embeddings": True,
    }
    if tuned:
        settings["attn_implementation"] = "eager"
    model = transformers.MarianMTModel(transformers.MarianConfig(**settings))

    def logits(batch: Batch) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16) if tuned else nullcontext():
            found: Tensor = model(
                input_ids=batch.src,
                attention_mask=(batch.src != PAD).long(),
                decoder_input_ids=batch.tgt_in,
                use_cache=False,
            ).logits
        return found

    return System(job, model, logits)


if __name__ == "__main__":
    serve(build, "transformers")
