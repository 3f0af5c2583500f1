"""The study behind `transduce report`: what the training of a run was like, from its logs."""

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import torch

from transduce.errors import TransduceError
from transduce.fine_tuning import changes
from transduce.inspection import worst
from transduce.inspection.curves import plots
from transduce.inspection.explanation import count
from transduce.inspection.history import History, Row, Sample, points, read
from transduce.inspection.layers import machine
from transduce.inspection.study import Example, Examples, Section, Study, Table
from transduce.model import Transformer
from transduce.pricing import duration

MOMENTS = 6
"""Different outputs of a sentence that are shown."""
ROWS = 20
"""Validations in the table."""
NOTHING = "–"


def study(
    run: Path,
    sentences: int = 500,
    pages: Path | None = None,
    tell: Callable[[str], None] = lambda line: None,
) -> Study:
    """Say what the training of a run was like, as far as it has come.

    Args:
        run: the run's folder.
        sentences: how many validation sentences to translate, to find the worst; 0: none.
        pages: a folder for a page of each of the worst, beside the page of this study.
        tell: is told how far it is.

    Raises:
        TransduceError: if it is no run, or has written nothing down yet.
    """
    tell("reading the logs")
    history = read(run)
    worst_section, found = worst_sentences(history, sentences, pages, tell)
    drawn = plots(history)
    return Study(
        f"The training of {run.resolve().name}",
        "What the run wrote down as it learnt: how far it came, how it got there, and what its "
        "model still gets wrong.",
        [
            in_short(history),
            Section("Curves", list(explained(history)), [validations(history)], drawn),
            over_time(history),
            worst_section,
        ],
        built(history),
        {
            "run": str(run),
            "updates": history.steps,
            "seconds": plain(history.seconds),
            "ending": history.ending(),
            "best": [
                {"score": best.score, "loss": plain(best.loss), "step": best.step}
                for best in history.standing().best
            ],
            "validations": [
                {name: plain(number) for name, number in row.items()} for row in history.validations
            ],
            "curves": {
                plot.title: {curve.name: [list(point) for point in curve.points]
                             for curve in plot.curves}
                for plot in drawn
            },
            "samples": [vars(sample) for sample in history.samples],
            "worst": found,
        },
    )  # fmt: skip


def built(history: History) -> str:
    """Return what model it is, in a few words."""
    m = history.config.model
    with torch.device("meta"):
        parameters = count(Transformer(m))
    return f"{m.N_encoder} + {m.N_decoder} layers, d_model {m.d_model}, {parameters:,} parameters"


def plain(number: float) -> float | None:
    """Return a number that JSON knows, or nothing."""
    return number if math.isfinite(number) else None


# In short ---------------------------------------------------------------------------------------


def in_short(history: History) -> Section:
    """Return what people ask first."""
    rows = [list(row) for row in facts(history)]
    return Section("In short", list(doubts(history)), [Table(["what", "this run"], rows)])


def facts(history: History) -> Iterator[tuple[str, str]]:
    """Yield what there is to know about a run, with its name."""
    config, training, best = history.config, history.config.training, history.standing().best
    if best:
        of = f"the best of {len(history.validations)} validations, after update {best[0].step:,}"
        yield "result", f"{history.metric} {best[0].score:.2f}, {of}"
    else:
        yield "result", "none yet: there was no validation"
    yield "updates", f"{history.steps:,} of {training.steps:,}"
    yield "end", history.ending()
    if math.isfinite(history.seconds):
        yield "time", f"{duration(history.seconds)}, validations included"
    if speeds := [y for _, y in points(history.updates, "target_tokens_per_second")]:
        yield "speed", f"{statistics.median(speeds):,.0f} target tokens a second (median)"
    if math.isfinite(tokens := history.tokens()):
        whole = f"about {rounded(tokens)} target tokens"
        yield "seen", f"{whole}, in updates of at most {training.tokens:,}"
    if epochs := points(history.updates, "epoch"):
        yield "pass over the pairs", f"number {epochs[-1][1] + 1:,.0f}"
    if training.average > 1 and history.reason():
        yield "model", f"the average of {training.average} checkpoints ({training.average_of})"
    if origin := config.fine_tuning.init_from:
        yield "began as", str(origin)
        yield from (("by fine-tuning", change) for change in changes(history.run))
    parts = f", {training.workers} parts side by side" if training.workers > 1 else ""
    yield "computed", f"in {training.precision}, device {config.device}{parts}"
    yield "this page", f"made on {machine()}"


def rounded(number: float) -> str:
    """Return a large number with three digits that count.

    >>> rounded(12345678.0)
    '12,300,000'
    """
    places = max(0, math.floor(math.log10(max(1.0, number))) - 2)
    return f"{round(number / 10**places) * 10**places:,}"


