"""The Transformer of "Attention Is All You Need" (arXiv:1706.03762), section 3, in its order.

Shapes, in every signature of this project:

    B sentences · S source positions · T target positions · q, k query and key positions
    h heads · d_model d_k d_v d_ff as in the paper · vocab classes · beam hypotheses of a sentence

In a boolean mask True means: may attend. The model knows ids and nothing else: neither text nor
loss, beams or devices.
"""

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from transduce.config import PAD, LayerType, ModelConfig
from transduce.model import variants
from transduce.model.layer_types import Convolution, Mixer, Past, Recurrence, Windows
from transduce.model.variants import BatchNorm, RMSNorm

Sublayer = Callable[[Tensor], Tensor]


# Masks (§3.2.3) ---------------------------------------------------------------------------------


def padding_mask(ids: Int[Tensor, "B k"]) -> Bool[Tensor, "B 1 1 k"]:
    """Every query may look at every key that is not padding."""
    return (ids != PAD)[:, None, None, :]


def causal_mask(length: int, device: torch.device | None = None) -> Bool[Tensor, "q k"]:
    """Position i may look at positions up to i, itself included: the future is hidden."""
    return torch.ones(length, length, dtype=torch.bool, device=device).tril()


# Attention (§3.2) -------------------------------------------------------------------------------


def attention_weights(
    Q: Float[Tensor, "B h q d_k"],
    K: Float[Tensor, "B h k d_k"],
    mask: Bool[Tensor, "#B #h #q k"] | None = None,
) -> Float[Tensor, "B h q k"]:
    """softmax(Q Kᵀ / √d_k): how much each query takes from each key (eq. 1).

    The softmax is computed in float32 or wider. A query that may look at no key at all gets
    weights of zero, never NaN; therefore hidden scores are the lowest finite number, not −∞.
    """
    return masked_softmax(scores(Q, K), mask)


def scores(
    Q: Float[Tensor, "B h q d_k"], K: Float[Tensor, "B h k d_k"]
) -> Float[Tensor, "B h q k"]:
    """Q Kᵀ / √d_k: how well each query and each key fit."""
    return Q @ K.transpose(-2, -1) / math.sqrt(Q.size(-1))


def masked_softmax(
    scores: Float[Tensor, "B h q k"], mask: Bool[Tensor, "#B #h #q k"] | None
) -> Float[Tensor, "B h q k"]:
    """exp(s) / Σ exp(s) along the keys that may be seen, 0 for the others; float32 or wider."""
    return _MaskedSoftmax.apply(scores, mask)  # type: ignore[no-untyped-call]


