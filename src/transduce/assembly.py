"""From what was asked for to a trainer that can start: choices, corpus, model, validation."""

import fcntl
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from transduce import choices, fine_tuning, fitting, pricing
from transduce.config import Config, DataConfig, Settings, departures, merge, overlay, parse
from transduce.data.batches import Indices, Sample
from transduce.data.corpus import Corpus, Ids, load_tokenizers
from transduce.data.report import printed
from transduce.data.text import is_blank
from transduce.data.tokenizer import Tokenizer
from transduce.decoding.ctranslate2 import obstacles
from transduce.decoding.translator import pick_device, translator_of
from transduce.errors import TransduceError, UsageError
from transduce.evaluating import Items, items, scored
from transduce.evaluation.metrics import bleu_scorer, is_better
from transduce.model import Transformer
from transduce.model_folder import (
    CHECKPOINTS,
    CONFIG,
    CORPUS,
    METRICS,
    MODEL,
    WEIGHTS,
    load_config,
    save_model,
    weights,
)
from transduce.preparing import absolute, prepare_corpus
from transduce.training.distributed import ALONE, Ranks
from transduce.training.machine import memory_of, pick_precision
from transduce.training.trainer import Trainer, Validation

Say = Callable[[str], None]
LOCK = ".lock"
"""The file of a run that is locked by the process that trains."""
KEPT = 8
"""Sentences whose outputs are kept at each validation."""


@contextmanager
def lock(run: Path) -> Iterator[None]:
    """Hold a run for this process alone; the lock dies with the process.

    Raises:
        TransduceError: if another process has it, or the folder cannot be made.
    """
    try:
        run.mkdir(parents=True, exist_ok=True)
        file = open(run / LOCK, "w")  # noqa: SIM115 (held open as long as the lock)
    except OSError as error:
        raise TransduceError(f"cannot write {run}: {error.strerror}") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise TransduceError(f"another process is training in {run}") from None
        yield


def is_training(run: Path) -> bool:
    """Say whether a process holds a run just now."""
    try:
        with open(run / LOCK) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def begun(
    settings: Settings, run: Path, resume: bool, assignments: list[str], say: Say
) -> tuple[Config, Corpus]:
    """Return the configuration and the corpus of a run that is there, or of a new one.

    Raises:
        UsageError: if a run is there and is not to be resumed, or there are parts of one.
    """
    if (run / CONFIG).exists() and not resume:
        raise UsageError(
            f"{run} already holds a run: continue it with --resume, or give another --out"
        )
    if (run / CONFIG).exists():
        config = changed(load_config(run), assignments)
        say(f"resuming the run in {run}")
        return config, Corpus(corpus_folder(config.data, run))
    traces = [run / METRICS, run / MODEL / WEIGHTS, *(run / CHECKPOINTS).glob("step-*")]
    if any(trace.exists() for trace in traces):
        raise UsageError(f"{run} holds parts of another run: give another --out")
    return first_start(overlay(settings, assignments), run, say)


def can_be_decoded(settings: Settings) -> None:
    """Say so now if the fast engine, which a recipe asks for, will not know what comes of it.

    Raises:
        UsageError: with the reason.
    """
    if reasons := obstacles(parse(settings, "the recipe")):
        raise UsageError(f"decoding.engine = 'ctranslate2': {reasons[0]}")


def corpus_folder(data: DataConfig, run: Path) -> Path:
    """Return where the corpus of a run lies."""
    return Path(data.corpus) if data.corpus else run / CORPUS


