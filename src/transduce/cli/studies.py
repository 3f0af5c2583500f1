"""The verbs that show what models do and what their parts are worth."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from transduce.cli.arguments import (
    INTERRUPTED,
    Assignments,
    Flag,
    Names,
    Numbers,
    OptionalPairs,
    OptionalWord,
    app,
    check_folders,
    compare,
    files_of,
    say,
    with_changes,
)
from transduce.errors import TransduceError, UsageError

if TYPE_CHECKING:
    from transduce.inspection.study import Study

Tell = Callable[[str], None]


@app.command
def inspect(
    model: Path | None = None,
    text: OptionalWord = None,
    other: OptionalWord = None,
    /,
    *,
    numbers: Path | None = None,
    target: str | None = None,
    baseline: Path | None = None,
    encoder_layer: int | None = None,
    decoder_layer: int | None = None,
    head: int = 1,
    out: Path | None = None,
    json: Flag = False,
    set: Assignments = None,
) -> None:
    """See what a model does with a sentence: every head, one of them step by step, the search.

    Without --out, in the terminal.

    Args:
        model: a model folder or a run.
        text: the source; - reads a line from standard input.
        other: another source, to be compared with it.
        numbers: instead, a file of vectors and matrices typed by hand (TOML or JSON: q, k, v; or x,
            W_Q, W_K, W_V, W_O; h, mask, padding, layer_norm); no model is needed.
        target: the target to look at, instead of the one that is searched for.
        baseline: another model, to be compared on the same source.
        encoder_layer: the layer that is followed step by step, from 1; the first unless given.
        decoder_layer: likewise in the decoder; the last but one unless given.
        head: likewise.
        out: write a page (HTML) that needs nothing else.
        json: print the numbers as JSON.
        set: change a setting of [decoding], e.g. --set decoding.beam_size=8; may be repeated.
    """
    from transduce.inspection.inspecting import Subject, show, traced, traced_numbers

    check_folders(out)
    layers = {"encoder_layer": encoder_layer, "decoder_layer": decoder_layer, "head": head}
    if numbers is not None:
        if model is not None:
            raise UsageError("--numbers needs no model")
        traces = [traced_numbers(numbers)]
        name = numbers.name
    elif model is None or text is None:
        raise UsageError("give a model and a text, or --numbers FILE")
    else:
        subjects = [Subject(model, text)]
        subjects += [Subject(model, other)] if other is not None else []
        subjects += [Subject(baseline, text)] if baseline is not None else []
        traces = traced(subjects, target, layers, with_changes(set or ()))
        name = " and ".join(dict.fromkeys(subject.name for subject in subjects))
    for line in show(traces, name, out, json, say):
        print(line)


@app.command(name="report")
def report_(
    run: Path,
    /,
    *,
    out: Path | None = None,
    pages: Flag = False,
    json: Path | None = None,
    sentences: int = 500,
) -> None:
    """Say what the training of a run was like: curves, samples over time, worst sentences.

    A run that is still training, was stopped or was killed is reported as far as it has come.

    Args:
        run: the run's folder.
        out: write the report as a page (HTML) here.
        pages: beside it, write a page for each of the worst sentences: heads and search.
        json: write its numbers as JSON here.
        sentences: how many validation sentences to translate, to find the worst; 0 for none.
    """
    if sentences < 0:
        raise UsageError(f"--sentences {sentences}: must not be negative")
    if pages and out is None:
        raise UsageError("--pages stand beside a page: give --out, too")
    from transduce.inspection import report as subject

    folder = out.with_name(f"{out.stem}-pages") if out is not None and pages else None
    show_study(lambda tell: subject.study(run, sentences, folder, tell), out, json)


@app.command
def explain(
    recipe: Path,
    /,
    *,
    out: Path | None = None,
    json: Path | None = None,
    set: Assignments = None,
) -> None:
    """Say what a model is in the paper's terms: figure 1, parameters, operations, memory.

    Args:
        recipe: a TOML file with the settings, a run or a model folder.
        out: write it as a page (HTML) here.
        json: write its numbers as JSON here.
        set: change a setting, e.g. --set model.h=1; may be repeated.
    """
    from transduce.inspection import explanation as subject

    settings = subject.settings_to_explain(recipe, set or ())
    name = recipe.stem if recipe.suffix == ".toml" else recipe.resolve().name
    show_study(lambda tell: subject.study(settings, name, tell), out, json)


@compare.command
def layers(
    *,
    lengths: Numbers = None,
    d: int = 64,
    out: Path | None = None,
    json: Path | None = None,
) -> None:
    """Compare the layer types of Table 1: operations, path lengths, time and memory.

    Takes a minute or two on an idle machine; whatever else runs on it disturbs the times.

    Args:
        lengths: numbers of positions, n; 16 to 4,096 unless given.
        d: width of the layers whose length varies.
        out: write the study as a page (HTML) here.
        json: write its numbers as JSON here.
    """
    wrong = next((f"--lengths {n}" for n in lengths or () if n < 1), None)
    if wrong or d < 1:
        raise UsageError(f"{wrong or f'--d {d}'}: must be at least 1")
    from transduce.inspection import layers as subject

    given = {"lengths": sorted(set(lengths))} if lengths else {}
    show_study(lambda tell: subject.study(d=d, tell=tell, **given), out, json)


@compare.command
def positions(
    *, updates: int = 1000, seed: int = 1, out: Path | None = None, json: Path | None = None
) -> None:
    """Compare sinusoids, learned positions and none beyond the length that was trained.

    Args:
        updates: how long each of three small models is trained.
        seed: decides weights and letters.
        out: write the study as a page (HTML) here.
        json: write its numbers as JSON here.
    """
    from transduce.inspection import positions as subject

    at_least_one_update(updates)
    show_study(lambda tell: subject.study(updates, seed, tell), out, json)


@compare.command
def norms(
    *, updates: int = 300, seed: int = 1, out: Path | None = None, json: Path | None = None
) -> None:
    """Compare norms: the same sentences alone, in company, and among longer ones.

    Args:
        updates: how long each of three small models is trained.
        seed: decides weights and letters.
        out: write the study as a page (HTML) here.
        json: write its numbers as JSON here.
    """
    from transduce.inspection import norms as subject

    at_least_one_update(updates)
    show_study(lambda tell: subject.study(updates, seed, tell), out, json)


@app.command
def ablate(
    recipe: Path,
    /,
    *,
    out: Path,
    rows: Names = None,
    seeds: int = 1,
    jobs: int = 1,
    test: OptionalPairs = None,
    dry_run: Flag = False,
    set: Assignments = None,
) -> int:
    """Train the rows of the paper's Table 3 on your pairs, scaled to your model, and compare them.

    Each differs from base, the recipe's model, in one respect, and has the same pairs and as many
    updates. Differences come with intervals, beside the paper's. Stopped or killed and started
    again, it goes on; more rows or seeds may be asked for then.

    Args:
        recipe: a TOML file with the settings, or a prepared corpus.
        out: folder of the ablation: all runs, ablation.json and ablation.html.
        rows: rows of Table 3 (A1 ... E, big) or groups: A (heads), B (width of keys), C (sizes), D
            (dropout, label smoothing), E (learned positions), layers, norms, normalisers,
            positions. A, B, C, D and E unless given.
        seeds: runs of each row.
        jobs: runs side by side, each with its share of the threads.
        test: test pairs to score on, instead of the validation pairs.
        dry_run: only list the rows, and say how long it would take.
        set: change a setting, e.g. --set training.steps=5000; may be repeated.
    """
    from transduce.inspection.ablation import ablate as run
    from transduce.inspection.ablation import priced
    from transduce.inspection.study import printed

    pairs = files_of({"test": test}).get("test", "")
    if dry_run:
        for line in priced(recipe, out, rows or (), seeds, jobs, pairs, set or (), say):
            print(line)
        return 0
    study, whole = run(recipe, out, rows or (), seeds, jobs, pairs, set or (), say)
    if study is None:
        return INTERRUPTED
    for line in printed(study):
        print(line)
    return 0 if whole else TransduceError.status


def at_least_one_update(updates: int) -> None:
    """Refuse a training of nothing."""
    if updates < 1:
        raise UsageError(f"--updates {updates}: must be at least 1")


def show_study(make: "Callable[[Tell], Study]", out: Path | None, json: Path | None) -> None:
    """Make a study, saying how far it is; write it where it is asked for, and print it."""
    from transduce.inspection.study import printed, write_json, write_page

    check_folders(out, json)
    with Console(stderr=True).status("starting") as status:
        study = make(lambda line: status.update(line))
    if out is not None:
        write_page(study, out)
        say(f"the study as a page: {out}")
    if json is not None:
        write_json(study, json)
    for line in printed(study):
        print(line)
