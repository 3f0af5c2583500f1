"""Weights in the form of Marian's Hugging Face folders: their names and the order of channels.

Marian's sinusoids stand in halves (all sines, then all cosines), the paper's and ours alternate.
No switch of the model is needed for that: nothing in a Transformer but the positions knows one
channel of the residual stream from another, LayerNorm included. So the d_model channels of
everything that reads or writes the stream change their order, and the model is one of ours.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import torch
from jaxtyping import Int
from torch import Tensor

SUBLAYERS: Final = {
    "self_attention": "self_attn",
    "cross_attention": "encoder_attn",
    "self_attention_norm": "self_attn_layer_norm",
    "cross_attention_norm": "encoder_attn_layer_norm",
    "feed_forward_norm": "final_layer_norm",
}
MATRICES: Final = {
    "W_Q": "q_proj", "W_K": "k_proj", "W_V": "v_proj", "W_O": "out_proj", "W_1": "fc1", "W_2": "fc2",
}  # fmt: skip
"""Our names of the parts of a layer, and Marian's."""
EMBEDDINGS: Final = {
    "source_embedding.weight": "model.encoder.embed_tokens.weight",
    "target_embedding.weight": "model.decoder.embed_tokens.weight",
    "output.weight": "lm_head.weight",
}
SHARED: Final = "model.shared.weight"
"""Marian's name of a matrix that all three are."""
BIAS: Final = "final_logits_bias"
"""Marian's name of our output.bias; a row of its own there."""
POSITIONS: Final = ("model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight")
"""Marian's tables of sinusoids, which may stand in its files."""
NEVER: Final = -100.0
"""Added to the logit of a class that must take no part of the softmax: e^-100 of its share.

Not −∞: label smoothing asks for the logarithm of every class.
"""


def their_name(name: str) -> str:
    """Return Marian's name of a parameter of ours that belongs to a layer.

    >>> their_name("decoder.layers.3.cross_attention.W_O.bias")
    'model.decoder.layers.3.encoder_attn.out_proj.bias'
    >>> their_name("encoder.layers.0.feed_forward.W_1.weight")
    'model.encoder.layers.0.fc1.weight'
    """
    stack, layers, number, sublayer, *rest = name.split(".")
    theirs = [MATRICES.get(part, part) for part in rest]
    if sublayer != "feed_forward":
        theirs.insert(0, SUBLAYERS[sublayer])
    return ".".join(["model", stack, layers, number, *theirs])


def channel_axis(name: str) -> int | None:
    """Return the axis of a parameter along which the channels of the residual stream lie.

    >>> [channel_axis(f"encoder.layers.0.self_attention.{n}") for n in ("W_Q.weight", "W_O.weight")]
    [1, 0]
    """
    part, kind = name.split(".")[-2:]
    if part in ("W_O", "W_2") or part.endswith("_norm"):
        return 0
    return 1 if kind == "weight" else None


def halves(d_model: int) -> Int[Tensor, " d_model"]:
    """Return for each of our channels the one it is in Marian: 0, d/2, 1, d/2 + 1, ..."""
    sines = (d_model + 1) // 2
    return torch.tensor([i // 2 + sines * (i % 2) for i in range(d_model)])


def interleaved(name: str, theirs: Tensor) -> Tensor:
    """Return a parameter of Marian's, in the order of our channels. `name` is ours."""
    axis = channel_axis(name)
    return theirs if axis is None else theirs.index_select(axis, halves(theirs.size(axis)))


def in_halves(name: str, ours: Tensor) -> Tensor:
    """Return a parameter of ours, in the order of Marian's channels: undoes `interleaved`."""
    axis = channel_axis(name)
    return ours if axis is None else ours.index_select(axis, halves(ours.size(axis)).argsort())


def ours(
    names: Sequence[str], theirs: Mapping[str, Tensor], rows: Mapping[str, Sequence[int]]
) -> dict[str, Tensor]:
    """Return parameters with our names, channels and ids.

    Args:
        names: which; those of embeddings and output as EMBEDDINGS names them.
        theirs: all of Marian's parameters.
        rows: for an embedding or the output, for each of our ids its row there.
    """
    result = {}
    for name in names:
        if name == "output.bias":
            tensor = theirs[BIAS].reshape(-1)
        else:
            tensor = theirs[EMBEDDINGS.get(name) or their_name(name)]
        if (side := name.split(".")[0]) in rows:
            tensor = tensor[torch.tensor(rows[side])]
        result[name] = interleaved(name, tensor).to(torch.float32).contiguous()
    return result
