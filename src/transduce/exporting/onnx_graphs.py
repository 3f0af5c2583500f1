"""The three graphs of an export: encoder, one step of the decoder, and greedy search as a whole."""

import math

import numpy as np
from onnx import ModelProto, TensorProto

from transduce.config import BOS, EOS, PAD, UNK
from transduce.exporting.onnx_model import LayerState, start, step
from transduce.exporting.onnx_nodes import Graph, Shape, Value, Weights

INT64, FLOAT, DOUBLE, BOOL = (
    TensorProto.INT64,
    TensorProto.FLOAT,
    TensorProto.DOUBLE,
    TensorProto.BOOL,
)


def encoder_graph(weights: Weights) -> ModelProto:
    """From src [B, S] the state before the first target token, named as the decoder takes it."""
    g = Graph(weights)
    layers, src_mask = start(g, g.input("src", INT64, ["B", "S"]))
    g.output("src_mask", src_mask, BOOL, ["B", 1, 1, "S"])
    for i, layer in enumerate(layers):
        for name, shape in state_shapes(g, "B", 0).items():
            g.output(f"{name}.{i}", getattr(layer, name), FLOAT, shape)
    return g.model("encoder")


def decoder_graph(weights: Weights) -> ModelProto:
    """One step: tokens and origin [B, beam], k [1], and the state -> what comes next, new state.

    `origin` says which row of K and V each hypothesis continues. What comes next: all
    log-probabilities, and the k best tokens that may be generated. Attention is the mean over the
    heads of the last layer.
    """
    g = Graph(weights)
    tokens = g.input("tokens", INT64, ["B", "beam"])
    origin = g.op("Reshape", g.input("origin", INT64, ["B", "beam"]), [-1])
    src_mask = g.input("src_mask", BOOL, ["B", 1, 1, "S"])
    layers = []
    for i in range(g.config.N_decoder):
        K, V, memory_K, memory_V = (
            g.input(f"{name}.{i}", FLOAT, shape)
            for name, shape in state_shapes(g, "rows", "past").items()
        )
        K, V = g.op("Gather", K, origin), g.op("Gather", V, origin)
        layers.append(LayerState(K, V, memory_K, memory_V))
    log_probs, layers, attention = step(g, tokens, layers, src_mask)
    g.output("log_probs", log_probs, FLOAT, ["B", "beam", g.config.target_vocabulary])
    attention = g.op("ReduceMean", attention, axes=[1], keepdims=0)
    g.output("attention", attention, FLOAT, ["B", "beam", "S"])
    k = g.op("Min", g.input("k", INT64, [1]), [g.config.target_vocabulary])
    best, ids = g.ops("TopK", 2, allowed(g, log_probs), k, axis=-1)
    g.output("best_log_probs", best, FLOAT, ["B", "beam", "k"])
    g.output("best_tokens", ids, INT64, ["B", "beam", "k"])
    for i, layer in enumerate(layers):
        shapes = state_shapes(g, "B * beam", "past + 1")
        g.output(f"next_K.{i}", layer.K, FLOAT, shapes["K"])
        g.output(f"next_V.{i}", layer.V, FLOAT, shapes["V"])
    return g.model("decoder")


def allowed(g: Graph, log_probs: Value) -> Value:
    """Return log-probabilities in which what is never generated has −∞."""
    never = np.zeros(g.config.target_vocabulary, dtype=np.float32)
    never[[PAD, UNK, BOS]] = -math.inf
    return g.op("Add", log_probs, never)


def state_shapes(g: Graph, rows: str, past: str | int) -> dict[str, Shape]:
    """Return the fields of `LayerState` with their shapes."""
    h, d_k, d_v = g.config.h, g.config.d_k, g.config.d_v
    return {
        "K": [rows, h, past, d_k],
        "V": [rows, h, past, d_v],
        "memory_K": ["B", h, "S", d_k],
        "memory_V": ["B", h, "S", d_v],
    }


def greedy_graph(weights: Weights) -> ModelProto:
    """Greedy search: src [B, S] and limits [B] -> tokens [B, T] and log_probability [B].

    Tokens are END's included, at most `limits` of them, and PAD after END. A loop in the graph:
    whoever runs it needs no search.
    """
    g = Graph(weights)
    src = g.input("src", INT64, ["B", "S"])
    limits = g.input("limits", INT64, ["B"])
    layers, src_mask = start(g, src)
    zero = g.op("Sub", limits, limits)
    begin = g.op("Unsqueeze", g.op("Add", zero, BOS), [1])
    live = g.op("Greater", limits, 0)
    carried = [begin, live, g.op("Cast", zero, to=DOUBLE)]
    for layer in layers:
        carried += [layer.K, layer.V]
    body = greedy_round(Graph(weights, g), limits, layers, src_mask)
    *after, tokens = g.loop(g.op("ReduceMax", limits, keepdims=0), body, carried)
    g.output("tokens", g.op("Transpose", tokens, perm=[1, 0]), INT64, ["B", "T"])
    g.output("log_probability", g.op("Cast", after[2], to=FLOAT), FLOAT, ["B"])
    return g.model("greedy")


def greedy_round(g: Graph, limits: Value, layers: list[LayerState], src_mask: Value) -> Graph:
    """The inner graph of the loop: one token more for each sentence that lives."""
    number = g.input("round", INT64, [])
    g.input("on", BOOL, [])
    tokens = g.input("previous", INT64)
    live = g.input("live", BOOL)
    total = g.input("total", DOUBLE)
    layers = [
        LayerState(
            g.input(f"K.{i}", FLOAT), g.input(f"V.{i}", FLOAT), layer.memory_K, layer.memory_V
        )
        for i, layer in enumerate(layers)
    ]
    log_probs, layers, _ = step(g, tokens, layers, src_mask)
    log_probs = allowed(g, g.op("Squeeze", log_probs, [1]))
    best = g.op("ArgMax", log_probs, axis=-1, keepdims=1)
    gain = g.op("Squeeze", g.op("GatherElements", log_probs, best, axis=1), [1])
    gain = g.op("Where", live, g.op("Cast", gain, to=DOUBLE), np.zeros(()))
    token = g.op("Where", live, g.op("Squeeze", best, [1]), PAD)
    room = g.op("Less", g.op("Add", number, 1), limits)
    goes_on = g.op("And", room, g.op("Not", g.op("Equal", token, EOS)))
    live = g.op("And", live, goes_on)
    any_lives = g.op("ReduceMax", g.op("Cast", live, to=INT64), keepdims=0)
    g.output(g.fresh("on"), g.op("Cast", any_lives, to=BOOL), BOOL, [])
    g.output(g.fresh("next"), best, INT64)
    g.output(g.fresh("live"), live, BOOL)
    g.output(g.fresh("total"), g.op("Add", total, gain), DOUBLE)
    for layer in layers:
        g.output(g.fresh("K"), layer.K, FLOAT)
        g.output(g.fresh("V"), layer.V, FLOAT)
    g.output(g.fresh("token"), token, INT64)
    return g
