"""The stacks against torch's own encoder and decoder layers, with copied weights."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.conftest import BuildModel
from transduce.model.transformer import (
    DecoderLayer,
    EncoderLayer,
    causal_mask,
    padding_mask,
)


def copy_attention(theirs: nn.MultiheadAttention, ours: Any) -> None:
    theirs.in_proj_weight.data = torch.cat([ours.W_Q.weight, ours.W_K.weight, ours.W_V.weight])
    theirs.in_proj_bias.data.zero_()
    theirs.out_proj.weight.data = ours.W_O.weight.data
    theirs.out_proj.bias.data.zero_()


def copy_rest(theirs: Any, ours: EncoderLayer | DecoderLayer, norms: list[Any]) -> None:
    for number, norm in enumerate(norms, start=1):
        getattr(theirs, f"norm{number}").load_state_dict(norm.state_dict())
    theirs.linear1.load_state_dict(ours.feed_forward.W_1.state_dict())
    theirs.linear2.load_state_dict(ours.feed_forward.W_2.state_dict())


def padded(lengths: list[int], width: int) -> Tensor:
    ids = torch.randint(4, 20, (len(lengths), width))
    for row, length in zip(ids, lengths, strict=True):
        row[length:] = 0
    return ids


@pytest.mark.parametrize("norm_place", ["post", "pre"])
def test_stacks_equal_torchs(build: BuildModel, norm_place: str) -> None:
    model = build(norm_place=norm_place, d_model=15, d_k=5, d_v=5, d_ff=22)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.4)
    sizes: Any = {"d_model": 15, "nhead": 3, "dim_feedforward": 22, "dropout": 0.0}
    options: Any = {"batch_first": True, "norm_first": norm_place == "pre", "dtype": torch.float64}
    src, tgt_in = padded([7, 4, 1], 9), padded([5, 6, 2], 6)
    src_mask = padding_mask(src)

    x = theirs = torch.randn(3, 9, 15, dtype=torch.float64)
    for ours in model.encoder.layers:
        assert isinstance(ours, EncoderLayer)
        layer: Any = nn.TransformerEncoderLayer(**sizes, **options)
        copy_attention(layer.self_attn, ours.self_attention)
        copy_rest(layer, ours, [ours.self_attention_norm, ours.feed_forward_norm])
        theirs = layer(theirs, src_key_padding_mask=src == 0)
    if norm_place == "pre":
        assert model.encoder.norm is not None
        theirs = model.encoder.norm(theirs)
    memory = model.encoder(x, src_mask)
    real = src != 0
    torch.testing.assert_close(memory[real], theirs[real], rtol=0, atol=1e-10)

    y = theirs = torch.randn(3, 6, 15, dtype=torch.float64)
    for ours in model.decoder.layers:
        assert isinstance(ours, DecoderLayer)
        layer = nn.TransformerDecoderLayer(**sizes, **options)
        copy_attention(layer.self_attn, ours.self_attention)
        copy_attention(layer.multihead_attn, ours.cross_attention)
        norms = [ours.self_attention_norm, ours.cross_attention_norm, ours.feed_forward_norm]
        copy_rest(layer, ours, norms)
        theirs = layer(theirs, memory, tgt_mask=~causal_mask(6), memory_key_padding_mask=src == 0)
    if norm_place == "pre":
        assert model.decoder.norm is not None
        theirs = model.decoder.norm(theirs)
    decoded = model.decoder(y, memory, tgt_in != 0, src_mask)
    real = tgt_in != 0
    torch.testing.assert_close(decoded[real], theirs[real], rtol=0, atol=1e-10)
