"""The model of the package `annalog` (molecules to similar molecules) as a model folder of ours.

A post-norm Transformer that others trained, with biases, learned positions and no ties: what our
switches say must be what its authors' code computes. Nothing of the package is run here: its
checkpoint is read as tensors, its vocabulary by a reader that builds lists and dictionaries alone.
"""

import io
import os
import pickle
import re
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any, NoReturn

import torch
from sentencepiece.sentencepiece_model_pb2 import ModelProto
from torch import Tensor

from transduce.config import Config, parse
from transduce.data.tokenizer import RESERVED, SPACE, SentencePieceTokenizer
from transduce.model_folder import save_model

VERSION = "1.0.6"
CHECKPOINT = "ckpt_and_vocab/Lev_extended.pt"
VOCABULARY = "ckpt_and_vocab/stereo_experiment_vocab_ttf.pkl"
TOKEN = re.compile(r"\[[^\]]*\]|%\d{2}|Br|Cl|.")
"""A token of a molecule: an atom in brackets, a ring's two digits, two letters, a character."""
HEADS = 8
PARTS = {
    "tok_embedding": "embedding", "pos_embedding": "positions",
    "self_attention": "self_attention", "encoder_attention": "cross_attention",
    "self_attn_layer_norm": "self_attention_norm", "enc_attn_layer_norm": "cross_attention_norm",
    "ff_layer_norm": "feed_forward_norm", "positionwise_feedforward": "feed_forward",
    "fc_q": "W_Q", "fc_k": "W_K", "fc_v": "W_V", "fc_o": "W_O", "fc_1": "W_1", "fc_2": "W_2",
}  # fmt: skip


def find() -> Path | None:
    """Return the package's folder: where TRANSDUCE_ANNALOG says, or where it is installed."""
    if folder := os.environ.get("TRANSDUCE_ANNALOG"):
        return Path(folder)
    try:
        found = distribution("annalog")
    except PackageNotFoundError:
        return None
    return Path(str(found.locate_file("annalog"))) if found.version == VERSION else None


class PlainUnpickler(pickle.Unpickler):
    """Builds numbers, texts, lists and dictionaries; any name of anything is refused."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"{module}.{name} is refused")

    def persistent_load(self, pid: Any) -> NoReturn:
        raise pickle.UnpicklingError(f"{pid} is refused")


def read_tokens(content: bytes) -> list[str]:
    """Return the vocabulary, in the order of ids."""
    tokens = PlainUnpickler(io.BytesIO(content)).load()["itos"]
    assert tokens[:4] == ["<unk>", "<pad>", "<sos>", "<eos>"]
    return [str(token) for token in tokens]


def words(molecule: str) -> str:
    """Return a molecule as text of our tokenizers: its tokens, with spaces between them.

    >>> words("ClC[C@H]%10")
    'Cl C [C@H] %10'
    """
    return " ".join(TOKEN.findall(molecule))


def tokenizer(tokens: Sequence[str]) -> SentencePieceTokenizer:
    """Return a vocabulary of words."""
    file = ModelProto()
    kinds = ModelProto.SentencePiece
    reserved = (kinds.CONTROL, kinds.UNKNOWN, kinds.CONTROL, kinds.CONTROL)
    for piece, kind in zip(RESERVED, reserved, strict=True):
        file.pieces.add(piece=piece, score=0.0, type=kind)
    for token in tokens:
        file.pieces.add(piece=SPACE + token, score=0.0, type=kinds.NORMAL)
    trainer, rules = file.trainer_spec, file.normalizer_spec
    trainer.model_type = trainer.WORD
    trainer.pad_id, trainer.unk_id, trainer.bos_id, trainer.eos_id = range(4)
    trainer.vocab_size = len(file.pieces)
    rules.name, rules.add_dummy_prefix, rules.remove_extra_whitespaces = "identity", False, False
    return SentencePieceTokenizer(file.SerializeToString(), "none")


def our_name(theirs: str) -> str:
    """Return our name of a parameter.

    >>> our_name("encoder.layers.2.positionwise_feedforward.fc_1.bias")
    'encoder.layers.2.feed_forward.W_1.bias'
    >>> our_name("decoder.pos_embedding.weight")
    'target_positions.weight'
    """
    if theirs.startswith("decoder.fc_out."):
        return theirs.replace("decoder.fc_out", "output")
    stack, first, *rest = [PARTS.get(part, part) for part in theirs.split(".")]
    if first != "layers":
        return ".".join([f"{'source' if stack == 'encoder' else 'target'}_{first}", *rest])
    return ".".join([stack, first, *rest])


def import_annalog(package: Path, out: Path) -> Config:
    """Write the model folder.

    There, a source begins with <sos>: here, with the piece of that name. So it gets a second place
    among the source's pieces, besides the one that decoders are fed first.
    """
    tokens = read_tokens((package / VOCABULARY).read_bytes())
    found = torch.load(package / CHECKPOINT, map_location="cpu", weights_only=True)
    theirs: dict[str, Tensor] = {our_name(name): tensor for name, tensor in found.items()}
    unk, pad, sos, eos, *others = range(len(tokens))
    rows = {
        "source_embedding": [pad, unk, sos, eos, sos, *others],
        "target_embedding": [pad, unk, sos, eos, *others],
        "output": [pad, unk, sos, eos, *others],
    }
    tensors = {
        name: tensor[rows[name.split(".")[0]]] if name.split(".")[0] in rows else tensor
        for name, tensor in theirs.items()
    }
    max_positions, d_model = theirs["source_positions.weight"].shape
    layers = {int(name.split(".")[2]) for name in theirs if name.startswith("encoder.layers.")}
    words = [tokens[id_] for id_ in others]
    pair = tokenizer(["<sos>", *words]), tokenizer(words)
    config = parse(
        {
            "data": {"normalization": "none"},
            "tokenizer": {"kind": "word", "joint": False, "byte_fallback": False},
            "model": {
                "source_vocabulary": len(pair[0]), "target_vocabulary": len(pair[1]),
                "joint_vocabulary": False, "tie_embeddings": False, "N": len(layers),
                "d_model": d_model, "d_ff": len(theirs["encoder.layers.0.feed_forward.W_1.bias"]),
                "h": HEADS, "attention_biases": True, "output_bias": True,
                "positions": "learned", "max_positions": max_positions,
            },
            "decoding": {"beam_size": 1, "max_extra": max_positions},
        },
        "annalog",
    )  # fmt: skip
    save_model(out, config, tensors, pair, f"# annalog {VERSION}, imported\n")
    return config
