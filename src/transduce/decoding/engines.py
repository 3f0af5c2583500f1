"""What runs the model during search and scoring: the torch engine, and several of them as one."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from threading import get_ident
from typing import Literal, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from transduce.config import PAD, DecodingConfig
from transduce.data.batches import collate, padded
from transduce.decoding.constraints import FREE, Constraints
from transduce.decoding.search import (
    NEVER,
    Hypothesis,
    Next,
    Penalty,
    Same,
    Sampling,
    Step,
    Watch,
    beam_search,
    sample,
)
from transduce.model import DecoderLayer, Transformer

Pairs = Sequence[tuple[Sequence[int], Sequence[int]]]
Detail = Literal["text", "score", "tokens"]
"""What must be known of outputs: their tokens alone; also the sum of the log-probabilities, and the
score; also the log-probability of each token. Some engines are faster with less."""
MOST_SIDE_BY_SIDE = 4
"""Threads of Python that search at a time: they take turns between the operations."""


class Task(NamedTuple):
    """A sentence to search the output of."""

    source: list[int]
    """Pieces, without END."""
    limit: int
    """How many tokens the output may have, END included (P14)."""
    rules: Constraints = FREE
    number: int = 0
    """Its line in the whole file, from 0: draws depend on it."""


@dataclass(frozen=True)
class Wanted:
    """What is searched for, for each sentence of a batch alike."""

    decoding: DecodingConfig
    beam_size: int
    n_best: int = 1
    same: Same = tuple
    """Outputs for whose tokens this gives equal values count as one."""
    detail: Detail = "tokens"
    """What is asked for."""

    @cached_property
    def penalty(self) -> Penalty:
        """What makes a sum of log-probabilities a score."""
        return Penalty(self.decoding.penalty, self.decoding.alpha, self.decoding.beta)


@runtime_checkable
class Engine(Protocol):
    """Anything that finds outputs and says how probable given ones are."""

    @property
    def batch_tokens(self) -> int:
        """How many source tokens it translates best together."""
        ...

    @property
    def side_by_side(self) -> int:
        """How many batches it works on best at a time."""
        ...

    def search(self, tasks: Sequence[Task], wanted: Wanted) -> list[list[Hypothesis]]:
        """Return the best outputs of each sentence of a batch, see `search.beam_search`."""
        ...

    def score(self, pairs: Pairs) -> list[list[float]]:
        """Return the log-probability of every target token, END included."""
        ...


class StepByStep:
    """An engine that says how probable each next token is, so that our own search can ask it."""

    def start(self, sources: Sequence[Sequence[int]], coverage: bool = False) -> Step:
        """Encode sources (pieces without END) and return the step function of their search.

        Its coverage is None unless it is asked for.
        """
        raise NotImplementedError

    def score(self, pairs: Pairs) -> list[list[float]]:
        """See `Engine.score`."""
        raise NotImplementedError

    batch_tokens = 1024
    watch: Watch | None = None
    """Is shown every step of every search."""

    @property
    def side_by_side(self) -> int:
        """See `Engine.side_by_side`.

        On CPUs a batch of sentences gains little from a second thread, since threads that share an
        operation wait for each other after it; two batches side by side gain nearly twice.
        """
        return min(torch.get_num_threads(), MOST_SIDE_BY_SIDE)

    def search(self, tasks: Sequence[Task], wanted: Wanted) -> list[list[Hypothesis]]:
        """See `Engine.search`."""
        asked, n_best = wanted.decoding, wanted.n_best
        step = self.start([task.source for task in tasks], coverage=asked.beta > 0)
        limits, rules = [task.limit for task in tasks], [task.rules for task in tasks]
        how = (wanted.penalty, wanted.same, NEVER, rules, self.watch)
        if asked.method == "sample":
            sampling = Sampling(asked.temperature, asked.top_k, asked.top_p, asked.seed)
            return sample(step, limits, [task.number for task in tasks], n_best, sampling, *how)
        return beam_search(step, limits, wanted.beam_size, n_best, *how)


class TorchEngine(StepByStep):
    """A copy of the model, with cached keys and values.

    Args:
        model: stays as it is.
        precision: the type of the matrix products.
    """

    def __init__(
        self, model: Transformer, precision: Literal["float32", "bfloat16"] = "float32"
    ) -> None:
        dtype = torch.bfloat16 if precision == "bfloat16" else model.output.weight.dtype
        self.model = for_steps(model, dtype)

    @property
    def device(self) -> torch.device:
        """Where the model's weights lie."""
        return self.model.target_embedding.weight.device

    @torch.inference_mode()
    def start(self, sources: Sequence[Sequence[int]], coverage: bool = False) -> Step:
        """See `StepByStep.start`."""
        src = padded(sources, end=True).to(self.device)
        state = self.model.start(src)
        attended = torch.zeros(*src.shape, device=self.device)[:, None]
        past = torch.empty(len(src), 1, 0, dtype=torch.long)

        @torch.inference_mode()
        def step(tokens: Int[Tensor, "B beam"], origin: Int[Tensor, "B beam"]) -> Next:
            nonlocal state, attended, past
            shared = in_common(past)
            past = torch.cat([past.flatten(0, 1)[origin], tokens[:, :, None]], dim=2)
            tokens, origin = tokens.to(self.device), origin.to(self.device)
            state = state.select(origin, shared)
            if not coverage:
                logits, state = self.model.step(tokens, state)
                return Next(logits.log_softmax(dim=-1))
            with last_attention(self.model) as weights:
                logits, state = self.model.step(tokens, state)
            attended = attended.flatten(0, 1)[origin] + weights[0].mean(dim=1)
            return Next(logits.log_softmax(dim=-1), covered(attended, state.src_mask[:, 0]))

        return step

    @torch.inference_mode()
    def score(self, pairs: Pairs) -> list[list[float]]:
        """See `Engine.score`."""
        batch = collate(pairs).to(self.device)
        log_probs = self.model(batch.src, batch.tgt_in).log_softmax(dim=-1)
        chosen = log_probs.gather(2, batch.tgt_out[:, :, None])[:, :, 0]
        return [row[mask].tolist() for row, mask in zip(chosen, batch.tgt_out != PAD, strict=True)]