class _MaskedSoftmax(torch.autograd.Function):
    """Softmax P with its gradient P ⊙ (dP − Σ P dP), in which what is hidden is zero by itself."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, mask: Tensor | None) -> Tensor:
        wide = scores.to(torch.promote_types(scores.dtype, torch.float32), copy=True)
        if mask is not None:
            wide.masked_fill_(~mask, torch.finfo(wide.dtype).min)
        if wide.size(-1) >= 16 or wide.device.type != "cpu":
            P = wide.softmax(dim=-1)
        else:  # the library's kernel is not vectorised for rows as short as these
            P = wide.sub_(wide.amax(dim=-1, keepdim=True)).exp_()
            P.div_(P.sum(dim=-1, keepdim=True))
        if mask is not None:
            P.masked_fill_(~mask, 0.0)
        ctx.save_for_backward(P)
        ctx.narrow = scores.dtype
        return P

    @staticmethod
    def backward(ctx: Any, d_P: Tensor) -> tuple[Tensor, None]:
        (P,) = ctx.saved_tensors
        d_scores = P * d_P
        d_scores.addcmul_(P, d_scores.sum(dim=-1, keepdim=True), value=-1.0)
        return d_scores.to(ctx.narrow), None


def attention(
    Q: Float[Tensor, "B h q d_k"],
    K: Float[Tensor, "B h k d_k"],
    V: Float[Tensor, "B h k d_v"],
    mask: Bool[Tensor, "#B #h #q k"] | None = None,
) -> Float[Tensor, "B h q d_v"]:
    """Scaled dot-product attention: softmax(Q Kᵀ / √d_k) V (§3.2.1, eq. 1)."""
    return attention_weights(Q, K, mask).to(V.dtype) @ V


NORMALISERS = {"softmax": masked_softmax} | variants.NORMALISERS
"""What may make weights of scores, see `ModelConfig.attention_normaliser`."""


class MultiHeadAttention(nn.Module):
    """Concat(head_1, ..., head_h) W_O with head_i = attention(Q W_Q_i, K W_K_i, V W_V_i) (§3.2.2).

    The heads lie in order along the rows of `W_Q`, `W_K` and `W_V`. The weights of all heads pass
    the module `weights`, which changes nothing: a hook registered there sees them,
    [B, h, q, k], and has them computed explicitly.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.h = config.h
        biases = config.attention_biases
        self.W_Q = nn.Linear(config.d_model, config.h * config.d_k, biases)
        self.W_K = nn.Linear(config.d_model, config.h * config.d_k, biases)
        self.W_V = nn.Linear(config.d_model, config.h * config.d_v, biases)
        self.W_O = nn.Linear(config.h * config.d_v, config.d_model, biases)
        self.normalise = NORMALISERS[config.attention_normaliser]
        self.weights = nn.Identity()
        self.dropout = Dropout(config.attention_dropout)

    def forward(
        self,
        x: Float[Tensor, "B q d_model"],
        memory: Float[Tensor, "B k d_model"],
        mask: Bool[Tensor, "#B #h #q k"] | None,
    ) -> Float[Tensor, "B q d_model"]:
        """Queries come from `x`, keys and values from `memory` (in self-attention the same)."""
        Q, K, V = self.W_Q(x), self.W_K(memory), self.W_V(memory)
        return self.attend(self.split(Q), self.split(K), self.split(V), mask)

    def attend(
        self,
        Q: Float[Tensor, "B h q d_k"],
        K: Float[Tensor, "B h k d_k"],
        V: Float[Tensor, "B h k d_v"],
        mask: Bool[Tensor, "#B #h #q k"] | None,
    ) -> Float[Tensor, "B q d_model"]:
        """Let every query attend to the given keys and values, and join the heads."""
        P_drop = self.dropout.P_drop if self.training else 0.0
        fused = self.normalise is masked_softmax and fused_pays(Q, P_drop)
        if self.weights._forward_hooks or not fused:
            weights = self.dropout(self.weights(self.normalise(scores(Q, K), mask)))
            heads = weights.to(V.dtype) @ V
        else:
            heads = fused_attention(Q, K, V, mask, P_drop)
        return self.W_O(heads.transpose(1, 2).flatten(2))  # B h q d_v -> B q h·d_v

    def split(self, x: Float[Tensor, "B k features"]) -> Float[Tensor, "B h k d"]:
        """Give each head its own slice of the features."""
        return x.unflatten(-1, (self.h, -1)).transpose(1, 2)

    if TYPE_CHECKING:
        __call__ = forward


class SelfAttention(MultiHeadAttention):
    """Every position looks at every other; with `causal`, at itself and those before it."""

    def __init__(self, config: ModelConfig, causal: bool) -> None:
        super().__init__(config)
        self.causal = causal

    def mix(
        self, x: Float[Tensor, "B n d_model"], real: Bool[Tensor, "B n"]
    ) -> Float[Tensor, "B n d_model"]:
        """See `Mixer.mix`. Padding stands at the end: `causal` hides it from what is real."""
        if self.causal:
            return self(x, x, causal_mask(x.size(1), x.device)[None, None])
        return self(x, x, real[:, None, None, :])

    def start(self, x: Float[Tensor, "rows n d_model"]) -> Past:
        """See `Mixer.start`: keys and values, none yet."""
        return SeenKeys(self._nothing(x))

    def step(
        self, x: Float[Tensor, "rows 1 d_model"], past: Past, pos: int
    ) -> tuple[Float[Tensor, "rows 1 d_model"], Past]:
        """See `Mixer.step`: one more key and value in buffers that double when they are full."""
        K, V = past.tensors
        if pos == K.size(2):
            grow = (0, 0, 0, max(16, pos))
            K, V = functional.pad(K, grow), functional.pad(V, grow)
        K[:, :, pos : pos + 1] = self.split(self.W_K(x))
        V[:, :, pos : pos + 1] = self.split(self.W_V(x))
        seen = slice(0, pos + 1)
        attended = self.attend(self.split(self.W_Q(x)), K[:, :, seen], V[:, :, seen], None)
        return attended, SeenKeys((K, V))

    def _nothing(self, x: Float[Tensor, "rows n d_model"]) -> tuple[Tensor, Tensor]:
        nothing = x[:, :0]
        return self.split(self.W_K(nothing)), self.split(self.W_V(nothing))


