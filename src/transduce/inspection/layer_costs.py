"""Table 1 on this machine: what each layer type costs, by formula, by count and by the clock.

A *mixer* is what Table 1 speaks of: eq. 1 between given queries, keys and values; the recurrence
with its matrices; the convolution with its own. The *layer* is a whole encoder layer around it,
with projections, residuals, norms and feed-forward network.
"""

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from transduce.config import LayerType, ModelConfig
from transduce.fitting import Witness, alive
from transduce.model.layer_types import (
    GATES,
    Convolution,
    Mixer,
    Recurrence,
    Windows,
    reach,
    width_of_convolution,
    width_of_recurrence,
)
from transduce.model.transformer import EncoderLayer, fused_attention, mixer

KINDS: tuple[LayerType, ...] = ("self-attention", "recurrent", "convolutional", "restricted")
"""In the order of Table 1."""
COMPLEXITY = {"self-attention": "n² · d", "recurrent": "n · d²", "convolutional": "k · n · d²",
              "restricted": "r · n · d"}  # fmt: skip
LENGTHS = (16, 32, 64, 128, 256, 512, 1024, 1448, 2048, 2896, 4096)
WIDTHS = (32, 64, 128, 256, 512)
LONG = 1024
"""From here on the exponent of time in n is fitted."""
WIDTH_AT = 512
"""So many positions have the layers whose width varies."""
ROUNDS = 3
"""So often every time is measured, now and later: the shortest counts."""
PATHS = (16, 64, 256)
"""Lengths for which every pair of positions is asked whether it is connected."""
HEAD = 64
"""Features of a head, as in the paper, where the layer has as many."""


