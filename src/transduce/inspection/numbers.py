"""The stations of one head on numbers typed by hand: no model, the same arithmetic.

A TOML or JSON file gives either `q`, `k` and `v`, a list for each token, or `x` (and, for
cross-attention, `memory`) with `W_Q`, `W_K`, `W_V` and perhaps `W_O`:

    x = [[1, 0], [0, 1], [1, 1]]
    W_Q = [[1, 0], [0, 2]]
    W_K = [[1, 1], [0, 1]]
    W_V = [[1, 0], [0, 1]]
    mask = "causal"

Tokens are rows, as in the paper: Q = X W_Q. With `form = "columns"` they are columns, as in many
lectures: Q = W_Q I; then all matrices are read so.
"""

import json
import math
import tomllib
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Float
from pydantic import BaseModel, ConfigDict, ValidationError
from torch import Tensor

from transduce import __version__
from transduce.errors import TransduceError, UsageError
from transduce.inspection.attention import Kind
from transduce.inspection.stations import (
    FUTURE,
    PADDING,
    VISIBLE,
    Head,
    Normalised,
    Projection,
    Stations,
)
from transduce.inspection.tracing import FORMAT, VERSION
from transduce.model.transformer import LayerNorm, attention, masked_softmax, scores

Matrix = list[list[float]]


class Numbers(BaseModel):
    """What a file may hold."""

    model_config = ConfigDict(extra="forbid")

    form: Literal["rows", "columns"] = "rows"
    tokens: list[str] = []
    """Names of what asks; and of what is asked, unless `keys` names it."""
    keys: list[str] = []
    q: Matrix = []
    k: Matrix = []
    v: Matrix = []
    x: Matrix = []
    memory: Matrix = []
    W_Q: Matrix = []
    W_K: Matrix = []
    W_V: Matrix = []
    W_O: Matrix = []
    h: int = 1
    """Heads, side by side in the columns (in lecture form, the rows) of W_Q, W_K and W_V."""
    head: int = 1
    mask: Literal["none", "causal"] = "none"
    padding: list[int] = []
    """Keys that are nothing, from 1."""
    layer_norm: Matrix = []
    """Vectors to be normalised by themselves; with x and W_O the sum of both is, too."""
    gain: list[float] = []
    bias: list[float] = []
    epsilon: float = 1e-5


def read_numbers(path: Path) -> Numbers:
    """Read a file of numbers.

    Raises:
        TransduceError: if it cannot be read.
        UsageError: naming what is wrong in it.
    """
    try:
        text = path.read_text("utf-8-sig")
    except OSError as error:
        raise TransduceError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise TransduceError(f"cannot read {path}: it is no UTF-8 text") from None
    try:
        found = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
        return Numbers.model_validate(found)
    except (json.JSONDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"{path}: {error}") from None
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise UsageError(f"{path}: {place}: {first['msg'].lower()}") from None


def trace_numbers(numbers: Numbers, name: str) -> dict[str, Any]:
    """Return the trace of numbers typed by hand, in the form of `tracing.trace`.

    Raises:
        UsageError: if they do not fit each other.
    """
    own = _Own(numbers)
    one = own.head() if own.q is not None else None
    found = own.stations(one)
    queries, keys = own.names()
    side = {"text": name, "flags": [], "words": []}
    target = {"text": "", "given": True, "words": [], "log_probabilities": []}
    return {
        "format": FORMAT,
        "version": VERSION,
        "transduce": __version__,
        "rows": "tokens",
        "model": None,
        "source": side | {"tokens": keys},
        "target": target | {"tokens": queries, "inputs": queries},
        "attention": {},
        "badges": {},
        "stations": {found.kind: found},
        "cannot_show": [],
        "decodings": [],
    }