class SeenKeys(Past):
    """All keys and values so far, in buffers longer than what is filled: rows h capacity d."""

    def select(self, rows: Int[Tensor, " n"]) -> "SeenKeys":
        """See `Past.select`."""
        return SeenKeys(super().select(rows).tensors)

    def reorder(self, rows: Int[Tensor, " n"], shared: int, length: int) -> "SeenKeys":
        """See `Past.reorder`: where most is shared, only the rest is moved, in its place."""
        if 2 * shared <= length:
            return self.select(rows)
        for buffer in self.tensors if shared < length else ():
            buffer[:, :, shared:length] = buffer[:, :, shared:length].index_select(0, rows)
        return self


class RestrictedAttention(SelfAttention):
    """Table 1, row 4: a position looks no further than `window` positions.

    Where the weights are recorded, they are computed as a whole: B h n n, zero outside the window.
    """

    def __init__(self, config: ModelConfig, causal: bool) -> None:
        super().__init__(config, causal)
        self.window = config.window

    def mix(
        self, x: Float[Tensor, "B n d_model"], real: Bool[Tensor, "B n"]
    ) -> Float[Tensor, "B n d_model"]:
        """See `Mixer.mix`."""
        windows = Windows(x.size(1), self.window, self.causal)
        if self.weights._forward_hooks:
            return self(x, x, windows.dense(real))
        Q, K, V = (self.split(W(x)) for W in (self.W_Q, self.W_K, self.W_V))
        K, V, mask = windows.of_keys(K), windows.of_keys(V), windows.mask(real)
        return windows.joined(self.attend(windows.of_queries(Q), K, V, mask))

    def start(self, x: Float[Tensor, "rows n d_model"]) -> Past:
        """See `Mixer.start`."""
        return Past(self._nothing(x))

    def step(
        self, x: Float[Tensor, "rows 1 d_model"], past: Past, pos: int
    ) -> tuple[Float[Tensor, "rows 1 d_model"], Past]:
        """See `Mixer.step`: the last r keys and values are remembered."""
        K = torch.cat([past.tensors[0], self.split(self.W_K(x))], dim=2)
        V = torch.cat([past.tensors[1], self.split(self.W_V(x))], dim=2)
        attended = self.attend(self.split(self.W_Q(x)), K, V, None)
        return attended, Past((K[:, :, -self.window :], V[:, :, -self.window :]))


def mixer(config: ModelConfig, kind: LayerType, causal: bool, layer: int) -> Mixer:
    """Return what stands in the place of self-attention (Table 1).

    Args:
        config: of the model.
        kind: row of Table 1.
        causal: whether no position may look ahead, as in the decoder.
        layer: number of the layer in its stack, from 0.
    """
    match kind:
        case "self-attention":
            return SelfAttention(config, causal)
        case "restricted":
            return RestrictedAttention(config, causal)
        case "recurrent":
            return Recurrence(config, causal)
        case "convolutional":
            return Convolution(config, causal, layer)


def fused_attention(
    Q: Float[Tensor, "B h q d_k"],
    K: Float[Tensor, "B h k d_k"],
    V: Float[Tensor, "B h k d_v"],
    mask: Bool[Tensor, "#B #h #q k"] | None,
    P_drop: float = 0.0,
) -> Float[Tensor, "B h q d_v"]:
    """Eq. 1 by the library's fused kernel: the same numbers, without the weights in memory."""
    heads = functional.scaled_dot_product_attention(Q, K, V, mask, P_drop)
    if mask is None:
        return heads
    return heads.masked_fill(~mask.any(-1, keepdim=True), 0.0)  # queries without any key


