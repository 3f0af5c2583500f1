"""The Transformer as ONNX graphs: `model/transformer.py` once more, in the same order.

Each function adds to a graph what the module of that name computes in evaluation mode, for the
parameters whose names begin with `name`. Shapes are written as they are there; between attention
and feed-forward networks the positions of all sentences are rows of one matrix, [n, d_model].
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from onnx import TensorProto

from transduce.config import PAD
from transduce.exporting.onnx_nodes import Graph, Value

FLOAT, DOUBLE = TensorProto.FLOAT, TensorProto.DOUBLE
LOWEST = float(np.finfo(np.float32).min)
"""What a hidden score becomes: the lowest finite number, as in `masked_softmax`."""

Sublayer = Callable[[Value], Value]


# Masks (§3.2.3) ---------------------------------------------------------------------------------


def padding_mask(g: Graph, ids: Value) -> Value:
    """[B, S] -> [B, 1, 1, S]: every query may look at every key that is not padding."""
    return g.op("Unsqueeze", g.op("Not", g.op("Equal", ids, PAD)), [1, 2])


# Attention (§3.2) -------------------------------------------------------------------------------


def attention_weights(g: Graph, Q: Value, K: Value, mask: Value | None) -> Value:
    """softmax(Q Kᵀ / √d_k), [B, h, q, k] (eq. 1); queries without any key get zeros."""
    scores = g.op("MatMul", Q, g.op("Transpose", K, perm=[0, 1, 3, 2]))
    scores = g.op("Div", scores, math.sqrt(g.config.d_k))
    if mask is None:
        return g.op("Softmax", scores, axis=-1)
    P = g.op("Softmax", g.op("Where", mask, scores, LOWEST), axis=-1)
    return g.op("Where", mask, P, 0.0)


def linear(g: Graph, name: str, x: Value) -> Value:
    """X W + b, [n, in] -> [n, out], with a bias if the model has one."""
    bias = [g.parameter(f"{name}.bias")] if f"{name}.bias" in g.weights else []
    return g.op("Gemm", x, g.parameter(f"{name}.weight"), *bias, transB=1)


def split(g: Graph, x: Value, ids: Value, d: int) -> Value:
    """[n, h·d] -> [B, h, k, d] for `ids` of shape [B, k]: each head its slice of the features."""
    shape = g.op("Concat", g.op("Shape", ids), [g.config.h, d], axis=0)
    return g.op("Transpose", g.op("Reshape", x, shape), perm=[0, 2, 1, 3])


def join(g: Graph, heads: Value) -> Value:
    """[B, h, q, d_v] -> [n, h·d_v]."""
    together = g.op("Transpose", heads, perm=[0, 2, 1, 3])
    return g.op("Reshape", together, [-1, g.config.h * g.config.d_v])


# Position-wise feed-forward networks (§3.3) -----------------------------------------------------


def swish(g: Graph, x: Value) -> Value:
    """Swish: x · sigmoid(x)."""
    return g.op("Mul", x, g.op("Sigmoid", x))


def gelu(g: Graph, x: Value) -> Value:
    """GELU: x · Φ(x) = x · (1 + erf(x / √2)) / 2."""
    erf = g.op("Erf", g.op("Div", x, math.sqrt(2.0)))
    return g.op("Mul", g.op("Mul", x, g.op("Add", erf, 1.0)), 0.5)


ACTIVATIONS: dict[str, Callable[[Graph, Value], Value]] = {
    "relu": lambda g, x: g.op("Relu", x),
    "swish": swish,
    "gelu": gelu,
}


def feed_forward(g: Graph, name: str, x: Value) -> Value:
    """FFN(x) = max(0, x W_1 + b_1) W_2 + b_2 (eq. 2), or with another activation."""
    inner = ACTIVATIONS[g.config.activation](g, linear(g, f"{name}.W_1", x))
    return linear(g, f"{name}.W_2", inner)


# Embeddings (§3.4) and positions (§3.5) ---------------------------------------------------------


def sinusoids(g: Graph, pos: Value) -> Value:
    """[q] -> [q, d_model], PE of whatever positions; cos x is computed as sin(x + π/2).

    In float64 as in the model, since float32 knows the angle of position 1000 to four digits only.
    """
    column = np.arange(g.config.d_model)
    divisor = 10000 ** ((column - column % 2) / g.config.d_model)
    phase = column % 2 * (math.pi / 2)
    angle = g.op("Div", g.op("Unsqueeze", g.op("Cast", pos, to=DOUBLE), [1]), divisor)
    return g.op("Cast", g.op("Sin", g.op("Add", angle, phase)), to=FLOAT)


def with_positions(g: Graph, name: str, x: Value, pos: Value) -> Value:
    """Add the vectors of the positions `pos`, [q], to embeddings, [B, q, d_model].

    A position beyond a learned table makes the runtime fail.
    """
    if g.config.positions == "learned":
        # In two axes, since onnxruntime makes rows of a range a slice, which would fall short.
        rows = g.op("Gather", g.parameter(f"{name}.weight"), g.op("Unsqueeze", pos, [0]))
        return g.op("Add", x, rows)
    return g.op("Add", x, sinusoids(g, pos))


def embedding(g: Graph, name: str, ids: Value) -> Value:
    """A row of the matrix for each id, times √d_model (§3.4); [B, q, d_model]."""
    rows = g.op("Gather", g.parameter(f"{name}.weight"), ids)
    return g.op("Mul", rows, math.sqrt(g.config.d_model)) if g.config.scale_embeddings else rows


def as_rows(g: Graph, x: Value) -> Value:
    """[B, q, d_model] -> [n, d_model]."""
    return g.op("Reshape", x, [-1, g.config.d_model])


# Residual connections (§3.1) --------------------------------------------------------------------


def layer_norm(g: Graph, name: str, x: Value) -> Value:
    """Normalise the features of one position to mean 0 and variance 1, then gain and bias."""
    gain, bias = g.parameter(f"{name}.weight"), g.parameter(f"{name}.bias")
    return g.op("LayerNormalization", x, gain, bias, axis=-1, epsilon=g.config.norm_epsilon)


def add_and_norm(g: Graph, name: str, x: Value, sublayer: Sublayer) -> Value:
    """LayerNorm(x + Sublayer(x)), the paper's; with `pre`, x + Sublayer(LayerNorm(x))."""
    if g.config.norm_place == "pre":
        return g.op("Add", x, sublayer(layer_norm(g, name, x)))
    return layer_norm(g, name, g.op("Add", x, sublayer(x)))