class _Own:
    """Numbers as tensors whose rows are tokens, and matrices as [out, features]."""

    def __init__(self, numbers: Numbers) -> None:
        self.numbers = numbers
        if numbers.h < 1 or not 1 <= numbers.head <= numbers.h:
            raise UsageError(f"head {numbers.head} of {numbers.h}: there is none")
        self.columns = numbers.form == "columns"
        self.x, self.memory = self.rows("x"), self.rows("memory")
        self.W = {name: self.matrix(name) for name in ("W_Q", "W_K", "W_V", "W_O")}
        self.q, self.k, self.v = (self.rows(name) for name in "qkv")
        if self.x is not None:
            if self.q is not None or self.k is not None or self.v is not None:
                raise UsageError("give either x with its matrices, or q, k and v")
            self.memory = self.x if self.memory is None else self.memory
            self.q = self.projected(self.x, "W_Q")
            self.k = self.projected(self.memory, "W_K")
            self.v = self.projected(self.memory, "W_V")
        elif not numbers.layer_norm and (self.q is None or self.k is None or self.v is None):
            raise UsageError("nothing to show: give q, k and v, or x with W_Q, W_K and W_V")
        self.check()

    def rows(self, name: str) -> Float[Tensor, "n d"] | None:
        """Return vectors, one for each token."""
        found = self.array(name)
        return found if found is None or not self.columns else found.T.contiguous()

    def matrix(self, name: str) -> Float[Tensor, "out features"] | None:
        """Return a matrix as it is applied to columns."""
        found = self.array(name)
        return found if found is None or self.columns else found.T.contiguous()

    def array(self, name: str) -> Float[Tensor, "n d"] | None:
        rows: Matrix = getattr(self.numbers, name)
        if not rows:
            return None
        if len({len(row) for row in rows}) > 1 or not rows[0]:
            raise UsageError(f"{name}: all rows must have as many numbers, and at least one")
        if not all(math.isfinite(x) for row in rows for x in row):
            raise UsageError(f"{name}: all numbers must be finite")
        return torch.tensor(rows, dtype=torch.float64)

    def projected(self, x: Float[Tensor, "n d"], name: str) -> Float[Tensor, "n out"]:
        W = self.W[name]
        if W is None:
            raise UsageError(f"x needs {name}")
        if W.size(1) != x.size(1):
            raise UsageError(
                f"{name} takes vectors of {W.size(1)} numbers, but they have {x.size(1)} "
                f"(form = {self.numbers.form!r}: tokens are {self.numbers.form})"
            )
        if len(W) % self.numbers.h:
            raise UsageError(
                f"{name} has {len(W)} outputs, which {self.numbers.h} heads cannot share"
            )
        return x @ W.T

    def check(self) -> None:
        """Refuse what does not fit."""
        q, k, v = self.q, self.k, self.v
        if q is None or k is None or v is None:
            return
        if q.size(1) != k.size(1):
            raise UsageError(f"q has {q.size(1)} numbers a token, k {k.size(1)}: no dot product")
        if len(k) != len(v):
            raise UsageError(f"there are {len(k)} keys, but {len(v)} values")
        if q.size(1) % self.numbers.h or v.size(1) % self.numbers.h:
            raise UsageError(f"{self.numbers.h} heads cannot share q and v of such sizes")
        if self.numbers.mask == "causal" and len(q) != len(k):
            raise UsageError("mask = 'causal' needs as many queries as keys")
        if wrong := [j for j in self.numbers.padding if not 1 <= j <= len(k)]:
            raise UsageError(f"padding: there is no key {wrong[0]}; they count from 1 to {len(k)}")
        W = self.W["W_O"]
        if W is not None and W.size(1) != v.size(1):
            raise UsageError(f"W_O takes {W.size(1)} numbers, but all heads give {v.size(1)}")

    @property
    def kind(self) -> Kind:
        """What attention of this form is called in a model."""
        if self.numbers.mask == "causal":
            return "decoder_self"
        return "cross" if self.memory is not self.x else "encoder_self"

    def names(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Return tokens for queries and keys."""

        def tokens(given: list[str], count: int) -> list[dict[str, Any]]:
            if given and len(given) != count:
                raise UsageError(f"{len(given)} names for {count} tokens")
            names = given or [str(i + 1) for i in range(count)]
            return [{"id": i, "text": name, "special": False} for i, name in enumerate(names)]

        some = self.q if self.q is not None else torch.empty(len(self.numbers.layer_norm), 0)
        keys = some if self.k is None else self.k
        same = len(some) == len(keys)
        given = self.numbers.tokens
        return tokens(given, len(some)), tokens(
            self.numbers.keys or (given if same else []), len(keys)
        )

    def hidden(self) -> Tensor:
        """Say which keys each query may see, as `Head.hidden` does."""
        assert self.q is not None and self.k is not None
        hidden = torch.full((len(self.q), len(self.k)), VISIBLE)
        hidden[:, [j - 1 for j in self.numbers.padding]] = PADDING
        if self.numbers.mask == "causal":
            hidden[torch.ones_like(hidden, dtype=torch.bool).triu(1)] = FUTURE
        return hidden

    def split(self, x: Float[Tensor, "n joined"]) -> Float[Tensor, "1 h n d"]:
        return x.unflatten(1, (self.numbers.h, -1)).transpose(0, 1)[None]

    def head(self) -> Head:
        """Follow eq. 1 for the chosen head, by the functions that models use."""
        assert self.q is not None and self.k is not None and self.v is not None
        Q, K, V = (self.split(x) for x in (self.q, self.k, self.v))
        hidden, at = self.hidden(), self.numbers.head - 1
        mask = (hidden == VISIBLE)[None, None]
        s, alpha = scores(Q, K), masked_softmax(scores(Q, K), mask)
        q, k, v = Q[0, at], K[0, at], V[0, at]
        return Head(q, k, v, q @ k.T, s[0, at], hidden, alpha[0, at], (alpha @ V)[0, at])

    def stations(self, one: Head | None) -> Stations:
        """Return all stations that the numbers are enough for."""
        numbers, at = self.numbers, self.numbers.head - 1
        concat = attended = total = None
        norm = None
        if one is not None and self.q is not None and self.k is not None and self.v is not None:
            Q, K, V = (self.split(x) for x in (self.q, self.k, self.v))
            mask = (one.hidden == VISIBLE)[None, None]
            concat = attention(Q, K, V, mask)[0].transpose(0, 1).flatten(1)
            W_O = self.W["W_O"]
            attended = None if W_O is None else concat @ W_O.T
            if attended is not None and self.x is not None and attended.shape == self.x.shape:
                total = self.x + attended
        if numbers.layer_norm:
            norm = self.normalised(torch.tensor(numbers.layer_norm, dtype=torch.float64))
        elif total is not None:
            norm = self.normalised(total)

        def part(name: str, whole: bool = False) -> Projection | None:
            W = self.W[name]
            if W is None:
                return None
            return Projection(W if whole else W.chunk(numbers.h)[at], None)

        return Stations(
            kind=self.kind,
            layer=0,
            head=at,
            h=numbers.h,
            embedded=None,
            x=self.x,
            norm_before=None,
            input=self.x,
            memory=self.memory,
            W_Q=part("W_Q"),
            W_K=part("W_K"),
            W_V=part("W_V"),
            one=one,
            normaliser="softmax",
            concat=concat,
            W_O=part("W_O", whole=True),
            attended=attended,
            sum=total,
            norm_after=norm,
            out=None if norm is None else norm.output,
            feed_forward=None,
        )

    def normalised(self, x: Float[Tensor, "n d"]) -> Normalised:
        """Normalise vectors by the model's own LayerNorm."""
        numbers, d = self.numbers, x.size(1)
        for name in ("gain", "bias"):
            if getattr(numbers, name) and len(getattr(numbers, name)) != d:
                raise UsageError(f"{name} needs {d} numbers, as the vectors that are normalised")
        norm = LayerNorm(d, eps=numbers.epsilon, dtype=torch.float64).requires_grad_(False)
        if numbers.gain:
            norm.weight.copy_(torch.tensor(numbers.gain, dtype=torch.float64))
        if numbers.bias:
            norm.bias.copy_(torch.tensor(numbers.bias, dtype=torch.float64))
        mean, variance = x.mean(-1), x.var(-1, correction=0)
        output = norm(x[None])[0]
        return Normalised(
            "layer", mean, variance, numbers.epsilon, norm.weight, norm.bias, x, output
        )
