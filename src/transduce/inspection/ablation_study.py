"""An ablation as a study: what was done, and of each group tables, plots and sentences."""

import statistics
from collections.abc import Mapping, Sequence

from transduce.evaluating import SAMPLES
from transduce.inspection.ablation_rows import BASE, PAPER, Group
from transduce.inspection.ablation_verdicts import (
    PERPLEXITY,
    UNCLEAR,
    Measured,
    digits,
    in_paper,
    rising,
)
from transduce.inspection.study import Curve, Plot, Section, Study, Table
from transduce.pricing import duration


def line_of(one: Measured, metric: str) -> str:
    """Return a row in a line, as it is shown when it is finished."""
    parts = [
        f"{column} {mean.text(digits(column))}"
        for column in (PERPLEXITY, metric)
        if (mean := one.mean(column))
    ]
    parts += [f"seed {seed} failed: {reason}" for seed, reason in one.failures.items()]
    return f"{one.row.name} ({one.row.changes}): {'; '.join(parts)}"


def section_of(group: Group, base: Measured, rows: Sequence[Measured], metric: str) -> Section:
    """Return what is to be said of a group."""
    columns = (PERPLEXITY, metric)
    sentences = [group.finding]
    for column in columns:
        said: dict[str, list[str]] = {}
        for one in rows:
            if one.ours(column):
                said.setdefault(one.verdict(column), []).append(one.row.name)
        if said:
            found = "; ".join(f"{', '.join(names)}: {text}" for text, names in said.items())
            sentences.append(f"{heading(column)} against base. {found}.")
    for one in rows:
        sentences += [f"{note}." for note in one.row.notes]
        sentences += [
            f"{one.row.name}, seed {seed}, failed: {reason}"
            for seed, reason in one.failures.items()
        ]
    tables = [numbers([base, *rows], metric)]
    if any(one.differences[column] for one in rows for column in columns):
        tables.append(against_base(rows, metric))
    plots = [plot for column in columns if (plot := plot_of(rows, column))]
    return Section(group.title, sentences, tables, plots)


def heading(column: str) -> str:
    """Return what people call a column."""
    return {PERPLEXITY: "Perplexity", "bleu": "BLEU", "chrf": "chrF", "exact": "Exact match"}.get(
        column, column.upper().replace("_", " ")
    )


def numbers(rows: Sequence[Measured], metric: str) -> Table:
    """Return what was measured, beside the paper's columns."""
    with_paper = any(one.row.paper for one in rows[1:])
    columns = ["row", "changed", "parameters", "PPL", heading(metric), "training", "tokens/s"]
    columns += ["paper PPL", "paper BLEU", "paper M params"] if with_paper else []
    texts = []
    for one in rows:
        means = [one.mean(column) for column in (PERPLEXITY, metric)]
        results = list(one.results.values())
        cells = [one.row.name, "" if one.row.name == BASE else one.row.changes]
        cells.append(f"{results[0].parameters:,}" if results else "–")
        cells += [
            mean.text(digits(column)) if mean else "–"
            for column, mean in zip((PERPLEXITY, metric), means, strict=True)
        ]
        if results:
            cells.append(duration(statistics.fmean(result.seconds for result in results)))
            speed = statistics.fmean(result.tokens_per_second for result in results)
            cells.append(f"{speed:,.0f}")
        else:
            cells += ["–", "–"]
        if with_paper:
            paper = PAPER.get(one.row.name)
            known = paper and paper.parameters is not None
            cells += [f"{paper.perplexity:.2f}", f"{paper.bleu:.1f}"] if paper else ["–", "–"]
            cells.append(str(paper.parameters) if paper and known else "–")
        texts.append(cells)
    return Table(columns, texts)


def against_base(rows: Sequence[Measured], metric: str) -> Table:
    """Return the differences from base, and what they mean."""
    texts = []
    for one in rows:
        cells = [one.row.name]
        for column in (PERPLEXITY, metric):
            found = one.differences[column]
            cells += [found.text(digits(column)) if found else "–", one.verdict(column)]
        texts.append(cells)
    columns = ["row", "PPL", "verdict", heading(metric), "verdict"]
    return Table(columns, texts, "Difference from base, with 95 % intervals")