def fused_pays(Q: Float[Tensor, "B h q d_k"], P_drop: float = 0.0) -> bool:
    """Say whether the fused kernel is the faster one here (measured: docs/results.md).

    On GPUs and in float32 it always is. In bfloat16 on CPUs its backward pass is so slow that
    explicit products win up to some 500 positions; with dropout it knows only the slow path there.
    """
    if Q.device.type == "cpu" and P_drop > 0.0:
        return False
    return Q.is_cuda or Q.dtype == torch.float32 or Q.size(2) >= 512


# Position-wise feed-forward networks (§3.3) -----------------------------------------------------


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "swish": functional.silu,
    "gelu": functional.gelu,
}


class FeedForward(nn.Module):
    """FFN(x) = max(0, x W_1 + b_1) W_2 + b_2 (eq. 2), at each position alike.

    Other activations may stand in the place of max(0, x).
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.W_1 = nn.Linear(config.d_model, config.d_ff)
        self.W_2 = nn.Linear(config.d_ff, config.d_model)
        self.activation = ACTIVATIONS[config.activation]
        self.dropout = Dropout(config.activation_dropout)

    def forward(self, x: Float[Tensor, "B q d_model"]) -> Float[Tensor, "B q d_model"]:
        """Transform every position by itself."""
        return self.W_2(self.dropout(self.activation(self.W_1(x))))

    if TYPE_CHECKING:
        __call__ = forward


# Embeddings (§3.4) and positions (§3.5) ---------------------------------------------------------


def sinusoids(length: int, d_model: int) -> Float[Tensor, "length d_model"]:
    """PE(pos, 2i) = sin(pos / 10000^(2i / d_model)), PE(pos, 2i+1) = cos(the same); float64."""
    pos = torch.arange(length, dtype=torch.float64)[:, None]
    two_i = torch.arange(0, d_model, 2, dtype=torch.float64)
    angle = pos / 10000 ** (two_i / d_model)
    PE = torch.empty(length, d_model, dtype=torch.float64)
    PE[:, 0::2] = angle.sin()
    PE[:, 1::2] = angle.cos()[:, : d_model // 2]
    return PE


class SinusoidalPositions(nn.Module):
    """Adds the sinusoids of §3.5; no position is too far, the table grows when it is needed."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.table = sinusoids(256, d_model)  # not a buffer: it is no part of the model's state

    def forward(
        self, x: Float[Tensor, "B q d_model"], start: int = 0
    ) -> Float[Tensor, "B q d_model"]:
        """Add the positions `start`, `start + 1`, ... to the embeddings `x`."""
        end = start + x.size(1)
        if end > len(self.table):
            self.table = sinusoids(max(end, 2 * len(self.table)), x.size(2)).to(self.table)
        if self.table.dtype != x.dtype or self.table.device != x.device:
            self.table = sinusoids(len(self.table), x.size(2)).to(x)
        return x + self.table[start:end]

    if TYPE_CHECKING:
        __call__ = forward


class LearnedPositions(nn.Module):
    """A trained vector per position (Table 3, row E); the table ends at `max_positions`."""

    def __init__(self, d_model: int, max_positions: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(max_positions, d_model))

    def forward(
        self, x: Float[Tensor, "B q d_model"], start: int = 0
    ) -> Float[Tensor, "B q d_model"]:
        """Add the positions `start`, `start + 1`, ... to the embeddings `x`.

        Raises:
            ValueError: if a position lies beyond the table.
        """
        end = start + x.size(1)
        if end > len(self.weight):
            raise ValueError(
                f"position {end} lies beyond the table of {len(self.weight)} learned positions "
                "(model.max_positions)"
            )
        return x + self.weight[start:end]

    if TYPE_CHECKING:
        __call__ = forward


class NoPositions(nn.Module):
    """Adds nothing: what is not told the order must find it out by itself, if it can."""

    def forward(
        self, x: Float[Tensor, "B q d_model"], start: int = 0
    ) -> Float[Tensor, "B q d_model"]:
        """Return the embeddings as they are."""
        return x

    if TYPE_CHECKING:
        __call__ = forward


def positions(config: ModelConfig) -> nn.Module:
    """Return what adds the positions to the embeddings of one side."""
    match config.positions:
        case "sinusoidal":
            return SinusoidalPositions(config.d_model)
        case "learned":
            return LearnedPositions(config.d_model, config.max_positions)
        case "none":
            return NoPositions()


