"""The verbs that make models."""

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rich.console import Console

from transduce.cli.arguments import (
    INTERRUPTED,
    Assignments,
    Flag,
    OptionalPairs,
    app,
    command_name,
    files_of,
    say,
    with_changes,
)
from transduce.config import Settings, merge, named
from transduce.errors import UsageError

if TYPE_CHECKING:
    pass


@app.command
def quickstart(*, out: Path = Path("runs/quickstart"), minutes: float = 5.0) -> int:
    """Learn to pronounce English words: from data to a model one can ask, in minutes.

    Started again on the same folder, it goes on where it stopped.

    Args:
        out: folder of the run.
        minutes: how long to train.
    """
    if minutes <= 0:
        raise UsageError(f"--minutes {minutes:g}: must be more than 0")
    from transduce.quickstart import quickstart as run
    from transduce.quickstart import show

    result = run(out, minutes, say)
    if result is None:
        return INTERRUPTED
    show(result, command_name(), Console(stderr=True, emoji=False))
    print(f"WER {result.wer:.2f}")
    print(f"PER {result.per:.2f}")
    print(f"words {result.words}")
    print(f"model {result.model}")
    return 0


@app.command
def train(
    recipe: Path | None = None,
    /,
    *,
    out: Path,
    train: OptionalPairs = None,
    valid: OptionalPairs = None,
    preset: str | None = None,
    resume: Flag = False,
    dry_run: Flag = False,
    deterministic: Flag = False,
    set: Assignments = None,
) -> int:
    """Train a model on pairs, from a recipe or from two sets of pairs alone.

    What is not given is chosen from the corpus, and said. Everything is left in the run folder.

    Args:
        recipe: a TOML file with the settings, or a prepared corpus.
        out: folder of the run; must not hold another one.
        train: training pairs.
        valid: validation pairs.
        preset: sizes: tiny, small, base, big, or a row of Table 3.
        resume: go on with a run that was stopped.
        dry_run: only say what it would take: memory, time and disk.
        deterministic: on a GPU: the same bits again, at lower speed (on a CPU they are anyway).
        set: change a setting, e.g. --set training.steps=5000; may be repeated.
    """
    from transduce.preparing import settings_of

    settings: Settings = settings_of(recipe) if recipe else {}
    given = files_of({"train": train, "valid": valid})
    settings = merge(settings, {"data": given} if given else {})
    if preset is not None:
        named("presets", preset)
        settings["preset"] = preset
    if deterministic:
        set = [*(set or ()), "training.deterministic=true"]
    if not settings and not resume:
        raise UsageError("nothing to train on: give a recipe, or --train and --valid")
    if dry_run:
        from transduce.experiment import price

        for line in price(settings, out, resume, set or (), say).lines():
            print(line)
        return 0
    from transduce.experiment import train as run

    outcome = run(settings, out, resume, set or (), say)
    if outcome == "interrupted":
        return INTERRUPTED
    say(f"try it: echo 'a source of your own' | {command_name()} translate {out}")
    return 0


@app.command
def average(
    run: Path, /, *, last: int | None = None, best: int | None = None, out: Path | None = None
) -> None:
    """Average the last checkpoints of a run (§6.1 of the paper), or the best, into a model folder.

    Args:
        run: the run's folder.
        last: the mean of so many last checkpoints; 5 if nothing is said.
        best: the mean of so many best ones (training.keep_best says how many a run keeps).
        out: the model folder to write; by default average-last-N or average-best-N in the run.
    """
    if last is not None and best is not None:
        raise UsageError("--last and --best exclude each other")
    which: Literal["last", "best"] = "last" if best is None else "best"
    count = best if best is not None else 5 if last is None else last
    if count < 1:
        raise UsageError(f"--{which} {count}: must be at least 1")
    from transduce.experiment import average_run

    folder = average_run(run, count, out, which)
    say(f"the average of the {which} {count} checkpoints")
    print(folder)


@app.command
def augment(
    model: Path,
    /,
    *,
    out: Path,
    distill: OptionalPairs = None,
    back: str | None = None,
    beam_size: int | None = None,
    engine: Literal["auto", "torch", "ctranslate2"] | None = None,
    set: Assignments = None,
) -> None:
    """Make training pairs with a model: easier targets for a smaller one, or sources of targets.

    Writes JSONL that `train` reads, a pair a line with its score and the number of the line it was
    made from; FILE.provenance.json says by what. Started again after it was stopped, it goes on.

    Args:
        model: a model folder or a run.
        out: the file to write; its name must end in .jsonl.
        distill: training pairs (one file with both sides, or two aligned text files), whose
            targets the model's outputs replace.
        back: a text file of sentences in the language that MODEL reads. What it makes of them
            become sources, they themselves targets, for a model of the other direction.
        beam_size: hypotheses kept per sentence; 1 is greedy search.
        engine: torch, ctranslate2, or auto.
        set: change a setting of [decoding] or, for how the pairs are read, [data]; may be repeated.
            Sources of more variety: --set decoding.method=sample.
    """
    from transduce.augmenting import augment as make

    if bool(distill) == bool(back):
        raise UsageError("give either --distill PAIRS or --back FILE")
    changes = [*(set or ())]
    changes += [f"decoding.beam_size={beam_size}"] if beam_size is not None else []
    changes += [f"decoding.engine={engine}"] if engine is not None else []
    kind: Literal["distilled", "back"] = "distilled" if distill else "back"
    make(model, kind, distill or [str(back)], out, with_changes(changes), say)
    print(out)
