"""JoeyNMT with our weights, by its own search (which keeps no keys and values)."""

from importlib import import_module
from types import SimpleNamespace
from typing import Any

import torch

from translators.protocol import BOS, EOS, PAD, UNK, Ids, Job, Translate, cut, padded, serve


def build(variant: str, job: Job) -> Translate:
    pieces = [f"piece{i}" for i in range(4, job.vocabulary)]
    vocabulary_type = import_module("joeynmt.vocabulary").Vocabulary

    class Vocabulary(vocabulary_type):  # type: ignore[misc, valid-type]
        """Its own puts UNK first, where our ids have PAD."""

        def add_tokens(self, tokens: list[str]) -> None:
            self._itos = ["<pad>", "<unk>", "<s>", "</s>", *pieces]
            self._stoi = {token: i for i, token in enumerate(self._itos)}

    special = {"pad_id": PAD, "unk_id": UNK, "bos_id": BOS, "eos_id": EOS}
    words = {"pad_token": "<pad>", "unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
    vocabulary = Vocabulary(
        pieces, SimpleNamespace(**special, **words, lang_tags=[], sep_token=None, sep_id=None)
    )
    stack: dict[str, Any] = {
        "type": "transformer",
        "num_layers": job.N,
        "num_heads": job.h,
        "embeddings": {"embedding_dim": job.d_model, "scale": True, "dropout": 0.0},
        "hidden_size": job.d_model,
        "ff_size": job.d_ff,
        "dropout": 0.0,
        "layer_norm": "post",
    }
    config = {"tied_embeddings": True, "tied_softmax": True, "encoder": stack, "decoder": stack}
    model = import_module("joeynmt.model").build_model(config, vocabulary, vocabulary).eval()
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
