"""JoeyNMT: its model with its own loss (label smoothing by KL divergence)."""

from importlib import import_module
from types import SimpleNamespace
from typing import Any

from torch import Tensor

from peers.protocol import BOS, EOS, PAD, UNK, Batch, Job, System, serve


def build(job: Job) -> System:
    pieces = [f"piece{i}" for i in range(4, job.vocabulary)]
    special = {"pad": PAD, "unk": UNK, "bos": BOS, "eos": EOS}
    vocabulary_type = import_module("joeynmt.vocabulary").Vocabulary

    class Vocabulary(vocabulary_type):  # type: ignore[misc, valid-type]
        """Its own puts UNK first, where our ids have PAD."""

        def add_tokens(self, tokens: list[str]) -> None:
            self._itos = ["<pad>", "<unk>", "<s>", "</s>", *pieces]
            self._stoi = {token: i for i, token in enumerate(self._itos)}

    ids = {f"{name}_id": i for name, i in special.items()}
    words = {"pad_token": "<pad>", "unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
    vocabulary = Vocabulary(
        pieces, SimpleNamespace(**ids, **words, lang_tags=[], sep_token=None, sep_id=None)
    )
    stack: dict[str, Any] = {
        "type": "transformer",
        "num_layers": job.N,
        "num_heads": job.h,
        "embeddings": {"embedding_dim": job.d_model, "scale": True, "dropout": job.dropout},
        "hidden_size": job.d_model,
        "ff_size": job.d_ff,
        "dropout": job.dropout,
        "layer_norm": "post",
    }
    config = {
        "initializer": "xavier_uniform",
        "embed_initializer": "xavier_uniform",
        "bias_initializer": "zeros",
        "tied_embeddings": True,
        "tied_softmax": True,
        "encoder": stack,
        "decoder": stack,
    }
    model = import_module("joeynmt.model").build_model(config, vocabulary, vocabulary)
    model.loss_function = ("crossentropy", job.eps_ls)

    def inputs(batch: Batch) -> dict[str, Tensor]:
        return {
            "src": batch.src,
            "src_length": batch.src_lengths,
            "src_mask": (batch.src != PAD).unsqueeze(1),
            "trg_input": batch.tgt_in,
            "trg_mask": (batch.tgt_out != PAD).unsqueeze(1),
        }

    def logits(batch: Batch) -> Tensor:
        found: Tensor = model._encode_decode(**inputs(batch))[0]
        return found

    def loss(batch: Batch) -> Tensor:
        found: Tensor = model(return_type="loss", trg=batch.tgt_out, **inputs(batch))[0]
        return found

    return System(job, model, logits, loss)


if __name__ == "__main__":
    serve(build, "joeynmt")
