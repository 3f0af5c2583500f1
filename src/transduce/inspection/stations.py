"""One head, station by station: every number from what enters the layer to what leaves it.

Rows are tokens, as in the paper: softmax(Q Kᵀ / √d_k) V. Names are the same here, in the JSON and
on the page: `s` are the entries of A (scaled scores), `alpha` those of A′ (weights), `b` the
outputs, rows of O. The model is only listened to; what it does not say itself (scores, mask, means
and variances) is worked out from what it says.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from transduce.config import PAD
from transduce.inspection.attention import Kind, Passed, module_name, recording
from transduce.model import MultiHeadAttention, Transformer

VISIBLE, FUTURE, PADDING, WINDOW = range(4)
"""Why a key is hidden from a query: not at all, it is later, it is nothing, it is too far away."""


@dataclass(frozen=True)
class Projection:
    """y = x Wᵀ + bias, with W as files keep it: a row for each component of y."""

    W: Float[Tensor, "out features"]
    bias: Float[Tensor, " out"] | None


@dataclass(frozen=True)
class Normalised:
    """(x − mean) / √(variance + epsilon) · gain + bias, over the features of each position.

    Of `rms`, mean is None and variance the mean square; of `batch`, both are of the features, over
    the training's positions.
    """

    kind: Literal["layer", "rms", "batch"]
    mean: Float[Tensor, "..."] | None
    variance: Float[Tensor, "..."]
    """With divisor n, not n − 1."""
    epsilon: float
    gain: Float[Tensor, " d_model"]
    bias: Float[Tensor, " d_model"] | None
    input: Float[Tensor, "n d_model"]
    output: Float[Tensor, "n d_model"]


@dataclass(frozen=True)
class ShortFeedForward:
    """FFN(x) in short (eq. 2), with its Add & Norm."""

    d_ff: int
    zeros: Int[Tensor, " q"]
    """How many hidden units of each position are exactly 0 after the activation."""
    norm_before: Normalised | None
    result: Float[Tensor, "q d_model"]
    sum: Float[Tensor, "q d_model"]
    """What entered, plus the result."""
    norm_after: Normalised | None
    out: Float[Tensor, "q d_model"]
    """What leaves the layer."""


@dataclass(frozen=True)
class Embedded:
    """What the first layer is given: a row of the matrix times a scale, and the position."""

    scaled: Float[Tensor, "q d_model"]
    scale: float
    position: Float[Tensor, "q d_model"]


@dataclass(frozen=True)
class Head:
    """Eq. 1 for one head, from q, k and v on."""

    q: Float[Tensor, "q d_k"]
    k: Float[Tensor, "k d_k"]
    v: Float[Tensor, "k d_v"]
    raw: Float[Tensor, "q k"]
    """q · k."""
    s: Float[Tensor, "q k"]
    """raw / √d_k, before the mask: entries of A."""
    hidden: Int[Tensor, "q k"]
    """0 where a key may be seen, else why not: 1 future, 2 padding, 3 outside the window."""
    alpha: Float[Tensor, "q k"]
    """softmax of s over the keys that may be seen: entries of A′."""
    b: Float[Tensor, "q d_v"]
    """Σ alpha v: rows of O."""


@dataclass(frozen=True)
class Stations:
    """The way of one sentence through one attention sub-layer and the head chosen in it.

    Of numbers typed by hand, what they do not give is None.
    """

    kind: Kind
    layer: int
    """From 0."""
    head: int
    """From 0."""
    h: int
    embedded: Embedded | None
    """Of the first layer's self-attention."""
    x: Float[Tensor, "q d_model"] | None
    """What enters the sub-layer, and is added to what it makes."""
    norm_before: Normalised | None
    input: Float[Tensor, "q d_model"] | None
    """What queries are made of."""
    memory: Float[Tensor, "k d_memory"] | None
    """What keys and values are made of: the same, or what the encoder made of the source."""
    W_Q: Projection | None
    W_K: Projection | None
    W_V: Projection | None
    one: Head | None
    normaliser: str
    concat: Float[Tensor, "q joined"] | None
    """The b of all heads side by side."""
    W_O: Projection | None
    attended: Float[Tensor, "q attended"] | None
    sum: Float[Tensor, "q d_model"] | None
    """x + attended."""
    norm_after: Normalised | None
    out: Float[Tensor, "..."] | None
    """What leaves the sub-layer."""
    feed_forward: ShortFeedForward | None
    """Where it comes next; after the decoder's self-attention cross-attention does."""