def last_norm(g: Graph, name: str, x: Value) -> Value:
    """The norm after a stack: with pre-norm one, without it none."""
    return layer_norm(g, name, x) if g.config.norm_place == "pre" else x


# Encoder and decoder stacks (§3.1, figure 1) ----------------------------------------------------


def encoder_layer(g: Graph, name: str, x: Value, src: Value, src_mask: Value) -> Value:
    """Figure 1, left: self-attention, then the feed-forward network; [B·S, d_model]."""

    def self_attention(x: Value) -> Value:
        mixer, d_k, d_v = f"{name}.self_attention", g.config.d_k, g.config.d_v
        Q = split(g, linear(g, f"{mixer}.W_Q", x), src, d_k)
        K = split(g, linear(g, f"{mixer}.W_K", x), src, d_k)
        V = split(g, linear(g, f"{mixer}.W_V", x), src, d_v)
        heads = g.op("MatMul", attention_weights(g, Q, K, src_mask), V)
        return linear(g, f"{mixer}.W_O", join(g, heads))

    x = add_and_norm(g, f"{name}.self_attention_norm", x, self_attention)
    return add_and_norm(
        g, f"{name}.feed_forward_norm", x, lambda x: feed_forward(g, f"{name}.feed_forward", x)
    )


def encode(g: Graph, src: Value, src_mask: Value) -> Value:
    """Return the memory, [B·S, d_model]."""
    pos = g.op("Range", 0, g.op("Gather", g.op("Shape", src), 1), 1)
    x = with_positions(g, "source_positions", embedding(g, "source_embedding", src), pos)
    x = as_rows(g, x)
    for i in range(g.config.N_encoder):
        x = encoder_layer(g, f"encoder.layers.{i}", x, src, src_mask)
    return last_norm(g, "encoder.norm", x)