def sizes(d: int, dilated: bool = False) -> ModelConfig:
    """Return a layer of width d: heads of 64, feed-forward network of 4 d, as in the paper."""
    h = max(1, d // HEAD)
    return ModelConfig(
        d_model=d, d_ff=4 * d, h=h, d_k=d // h, d_v=d // h, P_drop=0.0, norm_place="pre",
        dilated=dilated,
    )  # fmt: skip


# Operations -------------------------------------------------------------------------------------


def operations(kind: LayerType, n: int, config: ModelConfig) -> int:
    """Return the multiplications (each with an addition) of a mixer, by formula.

    Of matrix products only, as Table 1 means it; for n positions in the encoder.
    """
    d = config.h * config.d_k
    match kind:
        case "self-attention":
            return 2 * n * n * d  # Q Kᵀ, and its weights times V
        case "recurrent":
            c = width_of_recurrence(config, directions=2)
            return 2 * GATES[config.cell] * n * (config.d_model * c + c * c)
        case "convolutional":
            return n * config.kernel * config.d_model * 2 * width_of_convolution(config)
        case "restricted":
            windows = Windows(n, config.window, causal=False)
            keys = windows.block + 2 * config.window
            return 2 * windows.count * windows.block * keys * d


def operations_of_layer(kind: LayerType, n: int, config: ModelConfig) -> int:
    """Return the same for a whole encoder layer: with projections and feed-forward network."""
    config = config.model_copy(update={"encoder_layer_type": kind})
    part = EncoderLayer(config, 0)
    names = ("W_Q", "W_K", "W_V") if kind in ("self-attention", "restricted") else ()
    before = [getattr(part.self_attention, name).weight for name in names]
    after = [part.feed_forward.W_1.weight, part.feed_forward.W_2.weight]
    rows = n
    if kind == "restricted":  # blocks come out with what the last one was filled up with
        windows = Windows(n, config.window, causal=False)
        rows = windows.count * windows.block
    W_O = part.self_attention.W_O.weight  # type: ignore[attr-defined]
    outside = n * sum(weight.numel() for weight in before + after) + rows * W_O.numel()
    return operations(kind, n, config) + outside


def counted(run: Callable[[], object]) -> int:
    """Return the multiplications that a run really does, as torch counts its matrix products."""
    with torch.device("meta"), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as it:
        run()
    return int(it.get_total_flops()) // 2


def mixing(kind: LayerType, n: int, config: ModelConfig) -> Callable[[], Tensor]:
    """Return a function that mixes n random positions, without projections before or after."""
    if kind in ("self-attention", "restricted"):
        Q, K, V = (torch.randn(1, config.h, n, config.d_k) for _ in range(3))
        if kind == "self-attention":
            return lambda: fused_attention(Q, K, V, None)
        windows, real = Windows(n, config.window, False), torch.ones(1, n, dtype=torch.bool)

        def restricted() -> Tensor:
            keys, values, mask = windows.of_keys(K), windows.of_keys(V), windows.mask(real)
            heads = fused_attention(windows.of_queries(Q), keys, values, mask)
            return windows.joined(heads.transpose(1, 2).flatten(2))

        return restricted
    x, real = torch.randn(1, n, config.d_model), torch.ones(1, n, dtype=torch.bool)
    if kind == "recurrent":
        recurrence = Recurrence(config, causal=False)
        return lambda: recurrence.states(x, real)
    convolution = Convolution(config, False, 0)
    return lambda: convolution.gated(x, real)


def layer(kind: LayerType, n: int, config: ModelConfig) -> Callable[[], Tensor]:
    """Return a function that runs a whole encoder layer over n random positions."""
    config = config.model_copy(update={"encoder_layer_type": kind})
    part, real = EncoderLayer(config, 0), torch.ones(1, n, dtype=torch.bool)
    x = torch.randn(1, n, config.d_model)
    return lambda: part(x, real)


# Paths ------------------------------------------------------------------------------------------


def path(kind: LayerType, n: int, config: ModelConfig) -> int:
    """Return how many hops the longest way between two of n positions has, by formula.

    A hop is a layer, but in a recurrence a step. Table 1 gives the same without constants.
    """
    if n == 1:
        return 0
    match kind:
        case "self-attention":
            return 1
        case "recurrent":
            return n - 1
        case "restricted":
            return math.ceil((n - 1) / config.window)
        case "convolutional" if config.dilated:  # the logarithm of n, rounded up
            return next(L for L in range(1, n) if reach(config, causal=False) ** L >= n)
        case "convolutional":
            return math.ceil((n - 1) / (reach(config, causal=False) - 1))


def measured_path(kind: LayerType, n: int, config: ModelConfig) -> int:
    """Return the same as it is found: by which inputs which outputs have a gradient.

    Layers are put upon each other until every position is reached from every other one; of a
    recurrence, those states are counted through which the first input comes to the last output.
    """
    if kind == "recurrent":
        return states_between(Recurrence(config, causal=True).double(), n, config.d_model)
    reached, step = torch.eye(n), torch.empty(0)
    for depth in range(1, n + 1):
        if depth == 1 or config.dilated:  # otherwise all layers are alike
            step = moved(mixer(config, kind, False, depth - 1), n, config.d_model).float()
        reached = (step @ reached > 0).float()
        if reached.all():
            return depth
    raise AssertionError(f"{kind} never connects {n} positions")


def moved(part: Mixer, n: int, d: int) -> Bool[Tensor, "n n"]:
    """Return which output (row) has a gradient with respect to which input (column)."""
    assert isinstance(part, nn.Module)
    x = torch.randn(1, n, d, dtype=torch.float64).expand(n, n, d).clone().requires_grad_()
    out = part.double().mix(x, torch.ones(n, n, dtype=torch.bool))
    own = out.diagonal().sum()  # of sentence i, output i
    (gradient,) = torch.autograd.grad(own, x)
    return (gradient != 0).any(dim=-1)


def states_between(part: Recurrence, n: int, d: int) -> int:
    """Return the number of states by which the last output depends on the first input."""
    x = torch.randn(1, n, d, dtype=torch.float64).expand(n, n, d).clone().requires_grad_()
    past, states = part.start(x), []
    for pos in range(n):
        y, past = part.step(x[:, pos : pos + 1], past, pos)
        states.append(past.tensors[0])
    own = [state[pos] for pos, state in enumerate(states)]  # of sentence i, state i
    from_the_start = torch.autograd.grad(torch.stack(own).sum(), x, retain_graph=True)[0][:-1, 0]
    to_the_end = torch.stack(torch.autograd.grad(y[0].sum(), states[:-1]))[:, 0]
    return int(((from_the_start != 0).any(dim=-1) & (to_the_end != 0).any(dim=-1)).sum())


# Time and memory --------------------------------------------------------------------------------


def seconds(run: Callable[[], object], at_least: float = 0.06) -> float:
    """Return the shortest time of several runs."""
    run()
    best, spent, count = math.inf, 0.0, 0
    while spent < at_least or count < 3:
        before = time.perf_counter()
        run()
        took = time.perf_counter() - before
        best, spent, count = min(best, took), spent + took, count + 1
    return best


class Peak(Witness):
    """How many bytes the tensors took that were there at the same time, at most."""

    def __init__(self) -> None:
        super().__init__()
        self.most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = super().__torch_dispatch__(func, types, args, kwargs)
        self.sizes: dict[StorageWeakRef, int] = {
            one: size for one, size in self.sizes.items() if alive(one)
        }
        self.most = max(self.most, sum(self.sizes.values()))
        return result


def there_and_back(run: Callable[[], Tensor]) -> Callable[[], None]:
    """Return a function that also computes all gradients."""
    return lambda: run().sum().backward()


@dataclass(frozen=True)
class Cost:
    """What one layer type costs for so many positions of such a width."""

    kind: str
    n: int
    d: int
    operations: int
    """Multiplications of the mixer, by formula."""
    of_layer: int
    """Those of the whole layer."""
    mixing: float
    """Seconds of the mixer."""
    forward: float
    """Seconds of the layer."""
    training: float
    """Seconds of the layer and all gradients."""
    peak: int
    """Bytes of all tensors of a training step that are there at the same time, at most; weights
    and the inside of fused kernels not counted."""


def cost(kind: LayerType, n: int, d: int) -> Cost:
    """Measure one point."""
    config = sizes(d)
    with torch.inference_mode():
        mix = seconds(mixing(kind, n, config))
        forward = seconds(layer(kind, n, config))
    step = there_and_back(layer(kind, n, config))
    training = seconds(step)
    with Peak() as peak:
        step()
    return Cost(
        kind, n, d, operations(kind, n, config), operations_of_layer(kind, n, config),
        mixing=mix, forward=forward, training=training, peak=peak.most,
    )  # fmt: skip


def best(costs: Iterable[Cost]) -> Cost:
    """Return one point of several measurements of it, each time the shortest.

    A disturbance lengthens a time and never shortens it.
    """
    all_of_them = list(costs)
    times = {
        name: min(getattr(one, name) for one in all_of_them)
        for name in ("mixing", "forward", "training")
    }
    return replace(all_of_them[0], **times)


def exponent(points: Sequence[tuple[float, float]]) -> float:
    """Return the e for which y grows as x^e: the slope of the line nearest to the logarithms."""
    x, y = np.log(np.array(points)).T
    slope, _ = np.polyfit(x, y, 1)
    return float(slope)