def first_start(user: Settings, run: Path, say: Say) -> tuple[Config, Corpus]:
    """Look at the corpus, choose what the user left open, and prepare the corpus."""
    user = absolute(user)
    data = user.get("data", {})
    for part in ("train", "valid"):
        if not data.get(part):
            raise UsageError(f"no {part} pairs: give --{part} FILE, or data.{part} in the recipe")
    asked = user.get("evaluation", {}).get("bleu_tokenize")
    if asked is not None:
        bleu_scorer(asked)  # now, not in the first validation
    usual: Settings = {}
    joint = None  # unless a model says so that is there, vocabularies are as joint as tokenizers
    if start := fine_tuning.start_of(user):
        user, usual = start.over(user), start.usual
        joint = start.config.model.joint_vocabulary
    if user.get("decoding", {}).get("engine") == "ctranslate2":
        asked_for = merge(usual, user)
        can_be_decoded({part: asked_for.get(part, {}) for part in ("model", "decoding")})
    folder = Path(data.get("corpus") or run / CORPUS)
    corpus = prepare_corpus(user, folder, say)
    from_text = choices.from_text(corpus.survey(), merge(usual, user))
    from_text.settings = merge(from_text.settings, usual)
    vocabularies = {
        "source_vocabulary": corpus.manifest["source_vocabulary"],
        "target_vocabulary": corpus.manifest["target_vocabulary"],
        "joint_vocabulary": corpus.tokenizer().joint if joint is None else joint,
    }
    known = {"tokenizer": corpus.manifest["tokenizer"], "model": vocabularies}
    config = choices.resolved(from_text.settings, merge(user, known))
    from_tokens = choices.from_tokens(corpus, config, user)
    chosen = merge(from_text.settings, from_tokens.settings)
    config = choices.resolved(chosen, merge(user, known))
    device, width = pick_device(config.device), config.model.d_model
    precision = pick_precision(config.training.precision, device, width)
    automatic: Settings = {"training": {"precision": precision}}
    config = parse(merge(config.model_dump(), automatic), "the recipe")
    check_lengths(config)
    divided = fitting.divided(config, corpus, user)
    config = parse(merge(config.model_dump(), divided.settings), "the recipe")
    for line in printed(corpus.report()):
        say(line)
    for reason in from_text.reasons + from_tokens.reasons + divided.reasons:
        say(f"chosen: {reason}")
    return config, corpus


def changed(config: Config, assignments: Iterable[str]) -> Config:
    """Apply `--set` to a stored configuration; what the run was built on stays as it is.

    Raises:
        UsageError: if data, tokenizer, model or what it started from would change.
    """
    new = parse(merge(config.model_dump(), absolute(overlay({}, assignments))), "--set")
    for section in ("data", "cleaning", "tokenizer", "model", "fine_tuning"):
        if getattr(new, section) != getattr(config, section):
            raise UsageError(f"[{section}] cannot change while a run is resumed")
    return new


def check_lengths(config: Config) -> None:
    """Refuse a learned position table that is shorter than the training pairs may be."""
    model, longest = config.model, config.data.max_length + 1
    if model.positions == "learned" and model.max_positions < longest:
        raise UsageError(
            f"model.max_positions = {model.max_positions} is too short for training pairs of up to "
            f"{longest - 1} pieces and END: set data.max_length below it"
        )


def check_memory(config: Config) -> None:
    """Refuse a model whose weights, gradients and Adam state cannot fit this machine.

    Raises:
        UsageError: with both sizes.
    """
    need = fitting.model_bytes(config)
    have = memory_of(pick_device(config.device))
    if need > have:
        raise UsageError(
            f"the model needs {need / 2**30:,.0f} GiB for weights, gradients and Adam's state, "
            f"this machine has {have / 2**30:,.0f}: make [model] smaller"
        )


def assemble(
    config: Config, corpus: Corpus, run: Path, ranks: Ranks = ALONE
) -> tuple[Trainer, tuple[Tokenizer, Tokenizer]]:
    """Build the model with its initial weights, and its trainer."""
    device = pick_device(config.device)
    tokenizers = load_tokenizers(corpus.folder, config.tokenizer, config.data.normalization)
    check_memory(config)
    torch.manual_seed(config.training.seed)
    model = Transformer(config.model).to(device)
    if config.fine_tuning.init_from:
        fine_tuning.begin(model, config, tokenizers, run)
    asked = validation_items(corpus, config)
    metric = config.evaluation.metrics[0]

    kept = sampled(asked)

    def validate(model: Transformer) -> Validation:
        translator = translator_of(model, tokenizers, config.decoding)
        scores, outputs = scored(translator, asked, config)
        return Validation(
            {name: score.score for name, score in scores.items()},
            [
                {
                    "source": asked.sources[i],
                    "references": asked.references[i],
                    "output": outputs[i],
                }
                for i in kept
            ],
        )

    def on_best(model: Transformer) -> None:
        save_model(run / MODEL, config, weights(model), tokenizers, card(config))

    trainer = Trainer(
        model,
        corpus,
        config.training,
        run,
        validate,
        lambda score, than: is_better(metric, score, than),
        on_best,
        config.data,
        sampler(corpus, tokenizers, config) if config.tokenizer.sampling else None,
        ranks,
    )
    return trainer, tokenizers