def in_common(past: Int[Tensor, "B beam n"]) -> int:
    """Return how many first tokens all hypotheses have in common with the others of their sentence.

    Hypotheses of a beam descend from one that is not long ago, so that nearly all their keys and
    values are the same ones.
    """
    differ = (past != past[:, :1]).flatten(0, 1).any(dim=0)
    return int(differ.int().argmax()) if differ.any() else past.size(2)


class Product(nn.Module):
    """x W + b for few rows of x, W in a type of its own.

    What goes in and what comes out keep their type: residual stream, attention, norms and softmaxes
    are as wide as they were. On CPUs W lies in memory as the kernels of oneDNN read it, which they
    would otherwise arrange anew at every step.
    """

    def __init__(self, layer: nn.Linear, dtype: torch.dtype) -> None:
        super().__init__()
        weight, bias = layer.weight.detach().to(dtype), layer.bias
        self.dtype, self.packed = dtype, can_pack(weight)
        if self.packed:
            weight = ONEDNN._reorder_linear_weight(weight.contiguous(), USUAL_ROWS)
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.bias = None if bias is None else nn.Parameter(bias.detach().to(dtype), False)

    def forward(self, x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """Multiply."""
        narrow = x.to(self.dtype)
        if self.packed:
            y = ONEDNN._linear_pointwise(narrow, self.weight, self.bias, "none", [], "")
        else:
            y = functional.linear(narrow, self.weight, self.bias)
        return y.to(x.dtype)


ONEDNN = torch.ops.mkldnn
"""The operations that torch's own compiler puts in place of linear layers on CPUs."""
USUAL_ROWS = 32
"""For so many rows the kernels are chosen; measured to be good from 1 to 256."""


def can_pack(weight: Float[Tensor, "out features"]) -> bool:
    """Say whether oneDNN has kernels for such a matrix on this machine."""
    there = hasattr(ONEDNN, "_linear_pointwise") and hasattr(ONEDNN, "_reorder_linear_weight")
    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available() or not there:
        return False
    if weight.dtype == torch.bfloat16:
        return bool(ONEDNN._is_mkldnn_bf16_supported())
    return weight.dtype == torch.float32


def for_steps(model: Transformer, dtype: torch.dtype) -> Transformer:
    """Return a copy of a model whose linear layers are `Product`."""
    instead = {id(m): Product(m, dtype) for m in model.modules() if isinstance(m, nn.Linear)}
    return deepcopy(model, dict(instead))  # what has a copy already is not copied again


class Ensemble(StepByStep):
    """Several models with one vocabulary: the mean of their probabilities."""

    def __init__(self, members: Sequence[StepByStep]) -> None:
        self.members = members

    def start(self, sources: Sequence[Sequence[int]], coverage: bool = False) -> Step:
        """See `StepByStep.start`."""
        steps = [member.start(sources, coverage) for member in self.members]

        def step(tokens: Int[Tensor, "B beam"], origin: Int[Tensor, "B beam"]) -> Next:
            said = [step(tokens, origin) for step in steps]
            log_probs = torch.stack([one.log_probs for one in said])
            seen = [one.coverage for one in said if one.coverage is not None]
            return Next(
                log_probs.logsumexp(dim=0) - math.log(len(said)),
                torch.stack(seen).mean(dim=0) if seen else None,
            )

        return step

    def score(self, pairs: Pairs) -> list[list[float]]:
        """See `Engine.score`."""
        said = [member.score(pairs) for member in self.members]
        return [
            [
                float(torch.tensor(token, dtype=torch.float64).logsumexp(0)) - math.log(len(said))
                for token in zip(*rows, strict=True)
            ]
            for rows in zip(*said, strict=True)
        ]


@contextmanager
def last_attention(model: Transformer) -> Iterator[list[Float[Tensor, "B h q S"]]]:
    """Record the weights with which the last decoder layer attends to the source."""
    layer = model.decoder.layers[-1]
    assert isinstance(layer, DecoderLayer)
    seen: list[Tensor] = []
    thread = get_ident()

    def record(module: nn.Module, arguments: object, weights: Tensor) -> None:
        if get_ident() == thread:  # another batch may be under way beside this one
            seen.append(weights)

    hook = layer.cross_attention.weights.register_forward_hook(record)
    try:
        yield seen
    finally:
        hook.remove()


def covered(
    attended: Float[Tensor, "B beam S"], src_mask: Bool[Tensor, "B 1 S"]
) -> Float[Tensor, "B beam"]:
    """Σ log min(Σ attention, 1) over the source (Wu et al., 2016, eq. 14).

    `attended` is the attention to each source token, summed over the steps so far.
    """
    smallest = torch.finfo(attended.dtype).tiny
    logs = attended.clamp(smallest, 1.0).log()
    return logs.masked_fill(~src_mask, 0.0).sum(dim=-1)