def plot_of(rows: Sequence[Measured], column: str) -> Plot | None:
    """Return the differences from base in a column; None if there is none."""
    found = [(one.row.name, there) for one in rows if (there := one.differences[column])]
    if not found:
        return None
    places = list(enumerate(there for _, there in found))
    curves = [
        Curve(
            "mean of the seeds, 95 % interval" if len(found[0][1].seeds) > 1 else "95 % interval",
            [(float(i), one.value) for i, one in places],
            intervals=[(one.low, one.high) for _, one in places],
        )
    ]
    if any(len(one.seeds) > 1 for _, one in places):
        aside = min(0.4, 0.04 * len(found))  # so that no mark hides another
        single = [(i + aside, value) for i, one in places for value in one.seeds.values()]
        curves.append(Curve("each seed", single))
    better = "higher" if rising(column) else "lower"
    return Plot(
        f"{heading(column)}: difference from base ({better} is better)",
        "row", f"{heading(column)} − base’s", curves,
        log=False, names=[name for name, _ in found], level=0.0, level_name=BASE,
    )  # fmt: skip


def study_of(
    groups: Sequence[Group],
    rows: Mapping[str, Sequence[Measured]],
    base: Measured,
    left_out: Sequence[str],
    items: int,
    machine: str,
) -> Study:
    """Return the whole ablation.

    Args:
        groups: that were asked for.
        rows: of each group.
        base: what they are compared with.
        left_out: sentences on rows that were not trained.
        items: how many were translated.
        machine: what it was measured on.
    """
    config = base.row.config
    metric, training = config.evaluation.metrics[0], config.training
    every = [one for some in rows.values() for one in some]
    seeds = sorted({seed for one in [base, *every] for seed in (*one.results, *one.failures)})
    sentences = [
        f"Base: {base.row.changes}.",
        f"Each run: {training.steps:,} updates of at most {training.tokens:,} target tokens, on "
        "the same pairs; the model after the last update is measured, without averaging (§6.2).",
        f"Perplexity is of all validation pairs, from the plain loss; {heading(metric)} is of "
        f"{items:,} items.",
    ]
    sentences += intervals(seeds)
    for column in (PERPLEXITY, metric):
        with_paper = [
            one for one in every if in_paper(one.row.paper, column) in ("better", "worse")
        ]
        if with_paper:
            sentences.append(tally(with_paper, column))
    if (count := len(every)) > 5:
        sentences.append(
            f"Of {count} comparisons in a column, chance alone would make some "
            f"{max(1, round(count / 20))} look like a difference."
        )
    sentences += [f"{sentence[:1].upper()}{sentence[1:]}." for sentence in left_out]
    sentences += [f"base, seed {seed}, failed: {reason}" for seed, reason in base.failures.items()]
    sections = [
        Section("What was done", sentences),
        *(section_of(g, base, rows[g.name], metric) for g in groups if g.name in rows),
    ]
    record = {
        "base": config.model_dump(exclude_none=True),
        "seeds": seeds,
        "items": items,
        "metric": metric,
        "groups": {name: [one.record() for one in some] for name, some in rows.items()},
        "measured_base": base.record(),
        "left_out": list(left_out),
    }
    lede = (
        "Each row differs from base in one respect, in the proportions of Table 3 of “Attention Is "
        "All You Need” where it is one of its rows. Does it point the paper’s way? “Not "
        "distinguishable” is an answer, too."
    )
    return Study("Ablation", lede, sections, machine, record)


def intervals(seeds: Sequence[int]) -> list[str]:
    """Say how the intervals were made."""
    if len(seeds) < 2:
        return [
            f"Differences from base come with 95 % intervals by a paired bootstrap of {SAMPLES:,} "
            "samples of the sentences. There is one seed: how much another one would change is not "
            "known, so small differences may be luck (--seeds 3)."
        ]
    return [
        f"Seeds {', '.join(map(str, seeds))}: a number with ± is their mean with its 95 % interval "
        f"by Student’s t{', which is wide, of two' if len(seeds) == 2 else ''}.",
        f"Differences from base are of runs with one seed, and their 95 % intervals come from a "
        f"paired bootstrap: each of {SAMPLES:,} samples draws seeds, and sentences that are the "
        "same for both systems. Of few seeds such intervals are rather too narrow.",
    ]


def tally(rows: Sequence[Measured], column: str) -> str:
    """Say how many rows point the paper's way."""
    ours = [(one.ours(column), in_paper(one.row.paper, column)) for one in rows]
    same = sum(own == paper for own, paper in ours)
    unclear = sum(own == "equal" for own, _ in ours)
    missing = sum(own is None for own, _ in ours)
    against = len(rows) - same - unclear - missing
    return (
        f"{heading(column)}: of {len(rows)} rows that differ from base in the paper, {same} point "
        f"the paper’s way, {against} against it, {unclear} are {UNCLEAR}"
        + (f", {missing} failed." if missing else ".")
    )
