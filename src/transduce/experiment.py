"""A whole experiment: corpus, training with real validation, averaging, a model folder."""

import copy
import fcntl
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import torch

from transduce import choices
from transduce.config import (
    Config,
    DataConfig,
    Settings,
    departures,
    merge,
    overlay,
    parse,
)
from transduce.data.batches import Indices, Sample
from transduce.data.corpus import Corpus, Ids, load_tokenizers
from transduce.data.readers import read_pairs
from transduce.data.report import printed
from transduce.data.text import normalize
from transduce.data.tokenizer import Tokenizer
from transduce.decoding.translator import Translator, pick_device, translator_of
from transduce.errors import TransduceError, UsageError
from transduce.evaluation.metrics import Score, bleu_scorer, by_source, evaluate, is_better
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
    set_weights,
    weights,
    write_file,
)
from transduce.preparing import absolute, prepare_corpus, settings_of
from transduce.training.checkpoint import average_of
from transduce.training.gradients import Gradients
from transduce.training.machine import memory_of, pick_precision, pick_workers
from transduce.training.trainer import Outcome, Trainer

Say = Callable[[str], None]


def train(
    recipe: str | Path | Settings,
    out: str | Path,
    resume: bool = False,
    assignments: Iterable[str] = (),
    say: Say = lambda line: None,
) -> Outcome:
    """Train a model from a recipe; everything is left in the run folder `out`.

    Args:
        recipe: a TOML file, nested settings as such a file holds them, or a prepared corpus.
        out: the run folder; made if it is not there.
        resume: go on with a run that was stopped (or start, if there is none).
        assignments: settings laid over the recipe, as `section.key=value`.
        say: is told what happens and why, a line at a time.

    Returns:
        Why training ended.

    Raises:
        UsageError: if the settings are wrong, or `out` holds a run and `resume` is not given.
        TransduceError: if data cannot be read, or training fails.
    """
    run = Path(out)
    settings = recipe if isinstance(recipe, dict) else settings_of(Path(recipe))
    with lock(run):
        if (run / CONFIG).exists() and not resume:
            raise UsageError(
                f"{run} already holds a run: continue it with --resume, or give another --out"
            )
        if (run / CONFIG).exists():
            config = changed(load_config(run), assignments)
            corpus = Corpus(corpus_folder(config.data, run))
            say(f"resuming the run in {run}")
        else:
            traces = [run / METRICS, run / MODEL / WEIGHTS, *(run / CHECKPOINTS).glob("step-*")]
            if any(trace.exists() for trace in traces):
                raise UsageError(f"{run} holds parts of another run: give another --out")
            config, corpus = first_start(overlay(settings, assignments), run, say)
        trainer, tokenizers = assemble(config, corpus, run)
        if config.training.minutes is not None:
            config = with_measured_steps(config, trainer, overlay(settings, assignments), say)
            trainer, tokenizers = assemble(config, corpus, run)
        write_file(run / CONFIG, config.to_toml().encode())
        if resume and trainer.resume():
            say(f"going on after update {trainer.progress.step:,}")
            if trainer.progress.step >= config.training.steps:
                say("all updates are done; for more, --set training.steps=...")
        describe(config, trainer, say)
        outcome = trainer.train()
        if outcome == "interrupted":
            say(
                f"stopped after update {trainer.progress.step:,}; everything is saved. "
                f"Go on with: transduce train --resume --out {run}"
            )
        else:
            finish(config, run, tokenizers, trainer, say)
        return outcome


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
    folder = Path(data.get("corpus") or run / CORPUS)
    corpus = prepare_corpus(user, folder, say)
    from_text = choices.from_text(corpus.survey(), user)
    vocabularies = {
        "source_vocabulary": corpus.manifest["source_vocabulary"],
        "target_vocabulary": corpus.manifest["target_vocabulary"],
        "joint_vocabulary": corpus.tokenizer().joint,
    }
    known = {"tokenizer": corpus.manifest["tokenizer"], "model": vocabularies}
    config = choices.resolved(from_text.settings, merge(user, known))
    from_tokens = choices.from_tokens(corpus, config, user)
    chosen = merge(from_text.settings, from_tokens.settings)
    config = choices.resolved(chosen, merge(user, known))
    device = pick_device(config.device)
    training = config.training
    width, tokens = config.model.d_model, training.tokens // training.accumulation
    automatic: Settings = {"precision": pick_precision(training.precision, device, width)}
    if "workers" not in user.get("training", {}):
        automatic["workers"] = pick_workers(device, tokens)
    config = parse(merge(config.model_dump(), {"training": automatic}), "the recipe")
    check_lengths(config)
    for line in printed(corpus.report()):
        say(line)
    for reason in from_text.reasons + from_tokens.reasons:
        say(f"chosen: {reason}")
    return config, corpus


