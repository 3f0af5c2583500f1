"""Going on from a model that is there: what stays of it, what may change, and what became of it.

Sizes, tokenizers, normalisation, search and scores are the old model's. Its vocabularies may grow
at their ends, parts of it may be frozen. The run keeps in `fine_tuning.json` how the model scored
before the first update and how the final one does, on old test pairs and on the new pairs.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from transduce.config import EOS, STDIN, UNK, Config, FineTuningConfig, Settings, merge, parse
from transduce.data.building import Given
from transduce.data.readers import paths_of, read_pairs, sources
from transduce.data.tokenizer import SentencePieceTokenizer, Tokenizer
from transduce.decoding.translator import Translator, load, pick_device, translator_of
from transduce.errors import TransduceError, UsageError, did_you_mean
from transduce.evaluation.metrics import Score, is_better
from transduce.model import Transformer
from transduce.model_folder import (
    CHECKPOINTS,
    find_model,
    load_model,
    set_weights,
    weights,
    write_file,
)

SCORES = "fine_tuning.json"
FREE = {
    "model": {"P_drop", "attention_dropout", "activation_dropout"},
    "tokenizer": {"sampling", "symbols"},
}
"""What is no shape and does not decide how text was cut (new symbols: if vocabularies grow)."""

Tokenizers = tuple[Tokenizer, Tokenizer]
Scores = Mapping[str, Mapping[str, Score]]
"""What a model reaches, by the names of the pairs and of the metrics."""
Measure = Callable[[Translator], Scores]
Say = Callable[[str], None]


@dataclass(frozen=True)
class Start:
    """The model that training starts from: the [fine_tuning] table, and what the model says."""

    tuning: FineTuningConfig
    folder: Path
    config: Config

    def over(self, user: Settings) -> Settings:
        """Return what the old model decides, and over it what the user does.

        Raises:
            UsageError: naming the key, if the user wants something else than the old model has.
        """
        old, sizes = self.config, {"source_vocabulary", "target_vocabulary", "joint_vocabulary"}
        fixed: Settings = {
            "model": old.model.model_dump(exclude=sizes),
            "tokenizer": old.tokenizer.model_dump(exclude_none=True),
            "data": {"normalization": old.data.normalization},
        }
        if old.preset is not None:
            fixed["preset"] = old.preset
        asked = parse(merge(fixed, user), "the recipe")
        for key, before in _flat(old):
            section, _, name = key.partition(".")
            if section not in fixed or name in sizes or name in FREE.get(section, ()):
                continue
            if section == "data" and name != "normalization":
                continue
            if (now := dict(_flat(asked))[key]) != before:
                raise UsageError(
                    f"{key} is {now!r} in the recipe, its preset or its profile, but {before!r} in "
                    f"{self.folder}, which training starts from: leave it out"
                )
        symbols = [*old.tokenizer.symbols, *asked.tokenizer.symbols]
        return merge(fixed, user, {"tokenizer": {"symbols": list(dict.fromkeys(symbols))}})

    @property
    def usual(self) -> Settings:
        """Search and scores: as the old model had them, unless something else is asked for."""
        return self.config.model_dump(include={"decoding", "evaluation"})

    def given(self, asked: Config) -> Given:
        """Return the tokenizers that a corpus is to be encoded with.

        Raises:
            UsageError: if it has tags or symbols that they lack, or they cannot grow.
        """
        old = self.config.tokenizer
        origins = [
            source
            for pairs in (asked.data.train, asked.data.valid, asked.data.test)
            if pairs
            for source in sources(pairs, asked.data)
        ]
        wanted = {*asked.tokenizer.symbols, *(source.tag for source in origins)} - {""}
        new = sorted(wanted - set(old.symbols))
        if new and self.tuning.grow is False:
            raise UsageError(
                f"the vocabularies of {self.folder} have no pieces for the tags or symbols "
                f"{', '.join(new)}: set fine_tuning.grow = true"
            )
        kinds = {old.kind} if old.joint else {s.kind or old.kind for s in (old.source, old.target)}
        if not new and self.tuning.grow is not False and kinds == {"byte"}:
            raise UsageError(
                f"fine_tuning.grow: the vocabularies of {self.folder} are bytes, which spell every "
                "text; only new tags and tokenizer.symbols can be added to them"
            )
        return Given(self.folder, self.tuning.grow)


def _flat(config: Config) -> Iterator[tuple[str, Any]]:
    """Yield the keys of a configuration in dotted form, with their values."""

    def walk(table: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
        for key, value in table.items():
            if isinstance(value, dict):
                yield from walk(value, f"{prefix}{key}.")
            else:
                yield prefix + key, value

    return walk(config.model_dump(), "")


def start_of(user: Settings) -> Start | None:
    """Return the model that a user's settings tell training to start from, if they do.

    Everything that could fail later is looked at here.

    Raises:
        TransduceError: if it is no model folder, or a file of it or the old test is broken.
        UsageError: if it has no such parts as are to be frozen, or other settings are wrong.
    """
    tables = {name: user.get(name, {}) for name in ("fine_tuning", "data")}
    asked = parse(tables, "the recipe")
    tuning = asked.fine_tuning
    if not tuning.init_from:
        if tuning != FineTuningConfig():
            raise UsageError("[fine_tuning] needs init_from: the model folder to start from")
        return None
    try:
        config, model, tokenizers = load_model(Path(tuning.init_from))
    except TransduceError as error:
        raise type(error)(f"fine_tuning.init_from: {error}") from None
    shared = config.model.joint_vocabulary and not config.tokenizer.joint
    if tuning.grow is not False and (shared or any(map(has_rules, tokenizers))):
        raise UsageError(
            f"fine_tuning.grow: the vocabularies of {tuning.init_from} were imported, with rules "
            "of their own for text or shared by two tokenizers; they cannot grow"
        )
    frozen_parameters(model, tuning.frozen)
    if tuning.old_test:
        found = sources(tuning.old_test, asked.data)
        if any(STDIN in paths_of(source) for source in found):
            raise UsageError("fine_tuning.old_test cannot be standard input: it is read twice")
        if next(read_pairs(found), None) is None:
            raise TransduceError("fine_tuning.old_test holds no pairs")
    return Start(tuning, find_model(Path(tuning.init_from)), config)


def has_rules(tokenizer: Tokenizer) -> bool:
    """Say whether a tokenizer has rules of its own for characters and spaces."""
    return isinstance(tokenizer, SentencePieceTokenizer) and tokenizer.has_rules


def begin(model: Transformer, config: Config, tokenizers: Tokenizers, run: Path) -> None:
    """Give a model the weights to start from, unless the run has its own, and freeze its parts.

    Raises:
        TransduceError: if the old model is not there any more, or is another one now.
        UsageError: if new pieces could not be learnt.
    """
    frozen = frozen_parameters(model, config.fine_tuning.frozen)
    if not any((run / CHECKPOINTS).glob("step-*")):
        path = Path(config.fine_tuning.init_from)
        _, old, old_tokenizers = load_model(path)
        before = weights(old)
        tensors = grown(before, old_tokenizers, tokenizers, path)
        for name in frozen:
            if len(tensors[name]) > len(before[name]):
                raise UsageError(
                    f"fine_tuning.frozen: {name} has rows for new pieces, which could not be "
                    "learnt; take it out, or set fine_tuning.grow = false"
                )
        set_weights(model, tensors, path)
    for parameter in frozen.values():
        parameter.requires_grad_(False)


def frozen_parameters(model: Transformer, parts: list[str]) -> dict[str, nn.Parameter]:
    """Return the parameters of some parts of a model, by the names they are stored under.

    Raises:
        UsageError: naming the nearest part if there is none of that name, or if nothing would be
            left to learn.
    """
    named = dict(model.named_parameters(remove_duplicate=False))  # tied ones under all names
    known = {name.rsplit(".", cut)[0] for name in named for cut in range(name.count(".") + 1)}
    chosen: set[nn.Parameter] = set()
    for part in parts:
        prefixes = ["source_embedding", "target_embedding"] if part == "embeddings" else [part]
        if not known.issuperset(prefixes):
            raise UsageError(
                f"fine_tuning.frozen: the model has no part {part!r}"
                f"{did_you_mean(part, known | {'embeddings'})}"
            )
        chosen |= {
            parameter
            for name, parameter in named.items()
            if any(name == prefix or name.startswith(f"{prefix}.") for prefix in prefixes)
        }
    if chosen.issuperset(named.values()):
        raise UsageError("fine_tuning.frozen: nothing would be left to learn")
    return {name: p for name, p in model.named_parameters() if p in chosen}


def grown(
    tensors: Mapping[str, Tensor], old: Tokenizers, new: Tokenizers, origin: Path
) -> dict[str, Tensor]:
    """Return weights with rows for the pieces that vocabularies have grown by.

    A new row is the mean of the rows of those pieces that the old vocabulary would have spelled
    the new piece with; where it could not, of all: then no new piece is likelier than an average
    one.

    Raises:
        TransduceError: if a new vocabulary does not begin with the old one.
    """
    result = dict(tensors)
    for name, side in (("source_embedding", 0), ("target_embedding", 1), ("output", 1)):
        before, after = old[side], new[side]
        size = len(before)
        if len(after) < size or after.pieces(range(size)) != before.pieces(range(size)):
            raise TransduceError(f"{origin} has other vocabularies now than when the run began")
        spelled = [before.parts(piece) for piece in after.pieces(range(size, len(after)))]
        for key in (f"{name}.weight", f"{name}.bias"):
            table = tensors.get(key)
            if table is None:  # tied to another one, or there is no bias
                continue
            rows = [
                table[parts] if parts and UNK not in parts else table[EOS + 1 :]
                for parts in spelled
            ]
            means = [known.mean(dim=0, keepdim=True) for known in rows]
            result[key] = torch.cat([table, *means])
    return result


def score_before(
    config: Config, run: Path, tokenizers: Tokenizers, measure: Measure, say: Say
) -> None:
    """Score the untouched model and write the scores down, unless that was done before."""
    if _stored(run):
        return
    origin = config.fine_tuning.init_from
    try:
        _, model, old = load_model(Path(origin))
    except TransduceError as error:
        say(f"how the model scored untouched is not known: {error}")
        return
    say(f"fine-tuning the model of {origin}; first its scores as it is")
    joint = tokenizers[0] is tokenizers[1]
    for name, before, after in zip(("source", "target"), old, tokenizers, strict=True):
        if pieces := after.pieces(range(len(before), len(after))):
            shown = " ".join(pieces[:20]) + (" ..." if len(pieces) > 20 else "")
            say(f"{'joint' if joint else name} vocabulary: {len(pieces):,} new pieces: {shown}")
        if joint:
            break
    translator = translator_of(model.to(pick_device(config.device)), old, config.decoding)
    _store(run, {"init_from": origin, "before": _plain(measure(translator))})


def score_after(config: Config, run: Path, measure: Measure, say: Say) -> None:
    """Score the run's final model, write the scores down, and say what became better or worse."""
    stored = _stored(run)
    if not stored:
        return
    scores = measure(load(run, device=config.device))
    signatures = {metric: score.signature for of in scores.values() for metric, score in of.items()}
    _store(run, stored | {"after": _plain(scores), "signatures": signatures})
    for line in changes(run):
        say(line)