def sampler(corpus: Corpus, tokenizers: tuple[Tokenizer, Tokenizer], config: Config) -> Sample:
    """Return what cuts training pairs into other pieces (BPE-dropout, unigram sampling).

    A pair that would become too long keeps its usual pieces.
    """
    train, rate, longest = corpus.train, config.tokenizer.sampling, config.data.max_length

    def sample(indices: Indices, seed: int) -> list[tuple[Ids, Ids]]:
        texts = [train.text(int(i)) for i in indices]
        src, tgt = (
            tokenizer.sample([pair[side] for pair in texts], rate, seed + side)
            for side, tokenizer in enumerate(tokenizers)
        )
        return [
            (s, t) if max(len(s), len(t)) <= longest else train[int(i)]
            for i, s, t in zip(indices, src, tgt, strict=True)
        ]

    return sample


def validation_items(corpus: Corpus, config: Config, most: int | None = None) -> Items:
    """Return what validation translates, spread over the pairs; or so many of them at most."""
    pairs = [corpus.valid.text(i) for i in range(len(corpus.valid))]
    every = items(
        [src for src, _ in pairs], [tgt for _, tgt in pairs], config.evaluation.references
    )
    most = config.training.validate_sentences if most is None else most
    count = min(len(every.sources), most)
    chosen = [i * len(every.sources) // count for i in range(count)]
    return Items([every.sources[i] for i in chosen], [every.references[i] for i in chosen])


def sampled(asked: Items, count: int = KEPT) -> list[int]:
    """Return some items, from short ones to long ones: of as many parts by length the middles."""
    first: dict[str, int] = {}
    for i, source in enumerate(asked.sources):
        if not is_blank(source):
            first.setdefault(source, i)
    by_length = sorted(first.values(), key=lambda i: len(asked.sources[i]))
    count = min(count, len(by_length))
    return [by_length[(2 * part + 1) * len(by_length) // (2 * count)] for part in range(count)]


def with_measured_steps(config: Config, corpus: Corpus, user: Settings, say: Say) -> Config:
    """Turn `training.minutes`, if given, into `training.steps`, by the speed measured here."""
    minutes = config.training.minutes
    if minutes is None:
        return config
    with TemporaryDirectory() as scratch:
        probe, _ = assemble(config, corpus, Path(scratch))
        speed = pricing.speed_of(probe)
    steps = max(1, int((minutes * 60 - speed.first) / speed.seconds))
    say(f"{speed.seconds * 1000:.0f} ms an update here: {steps:,} updates in {minutes:g} minutes")
    rhythm = choices.with_rhythm(choices.Choices(), steps, config.model.d_model, user)
    for reason in rhythm.reasons:
        say(f"chosen: {reason}")
    settings = merge(config.model_dump(), rhythm.settings, {"training": {"steps": steps}})
    del settings["training"]["minutes"]
    return parse(settings, "the recipe")


def card(config: Config) -> str:
    """Return the README.md of a model folder."""
    model, training = config.model, config.training
    departed = "".join(f"- {line}\n" for line in departures(config)) or "- none\n"
    return f"""# A sequence-to-sequence Transformer

Trained with `transduce` on the pairs of `{config.data.train}`.

- layers {model.N_encoder} + {model.N_decoder}, d_model {model.d_model}, d_ff {model.d_ff}, \
h {model.h}, d_k {model.d_k}, d_v {model.d_v}
- vocabularies: {model.source_vocabulary} source, {model.target_vocabulary} target\
{" (joint)" if model.joint_vocabulary else ""}
- training: at most {training.steps} updates of {training.tokens} target tokens\
{f", from the weights of `{origin}`" if (origin := config.fine_tuning.init_from) else ""}

Departures from "Attention Is All You Need":

{departed}
Use it: `transduce translate FOLDER`, or in Python

```python
import transduce

translator = transduce.load("FOLDER")
print(translator.translate(["..."])[0].text)
```
"""
