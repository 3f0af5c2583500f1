"""A whole experiment: corpus, training with real validation, averaging, a model folder."""

import shutil
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from transduce import fine_tuning, fitting, pricing
from transduce.advice import advice
from transduce.assembly import (
    LOCK,
    Say,
    assemble,
    begun,
    card,
    corpus_folder,
    lock,
    validation_items,
    with_measured_steps,
)
from transduce.config import Config, Settings, departures, overlay
from transduce.data.corpus import Corpus, load_tokenizers
from transduce.data.tokenizer import Tokenizer
from transduce.decoding.translator import Translator
from transduce.errors import TransduceError
from transduce.evaluating import items_to_score, judge_int8, scored
from transduce.evaluation.metrics import Score
from transduce.model_folder import (
    CHECKPOINTS,
    CONFIG,
    MODEL,
    load_config,
    save_model,
    set_weights,
    write_file,
)
from transduce.preparing import settings_of
from transduce.training.checkpoint import Checkpoints, average_of, read_progress
from transduce.training.distributed import Ranks, together
from transduce.training.trainer import Outcome, Trainer


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
    assignments = list(assignments)
    with together() as ranks:
        if ranks.first:
            with lock(run):
                return lead(settings, run, resume, assignments, say, ranks)
        ranks.wait()  # until the first process has the run ready
        config = load_config(run)
        corpus = Corpus(corpus_folder(config.data, run))
        trainer, _ = assemble(config, corpus, run, ranks)
        if resume:
            trainer.resume()
        return trainer.train()


def lead(
    settings: Settings,
    run: Path,
    resume: bool,
    assignments: list[str],
    say: Say,
    ranks: Ranks,
) -> Outcome:
    """Train as the first process (mostly the only one), which does all but computing alone."""
    config, corpus = begun(settings, run, resume, assignments, say)
    config = with_measured_steps(config, corpus, overlay(settings, assignments), say)
    trainer, tokenizers = assemble(config, corpus, run, ranks)
    if not (run / CONFIG).exists():
        for note in advice(config, corpus):
            say(f"note: {note}")
    write_file(run / CONFIG, config.to_toml().encode())
    if resume and trainer.resume():
        say(f"going on after update {trainer.progress.step:,}")
        if trainer.progress.step >= config.training.steps:
            say("all updates are done; for more, --set training.steps=...")
    describe(config, trainer, say)
    if ranks.count > 1:
        say(f"{ranks.count} processes, each with its share of every update")
    tunes = bool(config.fine_tuning.init_from)
    if tunes:
        measure = measured(config, corpus)
        fine_tuning.score_before(config, run, tokenizers, measure, say)
    ranks.wait()
    outcome = trainer.train()
    if outcome == "interrupted":
        say(
            f"stopped after update {trainer.progress.step:,}; everything is saved. "
            f"Go on with: transduce train --resume --out {run}"
        )
    else:
        finish(config, run, tokenizers, trainer, say)
        judge_int8(run / MODEL, validation_items(corpus, config), say)
        if tunes:
            fine_tuning.score_after(config, run, measure, say)
    return outcome


def price(
    recipe: str | Path | Settings,
    out: str | Path,
    resume: bool = False,
    assignments: Iterable[str] = (),
    say: Say = lambda line: None,
) -> pricing.Price:
    """Say what `train` with the same arguments would take; nothing is trained.

    A new run's corpus is prepared, so that `train` finds it; nothing else stays.

    Returns:
        Memory, time and disk, of what is left of the run.

    Raises:
        UsageError: as `train` does.
        TransduceError: likewise, and if the run cannot fit the machine's memory.
    """
    run = Path(out)
    new = not run.exists()
    settings = recipe if isinstance(recipe, dict) else settings_of(Path(recipe))
    assignments = list(assignments)
    with lock(run), TemporaryDirectory() as scratch:
        config, corpus = begun(settings, run, resume, assignments, say)
        memory = fitting.memory_needed(config, corpus)
        config = with_measured_steps(config, corpus, overlay(settings, assignments), say)
        trainer, tokenizers = assemble(config, corpus, Path(scratch))
        found = Checkpoints(run / CHECKPOINTS, keep=-1).all() if (run / CONFIG).exists() else []
        if found:
            trainer.progress = read_progress(found[-1])
            say(f"going on after update {trainer.progress.step:,}")
        describe(config, trainer, say)
        for note in advice(config, corpus):
            say(f"note: {note}")
        sources = validation_items(corpus, config).sources
        priced = pricing.price(config, corpus, memory, trainer, tokenizers, sources)
        for sentence in priced.sentences():
            say(sentence)
        free = shutil.disk_usage(run).free
        if priced.disk > free and not found:
            say(
                f"note: only {free / 2**20:,.0f} MiB are free on the disk of {run}: lower "
                "training.keep, or give another --out"
            )
    if new and [path.name for path in run.iterdir()] == [LOCK]:
        shutil.rmtree(run)
    return priced


def measured(config: Config, corpus: Corpus) -> fine_tuning.Measure:
    """Return what scores a model on the old test pairs, and on the validation pairs."""
    asked = validation_items(corpus, config)

    def measure(translator: Translator) -> dict[str, dict[str, Score]]:
        found = {}
        if old_test := config.fine_tuning.old_test:
            found["old test"], _ = scored(translator, items_to_score(config, old_test), config)
        found["validation"], _ = scored(translator, asked, config)
        return found

    return measure


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
    frozen = [p for p in trainer.model.parameters() if not p.requires_grad]
    if frozen:
        say(
            f"frozen: {', '.join(config.fine_tuning.frozen)}: "
            f"{sum(p.numel() for p in frozen):,} of the parameters stay as they are"
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
        score = trainer.validate(trainer.model).scores[metric]
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
