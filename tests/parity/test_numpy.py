"""The model against a NumPy computation written from the equations, one sentence at a time.

Nothing is shared with the model but its weights: no batches, no padding, no masks; heads and
positions are loops.
"""

import math

import numpy as np
import numpy.typing as npt
import pytest
import torch

from tests.conftest import BuildModel
from transduce.model import Transformer

Matrix = npt.NDArray[np.float64]
Weights = dict[str, Matrix]


def linear(w: Weights, name: str, x: Matrix, rows: slice = slice(None)) -> Matrix:
    bias = w.get(f"{name}.bias")
    return np.asarray(x @ w[f"{name}.weight"][rows].T + (0.0 if bias is None else bias[rows]))


def softmax(s: Matrix) -> Matrix:
    e = np.exp(s - s.max())
    return np.asarray(e / e.sum())


def layer_norm(w: Weights, name: str, x: Matrix, epsilon: float) -> Matrix:
    rows = []
    for row in x:
        mean = row.sum() / len(row)
        variance = ((row - mean) ** 2).sum() / len(row)
        rows.append((row - mean) / np.sqrt(variance + epsilon))
    return np.asarray(np.array(rows) * w[f"{name}.weight"] + w[f"{name}.bias"])


def multi_head(
    w: Weights, name: str, x: Matrix, memory: Matrix, h: int, d_k: int, d_v: int, causal: bool
) -> Matrix:
    heads = []
    for i in range(h):
        keys, values = slice(i * d_k, (i + 1) * d_k), slice(i * d_v, (i + 1) * d_v)
        Q = linear(w, f"{name}.W_Q", x, keys)
        K = linear(w, f"{name}.W_K", memory, keys)
        V = linear(w, f"{name}.W_V", memory, values)
        rows = []
        for t, q in enumerate(Q):
            seen = t + 1 if causal else len(K)
            alpha = softmax(np.array([q @ k for k in K[:seen]]) / np.sqrt(d_k))
            rows.append(sum(a * v for a, v in zip(alpha, V[:seen], strict=True)))
        heads.append(np.array(rows))
    return linear(w, f"{name}.W_O", np.concatenate(heads, axis=1))


def activated(kind: str, x: float) -> float:
    match kind:
        case "relu":
            return max(0.0, x)
        case "swish":
            return x / (1 + math.exp(-x))
    return x * (1 + math.erf(x / math.sqrt(2))) / 2


def feed_forward(w: Weights, name: str, x: Matrix, kind: str) -> Matrix:
    inner = linear(w, f"{name}.W_1", x)
    inner = np.array([[activated(kind, number) for number in row] for row in inner])
    return linear(w, f"{name}.W_2", inner)


def positions(length: int, d_model: int) -> Matrix:
    PE = np.zeros((length, d_model))
    for pos in range(length):
        for channel in range(d_model):
            angle = pos / 10000 ** (2 * (channel // 2) / d_model)
            PE[pos, channel] = np.sin(angle) if channel % 2 == 0 else np.cos(angle)
    return PE


def logits(model: Transformer, src: list[int], tgt_in: list[int]) -> Matrix:
    """Compute the logits of one sentence from the model's weights and the paper's equations."""
    c = model.config
    w = {name: p.detach().numpy() for name, p in model.named_parameters(remove_duplicate=False)}
    scale = np.sqrt(c.d_model) if c.scale_embeddings else 1.0

    def embed(ids: list[int], side: str) -> Matrix:
        x = w[f"{side}_embedding.weight"][ids] * scale
        if c.positions == "learned":
            return np.asarray(x + w[f"{side}_positions.weight"][: len(ids)])
        return np.asarray(x + positions(len(ids), c.d_model))

    def add_and_norm(x: Matrix, name: str, sublayer: object) -> Matrix:
        assert callable(sublayer)
        if c.norm_place == "post":
            return layer_norm(w, f"{name}_norm", x + sublayer(x), c.norm_epsilon)
        return np.asarray(x + sublayer(layer_norm(w, f"{name}_norm", x, c.norm_epsilon)))

    sizes, kind = (c.h, c.d_k, c.d_v), c.activation
    x = embed(src, "source")
    for i in range(c.N_encoder):
        n = f"encoder.layers.{i}"
        x = add_and_norm(
            x, f"{n}.self_attention",
            lambda x, n=n: multi_head(w, f"{n}.self_attention", x, x, *sizes, causal=False),
        )  # fmt: skip
        x = add_and_norm(
            x, f"{n}.feed_forward", lambda x, n=n: feed_forward(w, f"{n}.feed_forward", x, kind)
        )
    memory = layer_norm(w, "encoder.norm", x, c.norm_epsilon) if c.norm_place == "pre" else x
    y = embed(tgt_in, "target")
    for i in range(c.N_decoder):
        n = f"decoder.layers.{i}"
        y = add_and_norm(
            y, f"{n}.self_attention",
            lambda y, n=n: multi_head(w, f"{n}.self_attention", y, y, *sizes, causal=True),
        )  # fmt: skip
        y = add_and_norm(
            y, f"{n}.cross_attention",
            lambda y, n=n: multi_head(w, f"{n}.cross_attention", y, memory, *sizes, causal=False),
        )  # fmt: skip
        y = add_and_norm(
            y, f"{n}.feed_forward", lambda y, n=n: feed_forward(w, f"{n}.feed_forward", y, kind)
        )
    if c.norm_place == "pre":
        y = layer_norm(w, "decoder.norm", y, c.norm_epsilon)
    return linear(w, "output", y)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"norm_place": "pre"},
        {"positions": "learned", "max_positions": 11},
        {"joint_vocabulary": True, "source_vocabulary": 29},
        {"tie_embeddings": False, "scale_embeddings": False},
        {"N_encoder": 3, "N_decoder": 1, "d_k": 1, "d_v": 11, "norm_epsilon": 1e-2},
        {"d_model": 13, "h": 1},
        {"activation": "swish", "attention_biases": True},
        {"activation": "gelu", "output_bias": True, "norm_place": "pre"},
    ],
    ids=str,
)
def test_logits_equal_the_equations(build: BuildModel, changes: dict[str, object]) -> None:
    model = build(**changes)
    for parameter in model.parameters():  # gains and biases too must matter
        torch.nn.init.normal_(parameter, std=0.4)
    sentences = [([5, 6, 7, 3], [2, 9, 4]), ([8, 3], [2, 11, 12, 13, 14]), ([3], [2])]
    src = torch.zeros(3, 6, dtype=torch.int64)
    tgt_in = torch.zeros(3, 5, dtype=torch.int64)
    for row, (s, t) in enumerate(sentences):
        src[row, : len(s)] = torch.tensor(s)
        tgt_in[row, : len(t)] = torch.tensor(t)
    ours = model(src, tgt_in).detach().numpy()
    for row, (s, t) in enumerate(sentences):
        expected = logits(model, s, t)
        assert np.abs(expected).max() > 0.1
        np.testing.assert_allclose(ours[row, : len(t)], expected, rtol=0, atol=1e-9)