def doubts(history: History) -> Iterator[str]:
    """Yield what is wrong with the logs, if anything is."""
    if history.unreadable:
        yield f"Lines of the logs that cannot be read and are left out: {history.unreadable}."
    odd = [
        f"{name} after update {row['step']:,.0f}"
        for row in [*history.updates, *history.validations]
        for name, value in row.items()
        if not math.isfinite(value)
    ]
    if odd:
        more = f" and {len(odd) - 5} more" if len(odd) > 5 else ""
        yield f"Not finite, and left out: {', '.join(odd[:5])}{more}."
    for name in ("divided_batches", "skipped_pairs"):
        if often := sum(y for _, y in points(history.updates, name)):
            yield f"Memory did not suffice: {name.replace('_', ' ')}: {often:,.0f}."


# Curves -----------------------------------------------------------------------------------------


def explained(history: History) -> Iterator[str]:
    """Yield what has to be known to read the curves."""
    if (eps_ls := history.config.training.eps_ls) > 0:
        yield (
            "Loss and perplexity are the plain ones (-log of the right token's probability), so "
            f"that training and validation can be compared; what is minimised has {eps_ls:g} of "
            "each label spread over the vocabulary (§5.4), and cannot come near zero."
        )
    if history.config.model.P_drop > 0:
        yield "Training pairs go through dropout, validation pairs do not."
    training = history.config.training
    yield (
        f"A point of training is the mean over {training.log_every:,} updates; rate and gradient "
        "norm are those of its last."
    )


def validations(history: History) -> Table:
    """Return the validations; of many, some that are equally far apart, the last and the best."""
    rows, best = history.validations, history.standing().best
    step = best[0].step if best else None
    seconds = dict(points(history.updates, "seconds"))
    names = [name for name in history.config.evaluation.metrics if any(name in r for r in rows)]
    columns = ["updates", "time", "loss", "perplexity", *names, "best"]
    chosen = spread(rows, ROWS)
    chosen += [row for row in rows if row["step"] == step and row not in chosen]
    texts = [
        [
            f"{row['step']:,.0f}",
            duration(seconds[row["step"]]) if row["step"] in seconds else NOTHING,
            number(row, "valid_loss", 3),
            number(row, "valid_perplexity", 2),
            *(number(row, name, 2) for name in names),
            "✓" if row["step"] == step else "",
        ]
        for row in sorted(chosen, key=lambda row: row["step"])
    ]
    return Table(columns, texts, f"{len(rows):,} validations")


def number(row: Row, name: str, digits: int) -> str:
    """Return a number of a row as text."""
    value = row.get(name, math.nan)
    return f"{value:,.{digits}f}" if abs(value) < 1e15 else NOTHING


def spread(rows: Sequence[Any], most: int) -> list[Any]:
    """Return at most so many of some things, the first, the last, and between them evenly."""
    if len(rows) <= most:
        return list(rows)
    return [rows[round(i * (len(rows) - 1) / (most - 1))] for i in range(most)]


# Samples ----------------------------------------------------------------------------------------


def over_time(history: History) -> Section:
    """Return what became of the same sentences at some validations."""
    heading = "Samples over time"
    if not history.samples:
        return Section(heading, [
            "This run has no samples.jsonl: there was no validation yet, or an older version "
            "trained it."
        ])  # fmt: skip
    of_source: dict[str, dict[int, Sample]] = {}
    for sample in history.samples:
        of_source.setdefault(sample.source, {})[sample.step] = sample
    some = [Example(list(course(list(by_step.values())))) for by_step in of_source.values()]
    said = "Validation sentences from short to long, the same at each validation. "
    said += "Outputs that stayed as they were for several validations stand once."
    return Section(heading, [said], examples=[Examples(f"{len(some)} sentences", some)])


def course(samples: Sequence[Sample]) -> Iterator[tuple[str, str]]:
    """Yield a sentence, what is right, and what became of it, in order."""
    yield "source", samples[-1].source
    yield from (("reference", text) for text in samples[-1].references)
    stays = [list(some) for _, some in groupby(samples, lambda sample: sample.output)]
    for stay in spread(stays, MOMENTS):
        first, last = stay[0].step, stay[-1].step
        when = f"update {first:,}" if first == last else f"updates {first:,} to {last:,}"
        yield f"{when}{', right' * stay[-1].right}", stay[-1].output


# Worst sentences --------------------------------------------------------------------------------


def worst_sentences(
    history: History, sentences: int, pages: Path | None, tell: Callable[[str], None]
) -> tuple[Section, dict[str, Any] | None]:
    """Return the section about what the model does worst, and its numbers."""
    heading = "Worst sentences"
    if sentences == 0:
        return Section(heading, ["They were not asked for (--sentences 0)."]), None
    try:
        found = worst.outputs(history.run, history.config, sentences, tell)
    except TransduceError as error:
        return Section(heading, [f"They could not be looked for: {error}"]), None
    kinds = worst.findings(found)
    scores = ", ".join(f"{name} {score.score:.2f}" for name, score in found.scores.items())
    said = [
        f"The run's model translated {len(found.texts):,} validation sentences ({scores}). "
        f"{len(found.texts) - len(found.wrong):,} outputs are a reference, letter by letter.",
    ]
    said += [f"{kind.caption}: none." for kind in kinds if not kind.items]
    groups = worst.examples(found, kinds, history.run, pages)
    return Section(heading, said, examples=groups), worst.record(found, kinds)