@torch.inference_mode()
def stations(
    model: Transformer,
    src: Int[Tensor, "B S"],
    tgt_in: Int[Tensor, "B T"],
    kind: Kind,
    layer: int,
    head: int,
    row: int = 0,
) -> Stations:
    """Follow one sentence of a batch, padding included, through one head.

    Args:
        model: in evaluation mode.
        src: source ids, as the model reads them.
        tgt_in: likewise.
        kind: of attention.
        layer: of its stack, from 0; must have attention of that kind.
        head: from 0.
        row: of the batch.
    """
    stack = "encoder" if kind == "encoder_self" else "decoder"
    place = f"{stack}.layers.{layer}"
    first = ("source_" if kind == "encoder_self" else "target_", "embedding", "positions")
    ends = {first[0] + first[1], first[0] + first[2]}
    with recording(model, lambda name, _: name.startswith(place) or name in ends) as passed:
        model(src, tgt_in)
    return _Reading(model, passed, row).stations(kind, layer, head, src, tgt_in)


class _Reading:
    """What the modules said about one sentence of a batch."""

    def __init__(self, model: Transformer, passed: Mapping[str, Passed], row: int) -> None:
        self.model, self.passed, self.row = model, passed, row
        self.modules = dict(model.named_modules())

    def output(self, name: str) -> Tensor:
        return self.passed[name].output[self.row].cpu()

    def input(self, name: str) -> Tensor:
        return self.passed[name].input[self.row].cpu()

    def stations(self, kind: Kind, layer: int, head: int, src: Tensor, tgt_in: Tensor) -> Stations:
        name = module_name(kind, layer)
        module = self.modules[name]
        assert isinstance(module, MultiHeadAttention)
        place, norm = name.rpartition(".")[0], f"{name}_norm"
        pre = self.model.config.norm_place == "pre"
        x = self.input(norm) if pre else self.input(f"{name}.W_Q")
        attended = self.output(f"{name}.W_O")
        total = x + attended if pre else self.input(norm)
        hidden = self.hidden(kind, module, src, tgt_in)
        return Stations(
            kind=kind,
            layer=layer,
            head=head,
            h=self.model.config.h,
            embedded=self.embedded(kind) if layer == 0 and kind != "cross" else None,
            x=x,
            norm_before=self.normalised(norm) if pre else None,
            input=self.input(f"{name}.W_Q"),
            memory=self.input(f"{name}.W_K"),
            W_Q=self.projection(f"{name}.W_Q", head),
            W_K=self.projection(f"{name}.W_K", head),
            W_V=self.projection(f"{name}.W_V", head),
            one=self.head(name, head, hidden),
            normaliser=self.model.config.attention_normaliser,
            concat=self.input(f"{name}.W_O"),
            W_O=self.projection(f"{name}.W_O"),
            attended=attended,
            sum=total,
            norm_after=None if pre else self.normalised(norm),
            out=total if pre else self.output(norm),
            feed_forward=None if kind == "decoder_self" else self.feed_forward(place, pre),
        )

    def embedded(self, kind: Kind) -> Embedded:
        side = "source" if kind == "encoder_self" else "target"
        scaled = self.output(f"{side}_embedding")
        position = self.output(f"{side}_positions") - self.input(f"{side}_positions")
        module = self.modules[f"{side}_embedding"]
        return Embedded(scaled, float(module.scale), position)

    def projection(self, name: str, head: int | None = None) -> Projection:
        """Return a projection, or what one head has of it."""
        W, bias = matrix_of(self.modules[name], self.passed[name].input)
        if head is None:
            return Projection(W, bias)
        width = len(W) // self.model.config.h
        own = slice(head * width, (head + 1) * width)
        return Projection(W[own], None if bias is None else bias[own])

    def head(self, name: str, head: int, hidden: Tensor) -> Head:
        def own(projected: str) -> Tensor:
            return self.output(f"{name}.{projected}").chunk(self.model.config.h, dim=-1)[head]

        q, k, v = own("W_Q"), own("W_K"), own("W_V")
        alpha = self.output(f"{name}.weights")[head]
        b = self.input(f"{name}.W_O").chunk(self.model.config.h, dim=-1)[head]
        raw = (q.double() @ k.double().T).to(q.dtype)
        return Head(q, k, v, raw, raw / math.sqrt(q.size(-1)), hidden, alpha, b)

    def hidden(self, kind: Kind, module: MultiHeadAttention, src: Tensor, tgt_in: Tensor) -> Tensor:
        """Say which keys each query may see, and why not the others."""
        queries = (src if kind == "encoder_self" else tgt_in)[self.row]
        keys = (tgt_in if kind == "decoder_self" else src)[self.row]
        i, j = torch.arange(len(queries))[:, None], torch.arange(len(keys))[None]
        hidden = torch.full((len(queries), len(keys)), VISIBLE)
        window = getattr(module, "window", None)
        if window is not None and kind != "cross":
            hidden[(i - j).abs() > window] = WINDOW
        if kind == "decoder_self":  # padding stands at the end: it is the future of what is real
            hidden[(j > i).expand_as(hidden)] = FUTURE
        else:
            hidden[:, keys.cpu() == PAD] = PADDING
        return hidden

    def normalised(self, name: str) -> Normalised:
        """Work out what a norm does to each position."""
        module, config, x = self.modules[name], self.model.config, self.input(name)

        def own(parameter: str) -> Tensor | None:
            found = getattr(module, parameter, None)
            return None if found is None else found.detach().cpu()

        mean: Tensor | None = None
        match config.norm_kind:
            case "layer":
                mean, variance = x.mean(-1), x.var(-1, correction=0)
            case "rms":
                variance = x.square().mean(-1)
            case "batch":
                mean, variance = own("running_mean"), _there(own("running_variance"))
        gain, bias, output = _there(own("weight")), own("bias"), self.output(name)
        return Normalised(
            config.norm_kind, mean, variance, config.norm_epsilon, gain, bias, x, output
        )

    def feed_forward(self, place: str, pre: bool) -> ShortFeedForward:
        name = f"{place}.feed_forward"
        norm, result = f"{name}_norm", self.output(name)
        active = self.input(f"{name}.W_2")
        total = self.input(norm) + result if pre else self.input(norm)
        return ShortFeedForward(
            d_ff=active.size(-1),
            zeros=(active == 0).sum(-1),
            norm_before=self.normalised(norm) if pre else None,
            result=result,
            sum=total,
            norm_after=None if pre else self.normalised(norm),
            out=total if pre else self.output(norm),
        )


def _there(x: Tensor | None) -> Tensor:
    assert x is not None
    return x


def matrix_of(
    module: nn.Module, like: Float[Tensor, "... features"]
) -> tuple[Float[Tensor, "out features"], Float[Tensor, " out"] | None]:
    """Return W and bias of a linear map by what it makes of 0 and of the unit vectors.

    So it is the map that this engine computes, however it keeps its weights.

    Args:
        module: the map.
        like: something of the type that it takes.
    """
    features = like.size(-1)
    images = module(torch.eye(features, dtype=like.dtype, device=like.device)).cpu()
    if getattr(module, "bias", None) is None:
        return images.T.contiguous(), None
    bias = module(like.new_zeros(1, features)).cpu()[0]
    return (images - bias).T.contiguous(), bias