def changed(config: Config, assignments: Iterable[str]) -> Config:
    """Apply `--set` to a stored configuration; what the run was built on stays as it is.

    Raises:
        UsageError: if data, tokenizer or model would change.
    """
    new = parse(merge(config.model_dump(), overlay({}, assignments)), "--set")
    for section in ("data", "cleaning", "tokenizer", "model"):
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


def assemble(
    config: Config, corpus: Corpus, run: Path
) -> tuple[Trainer, tuple[Tokenizer, Tokenizer]]:
    """Build the model with its initial weights, and its trainer."""
    device = pick_device(config.device)
    tokenizers = load_tokenizers(corpus.folder, config.tokenizer, config.data.normalization)
    check_memory(config)
    torch.manual_seed(config.training.seed)
    model = Transformer(config.model).to(device)
    sources, references = validation_items(corpus, config)
    metrics = config.evaluation.metrics

    def validate(model: Transformer) -> dict[str, float]:
        translator = translator_of(model, tokenizers, config.decoding)
        outputs = [translation.text for translation in translator.translate(sources)]
        scores = evaluate(outputs, references, metrics, config.evaluation.bleu_tokenize)
        return {name: score.score for name, score in scores.items()}

    def on_best(model: Transformer) -> None:
        save_model(run / MODEL, config, weights(model), tokenizers, card(config))

    trainer = Trainer(
        model,
        corpus,
        config.training,
        run,
        validate,
        lambda score, than: is_better(metrics[0], score, than),
        on_best,
        config.data,
        sampler(corpus, tokenizers, config) if config.tokenizer.sampling else None,
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


def validation_items(corpus: Corpus, config: Config) -> tuple[list[str], list[list[str]]]:
    """Return the sources and references that validation translates, spread over the pairs."""
    pairs = [corpus.valid.text(i) for i in range(len(corpus.valid))]
    sources, references = items(
        [src for src, _ in pairs], [tgt for _, tgt in pairs], config.evaluation.references
    )
    count = min(len(sources), config.training.validate_sentences)
    chosen = [i * len(sources) // count for i in range(count)]
    return [sources[i] for i in chosen], [references[i] for i in chosen]


def items(
    sources: list[str], targets: list[str], references: str
) -> tuple[list[str], list[list[str]]]:
    """Return sources with their references, as [evaluation] references says."""
    if references == "by_source":
        return by_source(sources, targets)
    return sources, [[target] for target in targets]


def evaluate_pairs(
    translator: Translator, config: Config, files: str | list[str]
) -> tuple[dict[str, Score], list[str], list[str], list[list[str]]]:
    """Translate the sources of test pairs and score the outputs; no line is left out.

    Returns:
        Scores by name, the sources, the outputs and the references.
    """
    pairs = list(read_pairs(files, config.data))
    form = config.data.normalization
    sources, references = items(
        [pair.src for pair in pairs],
        [normalize(pair.tgt, form) for pair in pairs],
        config.evaluation.references,
    )
    outputs = [translation.text for translation in translator.translate_stream(sources)]
    scores = evaluate(
        outputs, references, config.evaluation.metrics, config.evaluation.bleu_tokenize
    )
    return scores, sources, outputs, references


def check_memory(config: Config) -> None:
    """Refuse a model whose weights, gradients and Adam state cannot fit this machine.

    Raises:
        UsageError: with both sizes.
    """
    with torch.device("meta"):
        model = Transformer(config.model)
    need = 16 * sum(parameter.numel() for parameter in model.parameters())
    have = memory_of(pick_device(config.device))
    if need > have:
        raise UsageError(
            f"the model needs {need / 2**30:,.0f} GiB for weights, gradients and Adam's state, "
            f"this machine has {have / 2**30:,.0f}: make [model] smaller"
        )


def with_measured_steps(config: Config, trainer: Trainer, user: Settings, say: Say) -> Config:
    """Turn `training.minutes` into `training.steps`, by the speed measured here and now."""
    minutes = config.training.minutes
    assert minutes is not None
    seconds = seconds_per_update(trainer)
    steps = max(1, int(minutes * 60 / seconds))
    say(f"{seconds * 1000:.0f} ms an update here: {steps:,} updates in {minutes:g} minutes")
    rhythm = choices.with_rhythm(choices.Choices(), steps, config.model.d_model, user)
    for reason in rhythm.reasons:
        say(f"chosen: {reason}")
    settings = merge(config.model_dump(), rhythm.settings, {"training": {"steps": steps}})
    del settings["training"]["minutes"]
    return parse(settings, "the recipe")


def seconds_per_update(trainer: Trainer, measure: float = 5.0) -> float:
    """Measure the duration of an update on a copy of the model, for so many seconds."""
    scratch = copy.copy(trainer)
    scratch.model = copy.deepcopy(trainer.model).train()
    scratch.gradients = Gradients(scratch.model, trainer.config)
    scratch.optimizer = torch.optim.Adam(scratch.model.parameters(), lr=0.0)
    times: list[float] = []
    started = time.monotonic()
    while time.monotonic() - started < measure or len(times) < 10:
        for group, _ in scratch.updates_of_epoch():
            before = time.monotonic()
            scratch.update(group)
            times.append(time.monotonic() - before)
            if time.monotonic() - started >= measure and len(times) >= 10:
                break
    settled = times[len(times) // 5 :]  # the first ones touch new memory
    return sum(settled) / len(settled)


def describe(config: Config, trainer: Trainer, say: Say) -> None:
    """Say what is about to be trained."""
    model, training = config.model, config.training
    count = sum(parameter.numel() for parameter in trainer.model.parameters())
    say(
        f"model: {model.N_encoder} + {model.N_decoder} layers, d_model {model.d_model}, "
        f"d_ff {model.d_ff}, h {model.h}, {count:,} parameters; vocabularies "
        f"{model.source_vocabulary:,} and {model.target_vocabulary:,}"
        + (" (joint)" if model.joint_vocabulary else "")
    )
    say(
        f"training: {training.steps:,} updates of at most {training.tokens:,} target tokens, "
        f"{training.precision} on {trainer.device}"
        + (f", {training.workers} parts side by side" if trainer.gradients.workers > 1 else "")
    )
    if found := departures(config):
        say("departures from the paper: " + "; ".join(found))


def finish(
    config: Config,
    run: Path,
    tokenizers: tuple[Tokenizer, Tokenizer],
    trainer: Trainer,
    say: Say,
) -> None:
    """Replace the best model by the average, where that is configured, and say what there is."""
    training, metric = config.training, config.evaluation.metrics[0]
    seen = ", ".join(
        f"{metric} {best.score:.2f} in validation, after update {best.step:,}"
        for best in trainer.progress.best[:1]
    )
    if training.average > 1:
        kept = trainer.checkpoints.all() if training.average_of == "last" else trainer.progress.best
        count = min(training.average, len(kept))
        tensors, chosen = average_of(run / CHECKPOINTS, count, training.average_of)
        set_weights(trainer.model, tensors, run / CHECKPOINTS)
        trainer.model.eval()
        score = trainer.validate(trainer.model)[metric]
        save_model(run / MODEL, config, tensors, tokenizers, card(config))
        names = ", ".join(path.name for path in chosen)
        say(f"the model is the average of {names}: {metric} {score:.2f} in validation")
        say(f"the best single one seen: {seen}")
    else:
        say(f"the model is the best seen: {seen}")


def average_run(
    run: Path, count: int, out: Path | None, which: Literal["last", "best"] = "last"
) -> Path:
    """Write the average of a run's last or best checkpoints as a model folder; return the folder.

    Raises:
        TransduceError: if `run` is no run or has fewer checkpoints.
    """
    if not (run / CONFIG).is_file():
        raise TransduceError(f"{run} is no run: it holds no {CONFIG}")
    config = load_config(run)
    tensors, _ = average_of(run / CHECKPOINTS, count, which)
    folder = out or run / f"average-{which}-{count}"
    tokenizers = load_tokenizers(
        corpus_folder(config.data, run), config.tokenizer, config.data.normalization
    )
    save_model(folder, config, tensors, tokenizers, card(config))
    return folder


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
- training: at most {training.steps} updates of {training.tokens} target tokens

Departures from "Attention Is All You Need":

{departed}
Use it: `transduce translate FOLDER`, or in Python

```python
import transduce

translator = transduce.load("FOLDER")
print(translator.translate(["..."])[0].text)
```
"""


@contextmanager
def lock(run: Path) -> Iterator[None]:
    """Hold a run for this process alone; the lock dies with the process.

    Raises:
        TransduceError: if another process has it, or the folder cannot be made.
    """
    try:
        run.mkdir(parents=True, exist_ok=True)
        file = open(run / ".lock", "w")  # noqa: SIM115 (held open as long as the lock)
    except OSError as error:
        raise TransduceError(f"cannot write {run}: {error.strerror}") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise TransduceError(f"another process is training in {run}") from None
        yield
