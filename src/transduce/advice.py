"""Settings that do not fit each other or the data, before hours are spent on them.

Each note says what was found, with numbers, and what to do. The plain choices of `train` on a
corpus of some thousands of pairs give none.
"""

from collections.abc import Iterator

import torch

from transduce.config import Config
from transduce.data.corpus import Corpus
from transduce.model import Transformer
from transduce.training.optimizer import learning_rate, paper_rate

HIGH = {"post": 2.0, "pre": 5.0}
"""A peak rate is unusual from so many times the paper's for the same width, by norm place."""
UPDATES_OF_A_PASS = 20
PASSES = (3, 200)
"""The fewest and the most passes over the data that are usual."""
OFTEN = 5
"""How often a piece should be seen on average."""
VALIDATION_PAIRS = 100
UNKNOWN = 0.01
"""Share of unknown pieces that deserves a word."""
PARAMETERS_PER_TOKEN = 50


def advice(config: Config, corpus: Corpus) -> Iterator[str]:
    """Yield a sentence for each setting of a run that does not fit the others or the data."""
    yield from of_the_rate(config)
    yield from of_the_length(config, corpus)
    if not config.fine_tuning.init_from:  # else these came with the model
        yield from of_the_vocabulary(corpus)
        yield from of_the_size(config, corpus)
    yield from of_unknown_pieces(corpus)
    yield from of_validation(config, corpus)


def of_the_rate(config: Config) -> Iterator[str]:
    """Look at warm-up and peak of the learning rate."""
    training, d_model, place = config.training, config.model.d_model, config.model.norm_place
    if training.warmup_steps > training.steps / 2:
        yield (
            f"the rate rises during the first {training.warmup_steps:,} of {training.steps:,} "
            f"updates: training.warmup_steps = {max(1, training.steps // 20)} (5 %) leaves time to "
            "learn at a falling rate"
        )
    peak = learning_rate(min(training.warmup_steps, training.steps), training, d_model)
    usual = paper_rate(4000, d_model, 4000)
    if peak > HIGH[place] * usual:
        knob = "factor" if training.schedule == "paper" else "learning_rate"
        other = ', or model.norm_place = "pre"' if place == "post" else ""
        yield (
            f"a peak rate of {peak:.1e} is high for d_model {d_model} with the norm "
            f"{'after' if place == 'post' else 'before'} the sub-layer (the paper's is "
            f"{usual:.1e}): if the loss rises or stands still, lower training.{knob}{other}"
        )


def of_the_length(config: Config, corpus: Corpus) -> Iterator[str]:
    """Look at the size of an update, and at how often the data is gone through."""
    training, tokens = config.training, corpus.manifest["train"]["target_tokens"]
    updates = tokens / training.tokens
    if updates < UPDATES_OF_A_PASS:
        yield (
            f"{training.tokens:,} tokens an update are much for {tokens:,} target tokens: a pass "
            f"over the data has only {max(1, round(updates))} updates; training.tokens = "
            f"{max(1, tokens // UPDATES_OF_A_PASS)} gives {UPDATES_OF_A_PASS}"
        )
    passes, (few, many) = training.steps / updates, PASSES
    if passes < few:
        yield (
            f"{training.steps:,} updates go through the data only {passes:.1f} times: "
            f"training.steps = {round(few * updates)} makes it {few}"
        )
    if passes > many and not training.patience and training.stop_at_score is None:
        yield (
            f"{training.steps:,} updates go through the data {passes:,.0f} times, and the model "
            "will know it by heart: lower training.steps, or let training.patience = 5 end it"
        )
    counts = corpus.report()["parts"]["train"]["tokens"]
    longest = {side: counts[side]["lengths"]["max"] + 1 for side in ("source", "target")}
    size = max(longest["target"], -(-longest["source"] // 2))
    each = training.tokens // training.accumulation
    if size > each:
        yield (
            f"the longest training pair (source {longest['source']:,}, target "
            f"{longest['target']:,} pieces) is larger than a whole batch of {each:,} tokens, and "
            "weighs as much as one: raise training.tokens, or lower data.max_length"
        )


def of_the_vocabulary(corpus: Corpus) -> Iterator[str]:
    """Look at whether the data is enough to learn the pieces."""
    counts, tokenizer = corpus.report()["parts"]["train"]["tokens"], corpus.tokenizer()
    kinds = {side: getattr(tokenizer, side).kind or tokenizer.kind for side in ("source", "target")}
    groups = [("source", "target")] if tokenizer.joint else [("source",), ("target",)]
    for sides in groups:
        kind = kinds[sides[0]]
        if kind == "byte":
            continue
        spelled = 256 if tokenizer.byte_fallback and kind != "word" else 0
        size = counts[sides[0]]["vocabulary"] - spelled
        # Of a joint vocabulary, no more than the sum of what the sides use is in use.
        used = min(size, sum(counts[side]["used"] for side in sides))
        often = sum(counts[side]["tokens"] for side in sides) / size
        if often < OFTEN or used < size / 2:
            name = "joint" if tokenizer.joint else sides[0]
            yield (
                f"the {name} vocabulary of {size:,} pieces is large for this data, in which a "
                f"piece occurs {often:.1f} times on average and {size - used:,} never: a lower "
                "tokenizer.vocabulary has pieces that can be learnt"
            )


def of_unknown_pieces(corpus: Corpus) -> Iterator[str]:
    """Look at how much of the text no piece stands for."""
    parts = corpus.report()["parts"]
    for part, whose in (("train", "training"), ("valid", "validation")):
        for side in ("source", "target"):
            found = (parts.get(part, {}).get("tokens") or {}).get(side)
            if found and found["unknown"] > UNKNOWN * found["tokens"]:
                yield (
                    f"{found['unknown'] / found['tokens']:.1%} of the {whose} {side}s' pieces are "
                    "unknown: tokenizer.byte_fallback = true, or tokenizer.character_coverage = "
                    "1.0, or a larger tokenizer.vocabulary makes fewer"
                )


def of_the_size(config: Config, corpus: Corpus) -> Iterator[str]:
    """Look at whether the data is enough for so many parameters."""
    with torch.device("meta"):
        model = Transformer(config.model)
    count = sum(p.numel() for stack in (model.encoder, model.decoder) for p in stack.parameters())
    tokens = corpus.manifest["train"]["target_tokens"]
    if count > PARAMETERS_PER_TOKEN * tokens:
        yield (
            f"{count:,} parameters outside the embeddings are {count / tokens:,.0f} for each of "
            f"the {tokens:,} target tokens there are to learn from: the model may know them by "
            "heart; take a smaller preset, or more pairs"
        )


def of_validation(config: Config, corpus: Corpus) -> Iterator[str]:
    """Look at whether validation can tell one model from another."""
    training, pairs = config.training, corpus.manifest["valid"]["pairs"]
    if pairs < VALIDATION_PAIRS:
        yield (
            f"scores on {pairs:,} validation {'pair' if pairs == 1 else 'pairs'} are mostly "
            f"chance: hold out {VALIDATION_PAIRS} or more (`transduce data split`)"
        )
    if training.validate_every > training.steps:
        yield (
            f"training.validate_every = {training.validate_every:,} is more than the "
            f"{training.steps:,} updates: the only validation will be the one at the end; "
            f"{max(1, training.steps // 15)} makes fifteen"
        )