class Embedding(nn.Module):
    """A row of the matrix for each id, times √d_model (§3.4)."""

    def __init__(self, vocabulary: int, config: ModelConfig) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocabulary, config.d_model))
        self.scale = math.sqrt(config.d_model) if config.scale_embeddings else 1.0

    def forward(self, ids: Int[Tensor, "B q"]) -> Float[Tensor, "B q d_model"]:
        """Look the ids up."""
        return functional.embedding(ids, self.weight) * self.scale

    if TYPE_CHECKING:
        __call__ = forward


# Residual connections (§3.1) and dropout (§5.4) -------------------------------------------------


class Draws(threading.local):
    """Where dropout on CPUs takes its random numbers from: each thread has its own source."""

    source: np.random.Generator | None = None


DRAWS = Draws()


@contextmanager
def dropout_from(*seed: int) -> Iterator[None]:
    """Have this thread's dropout masks depend on `seed` alone: the same again whenever asked."""
    before = DRAWS.source
    DRAWS.source = np.random.Generator(np.random.SFC64(seed))
    try:
        yield
    finally:
        DRAWS.source = before


class Dropout(nn.Module):
    """Sets each number to zero with probability P_drop and scales the others up to match (§5.4).

    The same as `nn.Dropout`, whose drawing of random numbers and handling of booleans is slow on
    CPUs. There P_drop is met to 1 in 32,768.
    """

    def __init__(self, P_drop: float) -> None:
        super().__init__()
        self.P_drop = P_drop

    def forward(self, x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """Drop in training, pass everything in evaluation."""
        if not self.training or self.P_drop == 0.0:
            return x
        if x.device.type != "cpu" or torch.compiler.is_compiling():
            return functional.dropout(x, self.P_drop)
        return _Dropped.apply(x, self.P_drop)  # type: ignore[no-untyped-call]

    if TYPE_CHECKING:
        __call__ = forward


class _Dropped(torch.autograd.Function):
    """Dropout by bits: a number is kept by AND with all ones, dropped by AND with zero."""

    @staticmethod
    def forward(ctx: Any, x: Float[Tensor, "..."], P_drop: float) -> Float[Tensor, "..."]:
        source = DRAWS.source or np.random.Generator(np.random.SFC64(int(torch.randint(2**62, ()))))
        draws = source.integers(2**64, size=(x.numel() + 3) // 4, dtype=np.uint64).view(np.int16)
        keep = torch.from_numpy(draws)[: x.numel()].view(x.shape)
        # Each 15-bit number is kept if it is at least P_drop · 2^15: the sign of a difference.
        keep.bitwise_and_(2**15 - 1).neg_().add_(round(P_drop * 2**15) - 1)
        keep.bitwise_right_shift_(15)
        keep = keep.to({2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()])
        ctx.save_for_backward(keep)
        ctx.scale = 1.0 / (1.0 - P_drop)
        return _Dropped.masked(x, keep, ctx.scale)

    @staticmethod
    def backward(ctx: Any, d_y: Float[Tensor, "..."]) -> tuple[Float[Tensor, "..."], None]:
        (keep,) = ctx.saved_tensors
        return _Dropped.masked(d_y, keep, ctx.scale), None

    @staticmethod
    def masked(x: Tensor, keep: Tensor, scale: float) -> Tensor:
        return (x.contiguous().view(keep.dtype) & keep).view(x.dtype).mul_(scale)


# Normalisation (§3.1) ---------------------------------------------------------------------------


class LayerNorm(nn.LayerNorm):
    """Normalise the features of one position to mean 0 and variance 1, then gain and bias.

    Neither other positions nor other sentences have any influence (Ba et al., 2016).
    """

    def forward(
        self, x: Float[Tensor, "B q d_model"], real: Bool[Tensor, "B q"] | None = None
    ) -> Float[Tensor, "B q d_model"]:
        """Normalise each position."""
        return super().forward(x)


Norm = LayerNorm | RMSNorm | BatchNorm
NORMS: dict[str, type[Norm]] = {"layer": LayerNorm, "batch": BatchNorm, "rms": RMSNorm}
"""See `ModelConfig.norm_kind`."""


def norm(config: ModelConfig) -> Norm:
    """Return a norm with gain 1 and, where it has one, bias 0."""
    return NORMS[config.norm_kind](config.d_model, eps=config.norm_epsilon)


class Layer(nn.Module):
    """What both kinds of layer share: Add & Norm around each sub-layer (§3.1)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.norm_place = config.norm_place
        self.dropout = Dropout(config.P_drop)

    def add_and_norm(
        self,
        x: Float[Tensor, "B q d_model"],
        sublayer: Sublayer,
        norm: Norm,
        real: Bool[Tensor, "B q"] | None = None,
    ) -> Float[Tensor, "B q d_model"]:
        """LayerNorm(x + Sublayer(x)), the paper's; with `pre`, x + Sublayer(LayerNorm(x))."""
        if self.norm_place == "pre":
            return x + self.dropout(sublayer(norm(x, real)))
        return norm(x + self.dropout(sublayer(x)), real)


# Encoder and decoder stacks (§3.1, figure 1) ----------------------------------------------------


class EncoderLayer(Layer):
    """Figure 1, left: self-attention, then the feed-forward network."""

    def __init__(self, config: ModelConfig, number: int) -> None:
        super().__init__(config)
        self.self_attention = mixer(config, config.encoder_layer_type, False, number)
        self.self_attention_norm = norm(config)
        self.feed_forward = FeedForward(config)
        self.feed_forward_norm = norm(config)

    def forward(
        self, x: Float[Tensor, "B S d_model"], real: Bool[Tensor, "B S"]
    ) -> Float[Tensor, "B S d_model"]:
        """Every source position looks at every other that is `real`, not padding."""
        x = self.add_and_norm(
            x, lambda x: self.self_attention.mix(x, real), self.self_attention_norm, real
        )
        return self.add_and_norm(x, self.feed_forward, self.feed_forward_norm, real)

    if TYPE_CHECKING:
        __call__ = forward


@dataclass(frozen=True)
class LayerState:
    """What one decoder layer remembers between steps.

    What its mixer remembers of the target tokens so far, a row for each hypothesis (there are
    B · beam); keys and values of the memory, one per sentence.
    """

    past: Past
    memory_K: Float[Tensor, "B h S d_k"]
    memory_V: Float[Tensor, "B h S d_v"]


class DecoderLayer(Layer):
    """Figure 1, right: masked self-attention, attention over the memory, feed-forward."""

    def __init__(self, config: ModelConfig, number: int) -> None:
        super().__init__(config)
        self.self_attention = mixer(config, config.decoder_layer_type, True, number)
        self.self_attention_norm = norm(config)
        self.cross_attention = MultiHeadAttention(config)
        self.cross_attention_norm = norm(config)
        self.feed_forward = FeedForward(config)
        self.feed_forward_norm = norm(config)

    def forward(
        self,
        x: Float[Tensor, "B T d_model"],
        memory: Float[Tensor, "B S d_model"],
        real: Bool[Tensor, "B T"],
        src_mask: Bool[Tensor, "B 1 1 S"],
    ) -> Float[Tensor, "B T d_model"]:
        """Every target position looks at itself, at those before it, and at the whole source."""
        x = self.add_and_norm(
            x, lambda x: self.self_attention.mix(x, real), self.self_attention_norm, real
        )
        x = self.add_and_norm(
            x, lambda x: self.cross_attention(x, memory, src_mask), self.cross_attention_norm, real
        )
        return self.add_and_norm(x, self.feed_forward, self.feed_forward_norm, real)

    def start(self, memory: Float[Tensor, "B S d_model"]) -> LayerState:
        """Return the state before the first target token."""
        mixer = self.cross_attention
        memory_K, memory_V = mixer.split(mixer.W_K(memory)), mixer.split(mixer.W_V(memory))
        past = self.self_attention.start(memory)
        return LayerState(past, memory_K.contiguous(), memory_V.contiguous())

    def step(
        self,
        x: Float[Tensor, "B beam d_model"],
        state: LayerState,
        pos: int,
        src_mask: Bool[Tensor, "B 1 1 S"],
    ) -> tuple[Float[Tensor, "B beam d_model"], LayerState]:
        """`forward` for the one new position `pos` of every hypothesis; return the new state."""
        past = state.past

        def self_attention(x: Tensor) -> Tensor:
            nonlocal past
            rows = x.flatten(0, 1)[:, None]  # B beam d_model -> rows 1 d_model
            mixed, past = self.self_attention.step(rows, past, pos)
            return mixed.view(x.shape)

        def cross_attention(x: Tensor) -> Tensor:
            # The hypotheses of a sentence are so many queries to the same keys and values.
            mixer = self.cross_attention
            Q = mixer.split(mixer.W_Q(x))
            return mixer.attend(Q, state.memory_K, state.memory_V, src_mask)

        x = self.add_and_norm(x, self_attention, self.self_attention_norm)
        x = self.add_and_norm(x, cross_attention, self.cross_attention_norm)
        x = self.add_and_norm(x, self.feed_forward, self.feed_forward_norm)
        return x, replace(state, past=past)

    if TYPE_CHECKING:
        __call__ = forward


class Encoder(nn.Module):
    """A stack of `N_encoder` layers; with pre-norm a last norm, without it none."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(EncoderLayer(config, i) for i in range(config.N_encoder))
        self.norm = norm(config) if config.norm_place == "pre" else None

    def forward(
        self, x: Float[Tensor, "B S d_model"], src_mask: Bool[Tensor, "B 1 1 S"]
    ) -> Float[Tensor, "B S d_model"]:
        """Return the memory."""
        real = src_mask[:, 0, 0]
        for layer in self.layers:
            x = layer(x, real)
        return x if self.norm is None else self.norm(x, real)

    if TYPE_CHECKING:
        __call__ = forward


class Decoder(nn.Module):
    """A stack of `N_decoder` layers; with pre-norm a last norm, without it none."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(DecoderLayer(config, i) for i in range(config.N_decoder))
        self.norm = norm(config) if config.norm_place == "pre" else None

    def forward(
        self,
        x: Float[Tensor, "B T d_model"],
        memory: Float[Tensor, "B S d_model"],
        real: Bool[Tensor, "B T"],
        src_mask: Bool[Tensor, "B 1 1 S"],
    ) -> Float[Tensor, "B T d_model"]:
        """Return what the output layer turns into logits."""
        for layer in self.layers:
            x = layer(x, memory, real, src_mask)
        return x if self.norm is None else self.norm(x, real)

    if TYPE_CHECKING:
        __call__ = forward


# The model --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DecoderState:
    """Everything `Transformer.step` remembers: per layer, and how many tokens it has seen."""

    layers: tuple[LayerState, ...]
    src_mask: Bool[Tensor, "B 1 1 S"]
    beam: int
    length: int

    def select(self, origin: Int[Tensor, "sentences beam"], shared: int = 0) -> "DecoderState":
        """Return the state whose hypothesis [b, i] continues the present one in row origin[b, i].

        The rows of a sentence b must come from one present sentence; sentences may be left out.
        The present state must not be used any more.

        Args:
            origin: rows.
            shared: how many first tokens the hypotheses of any one sentence have in common.
        """
        rows, sentences = origin.flatten(), origin[:, 0] // self.beam
        layers, src_mask, length = self.layers, self.src_mask, self.length
        all_stay = in_place(sentences, len(src_mask))
        if not in_place(rows, len(src_mask) * self.beam):
            same_shape = all_stay and origin.size(1) == self.beam

            def moved(past: Past) -> Past:
                return past.reorder(rows, shared, length) if same_shape else past.select(rows)

            layers = tuple(replace(layer, past=moved(layer.past)) for layer in layers)
        if not all_stay:
            layers = tuple(
                replace(
                    layer,
                    memory_K=layer.memory_K.index_select(0, sentences),
                    memory_V=layer.memory_V.index_select(0, sentences),
                )
                for layer in layers
            )
            src_mask = src_mask.index_select(0, sentences)
        return DecoderState(layers, src_mask, beam=origin.size(1), length=length)


def in_place(origin: Int[Tensor, " n"], count: int) -> bool:
    """Say whether each of `count` rows stays where it is."""
    return len(origin) == count and bool((origin == torch.arange(count).to(origin)).all())


class Transformer(nn.Module):
    """Figure 1: source ids and target ids in, logits for each next target token out."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.source_embedding = Embedding(config.source_vocabulary, config)
        self.target_embedding = Embedding(config.target_vocabulary, config)
        self.output = nn.Linear(config.d_model, config.target_vocabulary, config.output_bias)
        self.source_positions, self.target_positions = positions(config), positions(config)
        self.dropout = Dropout(config.P_drop)
        self.encoder = Encoder(config)
        self.decoder = Decoder(config)
        self.initialise()
        self.tie()

    def tie(self) -> None:
        """Share one matrix: target embedding and output, and the source's if joint (§3.4)."""
        if self.config.tie_embeddings:
            if self.config.joint_vocabulary:
                self.target_embedding.weight = self.source_embedding.weight
            self.output.weight = self.target_embedding.weight

    def initialise(self) -> None:
        """Initial values; the paper does not state them.

        Matrices: uniform by Glorot and Bengio. Embeddings: normal with variance 1 / d_model, so
        that √d_model times a row has variance 1, as a position vector has about one half.
        Biases 0, gains 1.
        """
        for name, parameter in self.named_parameters():
            if not parameter.requires_grad:
                continue  # running means
            if "embedding" in name or "positions" in name:
                nn.init.normal_(parameter, std=self.config.d_model**-0.5)
            elif parameter.dim() > 1:
                nn.init.xavier_uniform_(parameter)
            elif "bias" in name:
                nn.init.zeros_(parameter)

    def forward(
        self, src: Int[Tensor, "B S"], tgt_in: Int[Tensor, "B T"]
    ) -> Float[Tensor, "B T vocab"]:
        """Return logits: at position t, for the token that follows tgt_in[:, :t + 1].

        Args:
            src: source pieces and END, padded with PAD.
            tgt_in: BEGIN and the target pieces ("shifted right"), padded with PAD.
        """
        return self.output(self.states(src, tgt_in))

    def states(
        self, src: Int[Tensor, "B S"], tgt_in: Int[Tensor, "B T"]
    ) -> Float[Tensor, "B T d_model"]:
        """Return what `output` turns into logits."""
        src_mask = padding_mask(src)
        return self.decode(self.encode(src, src_mask), src_mask, tgt_in)

    def encode(
        self, src: Int[Tensor, "B S"], src_mask: Bool[Tensor, "B 1 1 S"]
    ) -> Float[Tensor, "B S d_model"]:
        """Return the memory: what the encoder makes of the source."""
        x = self.source_positions(self.source_embedding(src))
        return self.encoder(self.dropout(x), src_mask)

    def decode(
        self,
        memory: Float[Tensor, "B S d_model"],
        src_mask: Bool[Tensor, "B 1 1 S"],
        tgt_in: Int[Tensor, "B T"],
    ) -> Float[Tensor, "B T d_model"]:
        """Run the decoder over known targets, all positions at once.

        Padding stands after the target, so the causal mask hides it from every real position.
        """
        x = self.target_positions(self.target_embedding(tgt_in))
        return self.decoder(self.dropout(x), memory, tgt_in != PAD, src_mask)

    def start(self, src: Int[Tensor, "B S"]) -> DecoderState:
        """Encode the source and return the state before the first target token."""
        src_mask = padding_mask(src)
        memory = self.encode(src, src_mask)
        layers = tuple(layer.start(memory) for layer in self._decoder_layers())
        return DecoderState(layers, src_mask, beam=1, length=0)

    def _decoder_layers(self) -> Iterator[DecoderLayer]:
        for layer in self.decoder.layers:
            assert isinstance(layer, DecoderLayer)
            yield layer

    def step(
        self, tokens: Int[Tensor, "B beam"], state: DecoderState
    ) -> tuple[Float[Tensor, "B beam vocab"], DecoderState]:
        """Feed one more token to every hypothesis; return the next logits and the new state.

        The same numbers as the last position of `forward`, at the cost of one position.
        """
        x = self.target_embedding(tokens.reshape(-1, 1))
        x = self.target_positions(x, start=state.length).view(*tokens.shape, -1)
        x, layers = self.dropout(x), []
        for layer, before in zip(self._decoder_layers(), state.layers, strict=True):
            x, after = layer.step(x, before, state.length, state.src_mask)
            layers.append(after)
        if self.decoder.norm is not None:
            x = self.decoder.norm(x)
        return self.output(x), replace(state, layers=tuple(layers), length=state.length + 1)

    if TYPE_CHECKING:
        __call__ = forward