@dataclass(frozen=True)
class LayerState:
    """What one decoder layer remembers between steps, as in the model.

    K, V [rows, h, past, d] of the target tokens so far, rows = B · beam; memory_K, memory_V
    [B, h, S, d].
    """

    K: Value
    V: Value
    memory_K: Value
    memory_V: Value


def start(g: Graph, src: Value) -> tuple[list[LayerState], Value]:
    """Encode the source: the state before the first target token, and the mask [B, 1, 1, S]."""
    src_mask = padding_mask(g, src)
    memory = encode(g, src, src_mask)
    layers = []
    for i in range(g.config.N_decoder):
        mixer = f"decoder.layers.{i}.cross_attention"
        memory_K = split(g, linear(g, f"{mixer}.W_K", memory), src, g.config.d_k)
        memory_V = split(g, linear(g, f"{mixer}.W_V", memory), src, g.config.d_v)
        K, V = (g.op("Slice", x, [0], [0], [2]) for x in (memory_K, memory_V))  # nothing seen yet
        layers.append(LayerState(K, V, memory_K, memory_V))
    return layers, src_mask


def decoder_layer(
    g: Graph, name: str, x: Value, tokens: Value, layer: LayerState, src_mask: Value
) -> tuple[Value, LayerState, Value]:
    """Figure 1, right, for the one new position of every hypothesis; x is [B·beam, d_model].

    Returns:
        The layer's output, its new state, and the weights with which it attends to the source,
        [B, h, beam, S].
    """
    d_k, d_v = g.config.d_k, g.config.d_v
    grown, weights = layer, ""

    def self_attention(x: Value) -> Value:
        nonlocal grown
        mixer, h = f"{name}.self_attention", g.config.h
        Q, K, V = (
            g.op("Reshape", linear(g, f"{mixer}.{W}", x), [-1, h, 1, d])
            for W, d in (("W_Q", d_k), ("W_K", d_k), ("W_V", d_v))
        )
        K, V = g.op("Concat", layer.K, K, axis=2), g.op("Concat", layer.V, V, axis=2)
        grown = LayerState(K, V, layer.memory_K, layer.memory_V)
        heads = g.op("MatMul", attention_weights(g, Q, K, None), V)
        return linear(g, f"{mixer}.W_O", join(g, heads))

    def cross_attention(x: Value) -> Value:
        # The hypotheses of a sentence are so many queries to the same keys and values.
        nonlocal weights
        mixer = f"{name}.cross_attention"
        Q = split(g, linear(g, f"{mixer}.W_Q", x), tokens, d_k)
        weights = attention_weights(g, Q, layer.memory_K, src_mask)
        return linear(g, f"{mixer}.W_O", join(g, g.op("MatMul", weights, layer.memory_V)))

    x = add_and_norm(g, f"{name}.self_attention_norm", x, self_attention)
    x = add_and_norm(g, f"{name}.cross_attention_norm", x, cross_attention)
    x = add_and_norm(
        g, f"{name}.feed_forward_norm", x, lambda x: feed_forward(g, f"{name}.feed_forward", x)
    )
    return x, grown, weights


def step(
    g: Graph, tokens: Value, layers: list[LayerState], src_mask: Value
) -> tuple[Value, list[LayerState], Value]:
    """Feed one more token to every hypothesis; `tokens` is [B, beam].

    Returns:
        Log-probabilities [B, beam, vocab], the new state, and the last layer's attention to the
        source, [B, h, beam, S].
    """
    past = g.op("Shape", layers[0].K, start=2, end=3)  # that many tokens, so this is the position
    x = with_positions(g, "target_positions", embedding(g, "target_embedding", tokens), past)
    x = as_rows(g, x)
    grown, weights = [], ""
    for i, layer in enumerate(layers):
        x, state, weights = decoder_layer(g, f"decoder.layers.{i}", x, tokens, layer, src_mask)
        grown.append(state)
    x = linear(g, "output", last_norm(g, "decoder.norm", x))
    log_probs = g.op("LogSoftmax", x, axis=-1)
    shape = g.op("Concat", g.op("Shape", tokens), [g.config.target_vocabulary], axis=0)
    return g.op("Reshape", log_probs, shape), grown, weights
