"""A shortlist for a model, learnt from pairs, and what it is worth."""

import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path

from transduce.config import Config, Settings, merge, parse
from transduce.data.progress import Counting
from transduce.data.readers import read_pairs
from transduce.data.tokenizer import Tokenizer
from transduce.decoding.choosing import choose
from transduce.decoding.translator import opened
from transduce.evaluating import Items
from transduce.evaluation.metrics import evaluate
from transduce.exporting.shortlist import Pair, Shortlist, learn
from transduce.model_folder import find_model, load_config, load_settings

Say = Callable[[str], None]
CHUNK = 10_000
ASIDE, MOST_ASIDE = 100, 1_000
"""Every so manieth pair is not learnt from but asked of, at most so many."""


def shortlist(
    model: Path,
    given: Sequence[str],
    each: int,
    always: int,
    asked: Items | None,
    settings: Settings,
    say: Say,
) -> Shortlist:
    """Learn a shortlist, write it into the model folder, and say how good it is.

    Args:
        model: a model folder or a run.
        given: one file, or two aligned ones with pairs: best those of the training.
        each: target pieces that a source piece allows, at most, beside itself.
        always: the most frequent target pieces, which are allowed everywhere.
        asked: what is translated with it and without it.
        settings: laid over those of the model.
        say: is told.

    Raises:
        TransduceError: if something cannot be read or written.
        UsageError: as `exporting.shortlist.learn` does, or if ctranslate2 cannot do what is asked
            for (with `asked`).
    """
    folder = find_model(model)
    config = parse(merge(load_config(folder).model_dump(), settings), "the settings")
    _, tokenizers = load_settings(folder)
    source, target = (it.pieces(range(len(it))) for it in tokenizers)
    held: list[Pair] = []
    with Counting("learning", "pairs") as progress:
        stream = encoded(given, config, tokenizers, progress.advance)

        def to_learn() -> Iterator[Pair]:
            for number, pair in enumerate(stream, start=1):
                if number % ASIDE == 0 and len(held) < MOST_ASIDE:
                    held.append(pair)
                else:
                    yield pair

        found = learn(to_learn(), source, target, each, always)
    found.save(folder)
    sizes = [len(found.allowed(src)) for src, _ in held]
    if held:
        rate = coverage(found, held)
        say(
            f"of {len(held):,} pairs that were kept aside, {rate:.1%} of the target pieces are "
            f"allowed; a sentence allows {sum(sizes) / len(sizes):,.0f} of {len(target):,}"
        )
    if asked is not None:
        worth(model, settings, asked, say)
    say("to translate with it: --set decoding.shortlist=true")
    return found


def encoded(
    given: Sequence[str],
    config: Config,
    tokenizers: tuple[Tokenizer, Tokenizer],
    tell: Callable[[int], None],
) -> Iterator[Pair]:
    """Yield the pieces of pairs that have some on both sides."""
    stream = read_pairs(given[0] if len(given) == 1 else list(given), config.data)
    while some := list(islice(stream, CHUNK)):
        sources = tokenizers[0].encode_lines([pair.src for pair in some])
        targets = tokenizers[1].encode_lines([pair.tgt for pair in some])
        yield from (pair for pair in zip(sources, targets, strict=True) if all(pair))
        tell(len(some))


def coverage(found: Shortlist, pairs: Sequence[Pair]) -> float:
    """Return the share of target pieces that their own sources allow."""
    there = total = 0
    for src, tgt in pairs:
        allowed = found.allowed(src)
        there += sum(id_ in allowed for id_ in tgt)
        total += len(tgt)
    return there / max(1, total)


def worth(model: Path, settings: Settings, asked: Items, say: Say) -> None:
    """Translate without the shortlist and with it; say the scores and the times."""
    fast: Settings = {"decoding": {"engine": "ctranslate2", "precision": "auto"}}
    for used in (False, True):
        changes = merge(merge(fast, settings), {"decoding": {"shortlist": used}})
        choice = choose([model], changes)
        config, translator = opened([model], merge(changes, choice.settings))
        translator.translate(asked.sources[:100], detail="text")  # memory is touched, caches filled
        begin = time.monotonic()
        stream = translator.translate_stream(asked.sources, detail="text")
        outputs = [translation.text for translation in stream]
        seconds = time.monotonic() - begin  # without what scoring takes
        names, tokenize = config.evaluation.metrics, config.evaluation.bleu_tokenize
        scores = evaluate(outputs, asked.references, names, tokenize)
        figures = ", ".join(f"{name} {score.score:.2f}" for name, score in scores.items())
        say(
            f"{'with' if used else 'without'} it: {figures}; {len(asked.sources):,} sentences in "
            f"{seconds:.2f} s ({choice.engine}, {choice.precision})"
        )
