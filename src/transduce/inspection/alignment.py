"""Which source word a target word belongs to, read off the decoder's attention to the source.

A translation is given, not searched (forced decoding). The weights between pieces become weights
between words, and these become links. Layers and heads count from 1 here, as people count them;
words count from 0, as in Pharaoh's `i-j`, the source's word first.

The step that produces a token has not seen it: what it attends to is partly what was said and
partly what may come next. The step after it has the token as its *input*, and is more often found
looking at what that translates (Chen et al., 2020, arXiv:2004.14837). `later` reads that one. Of
models trained on millions of pairs, alignment error rates of 16.0 (English-French) and 28.1
(German-English) are published for the step that produces a word, 6.6 and 17.9 for the one after it.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from transduce.data.batches import collate
from transduce.data.text import Pair, is_blank
from transduce.data.tokenizer import Tokenizer
from transduce.decoding.engines import TorchEngine
from transduce.decoding.translator import Translator, by_length
from transduce.errors import UsageError
from transduce.inspection.attention import module_name, recording
from transduce.inspection.words import Word, pieces, words
from transduce.model import Transformer

Units = Literal["words", "pieces"]
Link = tuple[int, int]
"""A word of the source and one of the target, from 0."""
CHUNK = 1_000
"""Pairs of a stream that are read, sorted by length and aligned together."""


# Attention between words ------------------------------------------------------------------------


@torch.inference_mode()
def cross_attention(
    model: Transformer,
    pairs: Sequence[tuple[Sequence[int], Sequence[int]]],
    layers: Sequence[int],
) -> list[Float[Tensor, "layers h q k"]]:
    """Return how the steps of each pair attend to the source, END's row and column last.

    `attention.attention_weights` for some decoder layers alone: long pairs take less memory.

    Args:
        model: in evaluation mode.
        pairs: ids of source and target, without BEGIN and END.
        layers: from 1.
    """
    batch = collate(pairs).to(model.source_embedding.weight.device)
    names = [f"{module_name('cross', layer - 1)}.weights" for layer in layers]
    with recording(model, lambda name, _: name in names) as passed:
        model.states(batch.src, batch.tgt_in)
    weights = torch.stack([passed[name].output.float().cpu() for name in names], dim=1)
    return [
        of_pair[:, :, : len(tgt) + 1, : len(src) + 1]
        for of_pair, (src, tgt) in zip(weights, pairs, strict=True)
    ]


def word_attention(
    weights: Float[Tensor, "*heads q k"],
    source: Sequence[Word],
    target: Sequence[Word],
    later: bool,
) -> Float[Tensor, "*heads t s"]:
    """Return how much each target word attends to each source word.

    The columns of a word's pieces are summed, their rows averaged. What falls on END is left out
    and made up for nowhere: a row sums to the share that fell on words. Weights that need not sum
    to 1 (`attention_normaliser = "relu"`) become shares of their sum first, so that no head has
    more to say than another. A word without pieces attends to nothing, and nothing to it.

    Args:
        weights: rows of the steps and columns of the source pieces, END last.
        source: words.
        target: words.
        later: read the step that has a piece as its input, not the one that produces it.
    """
    total = weights.sum(dim=-1, keepdim=True)
    shares = torch.where(total > 0, weights / total, 0.0)
    columns = _membership(source, weights.size(-1)).to(weights).T
    rows = _membership(target, weights.size(-2)).to(weights).roll(int(later), dims=1)
    rows = rows / rows.sum(dim=1, keepdim=True).clamp(min=1)
    return rows @ shares @ columns


def _membership(words: Sequence[Word], pieces: int) -> Float[Tensor, "words pieces"]:
    """Return 1 where a piece is of a word, else 0."""
    member = torch.zeros(len(words), pieces)
    for row, word in zip(member, words, strict=True):
        row[list(word.pieces)] = 1.0
    return member


def linked(
    attention: Float[Tensor, "*heads t s"], threshold: float | None = None
) -> Bool[Tensor, "*heads t s"]:
    """Say which words are linked: each target word with the one that it attends to most.

    A word that attends to no word is not linked; of equal ones the first is taken. With a
    threshold, it is linked with all that have at least this share of its attention.
    """
    if threshold is not None:
        return attention >= threshold
    most = attention.argmax(dim=-1, keepdim=True)
    return (attention > 0) & torch.zeros_like(attention, dtype=torch.bool).scatter(-1, most, True)


# Pairs ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Choice:
    """Where links are read: a decoder layer and some of its heads, both from 1."""

    layer: int
    heads: tuple[int, ...] = ()
    """The mean of these; none: of all."""
    later: bool = False
    """At the step after the one that produces a word."""

    def __str__(self) -> str:
        named = " and ".join(map(str, self.heads))
        heads = f"head{'s' * (len(self.heads) > 1)} {named}" if named else "mean of all heads"
        return f"layer {self.layer}, {heads}{', one step later' * self.later}"

    def of(self, attention: Float[Tensor, "h t s"]) -> Float[Tensor, "t s"]:
        """Return the mean of the heads, of those of the layer."""
        return (attention[[n - 1 for n in self.heads]] if self.heads else attention).mean(dim=0)


def choose(
    model: Transformer, layer: int | None, heads: Sequence[int] = (), later: bool = False
) -> Choice:
    """Return a choice that the model has; unless a layer is named, the last but one.

    Raises:
        UsageError: if there is no such layer or head.
    """
    N, h = model.config.N_decoder, model.config.h
    layer = max(1, N - 1) if layer is None else layer
    for option, number, there, what in [
        ("--layer", layer, N, "the decoder has {} layers"),
        *(("--heads", head, h, "a layer has {} heads") for head in heads),
    ]:
        if not 1 <= number <= there:
            raise UsageError(f"{option} {number}: {what.format(there)}, counted from 1")
    return Choice(layer, tuple(sorted(set(heads))), later)


@dataclass(frozen=True)
class Prepared:
    """A pair in pieces and words; without pieces where a side is blank."""

    line: int
    ids: tuple[list[int], list[int]]
    source: list[Word]
    target: list[Word]
    cut: tuple[str, ...] = ()
    """The sides that were too long; their last words lack pieces."""

    @property
    def blank(self) -> bool:
        """Whether there is nothing to align."""
        return not all(self.ids)


def prepared(translator: Translator, pairs: Sequence[Pair], units: Units) -> list[Prepared]:
    """Cut pairs into pieces, and find their words (or pieces that count as such)."""
    sources = _sides(translator.source, [pair.src for pair in pairs], units, translator.max_source)
    targets = _sides(translator.target, [pair.tgt for pair in pairs], units, translator.max_source)
    found = []
    for pair, source, target in zip(pairs, sources, targets, strict=True):
        cut = [name for name, side in (("source", source), ("target", target)) if side.cut]
        found.append(
            Prepared(pair.line, (source.ids, target.ids), source.words, target.words, tuple(cut))
        )
    return found


@dataclass(frozen=True)
class _Side:
    ids: list[int]
    words: list[Word]
    cut: bool


def _sides(tokenizer: Tokenizer, texts: Sequence[str], units: Units, limit: int) -> Iterator[_Side]:
    encoded = tokenizer.encode_lines(["" if is_blank(text) else text for text in texts])
    for ids, text in zip(encoded, texts, strict=True):
        own = words(tokenizer, ids, text) if units == "words" else pieces(tokenizer, ids)
        if len(ids) > limit:
            own = [Word(w.text, tuple(place for place in w.pieces if place < limit)) for w in own]
        yield _Side(ids[:limit], own, len(ids) > limit)


def attended(
    translator: Translator, some: Sequence[Prepared], layers: Sequence[int]
) -> Iterator[tuple[int, Float[Tensor, "layers h q k"]]]:
    """Yield the attention of pairs that are not blank, with their numbers; the longest first."""
    model = model_of(translator)
    longer = {i: max(pair.ids, key=len) for i, pair in enumerate(some) if not pair.blank}
    tokens = translator.decoding.batch_tokens or translator.engine.batch_tokens
    for batch in by_length(longer, tokens):
        yield from zip(
            batch, cross_attention(model, [some[i].ids for i in batch], layers), strict=True
        )


def model_of(translator: Translator) -> Transformer:
    """Return the model whose attention can be seen.

    Raises:
        UsageError: if the engine does not show any.
    """
    if not isinstance(translator.engine, TorchEngine):
        raise UsageError(
            "only the engine torch shows its attention: --set decoding.engine=torch, no ensemble"
        )
    return translator.engine.model


@dataclass(frozen=True)
class Aligned:
    """The links of a pair, in the order of the source."""

    pair: Prepared
    links: list[Link]

    def __str__(self) -> str:
        return " ".join(f"{i}-{j}" for i, j in self.links)


def align(
    translator: Translator,
    pairs: Iterable[Pair],
    choice: Choice,
    units: Units = "words",
    threshold: float | None = None,
    tell: Callable[[int], None] = lambda pairs: None,
) -> Iterator[Aligned]:
    """Yield the links of each pair, in order and in bounded memory; none where a side is blank.

    What is longer than `decoding.max_source` pieces is cut, the target as well.

    Args:
        translator: the model; its engine is torch.
        pairs: sources with their translations.
        choice: where links are read.
        units: words between spaces, or pieces.
        threshold: see `linked`.
        tell: told how many more pairs are done, now and then.

    Raises:
        UsageError: if the engine shows no attention.
    """
    pairs = iter(pairs)
    while some := prepared(translator, list(islice(pairs, CHUNK)), units):
        links: list[list[Link]] = [[] for _ in some]
        tell(sum(pair.blank for pair in some))
        for i, weights in attended(translator, some, [choice.layer]):
            source, target = some[i].source, some[i].target
            between = choice.of(word_attention(weights[0], source, target, choice.later))
            there = linked(between, threshold).T.nonzero().tolist()
            links[i] = [(s, t) for s, t in there]
            tell(1)
        yield from map(Aligned, some, links)