def changes(run: Path) -> Iterator[str]:
    """Yield what became better or worse, as far as a run has it written down."""
    stored = _stored(run)
    for pairs, found in stored.get("after", {}).items():
        for metric, after in found.items():
            before = stored["before"].get(pairs, {}).get(metric)
            if before is not None:
                yield f"{pairs}: {metric} {change(metric, before, after)}"


def change(metric: str, before: float, after: float) -> str:
    """Return how a score changed, in words.

    >>> change("bleu", 31.2, 29.9)
    '31.20 before, 29.90 after (-1.30, worse)'
    """
    difference = f"{after - before:+.2f}"
    if float(difference) == 0.0:
        how = "no change"
    else:
        how = f"{difference}, {'better' if is_better(metric, after, before) else 'worse'}"
    return f"{before:.2f} before, {after:.2f} after ({how})"


def _plain(scores: Scores) -> dict[str, dict[str, float]]:
    return {
        pairs: {metric: score.score for metric, score in found.items()}
        for pairs, found in scores.items()
    }


def _stored(run: Path) -> dict[str, Any]:
    """Return what is written down; nothing if the file is not there or damaged."""
    try:
        stored = json.loads((run / SCORES).read_text(encoding="utf-8"))
        return dict(stored) if stored["before"] else {}
    except (OSError, ValueError, TypeError, KeyError):
        return {}


def _store(run: Path, record: Mapping[str, Any]) -> None:
    write_file(run / SCORES, (json.dumps(record, indent=1, ensure_ascii=False) + "\n").encode())
