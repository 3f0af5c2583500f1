"""`transduce ablate`: the rows of Table 3, and others, trained on one's own pairs and compared.

DIR/ablation.toml   the recipe, the base model with nothing left open, and what corpus it is of
DIR/corpus/         the prepared pairs that all rows share (unless data.corpus says another place)
DIR/ROW/seed-K/     a run, see `ablation_runs`
DIR/ablation.json   the numbers, and ablation.html: the page; written at the end
"""

import platform
import shutil
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import tomli_w
import torch

from transduce import pricing
from transduce.assembly import (
    LOCK,
    Say,
    assemble,
    corpus_folder,
    first_start,
    lock,
    validation_items,
    with_measured_steps,
)
from transduce.choices import resolved
from transduce.config import Config, Paths, Settings, merge, overlay, parse, read_toml
from transduce.data.corpus import MANIFEST, Corpus
from transduce.data.files import fingerprint
from transduce.decoding.translator import pick_device
from transduce.errors import TransduceError, UsageError
from transduce.evaluating import Items, items_to_score
from transduce.inspection.ablation_rows import BASE, USUAL, Group, Row, chosen, row_of, rows_of
from transduce.inspection.ablation_runs import (
    OWN,
    Board,
    Failure,
    Job,
    Result,
    Tell,
    conduct,
    fitted,
    parameters_of,
)
from transduce.inspection.ablation_study import line_of, study_of
from transduce.inspection.ablation_verdicts import gathered, measured
from transduce.inspection.study import Study, Table, aligned, write_json, write_page
from transduce.model_folder import write_file
from transduce.preparing import absolute, settings_of

STATE, NUMBERS, PAGE = "ablation.toml", "ablation.json", "ablation.html"


@dataclass(frozen=True)
class Plan:
    """What is to be trained, and with what it is measured."""

    out: Path
    base: Row
    groups: list[Group]
    rows: dict[str, list[Row]]
    """Of each group."""
    left_out: list[str]
    corpus: Corpus
    asked: Items
    jobs: list[Job]
    """Each row with each seed; base first."""

    @property
    def all(self) -> list[Row]:
        """Base and all others."""
        return [self.base, *(row for rows in self.rows.values() for row in rows)]


def ablate(
    recipe: Path,
    out: Path,
    rows: Sequence[str] = (),
    seeds: int = 1,
    jobs: int = 1,
    test: Paths = "",
    assignments: Iterable[str] = (),
    say: Say = lambda line: None,
) -> tuple[Study | None, bool]:
    """Train the rows of an ablation, compare them with base, and write numbers and page.

    Started again on the same folder, it goes on where it stopped; more rows or seeds may be asked
    for then. What failed is tried again.

    Args:
        recipe: a TOML file, or a prepared corpus; its model is base.
        out: folder of the ablation.
        rows: rows or groups; A to E if there is none.
        seeds: how many runs there are of each row; the first seed is the recipe's.
        jobs: how many runs are trained side by side.
        test: test pairs to score on, instead of the validation pairs.
        assignments: settings laid over the recipe.
        say: is told what happens.

    Returns:
        What was found (None if somebody asked to stop), and whether every run was finished.

    Raises:
        UsageError: if the settings or names are wrong, or `out` holds something else.
        TransduceError: if data cannot be read, or nothing can be written.
    """
    with planned(recipe, out, rows, seeds, jobs, test, assignments, say) as (plan, threads):
        say(f"base: {plan.base.changes}")
        for sentence in plan.left_out:
            say(f"note: {sentence}")
        found: dict[str, dict[int, Result | Failure]] = {row.name: {} for row in plan.all}
        for job in plan.jobs:
            job.refuse_other()
            if result := job.result():
                found[job.row][job.seed] = result
        waiting = [job for job in plan.jobs if job.seed not in found[job.row]]
        if known := len(plan.jobs) - len(waiting):
            say(f"{known} of {len(plan.jobs)} runs are finished already")
        metric = plan.base.config.evaluation.metrics[0]

        def tell(board: Board) -> Tell:
            def told(job: Job, result: Result | Failure) -> None:
                found[job.row][job.seed] = result
                if len(found[job.row]) == seeds:
                    row = next(row for row in plan.all if row.name == job.row)
                    board.say(line_of(gathered(row, found[job.row]), metric))

            return told

        if waiting and not conduct(waiting, jobs, threads, tell):
            say("stopped; everything is saved. The same command goes on from there")
            return None, False
        study = studied(plan, found, jobs, threads)
        write_json(study, out / NUMBERS)
        write_page(study, out / PAGE)
        say(f"the numbers: {out / NUMBERS}; as a page: {out / PAGE}")
        whole = all(isinstance(one, Result) for some in found.values() for one in some.values())
        return study, whole


def studied(
    plan: Plan, found: dict[str, dict[int, Result | Failure]], jobs: int, threads: int
) -> Study:
    """Compare all rows with base."""
    every = measured(plan.all, found, plan.asked, plan.base.config)
    by_name = {one.row.name: one for one in every}
    rows = {name: [by_name[row.name] for row in some] for name, some in plan.rows.items()}
    device = pick_device(plan.base.config.device)
    cuda = device.type == "cuda"
    machine = (
        f"{torch.cuda.get_device_name(device) if cuda else platform.machine()}, {threads} "
        f"{'threads' if threads > 1 else 'thread'} a run"
        + (f", {jobs} runs side by side" if jobs > 1 else "")
        + f"; torch {torch.__version__}"
    )
    return study_of(plan.groups, rows, every[0], plan.left_out, len(plan.asked.sources), machine)


def priced(
    recipe: Path,
    out: Path,
    rows: Sequence[str] = (),
    seeds: int = 1,
    jobs: int = 1,
    test: Paths = "",
    assignments: Iterable[str] = (),
    say: Say = lambda line: None,
) -> Iterator[str]:
    """Yield what `ablate` with the same arguments would train, and how long; nothing is trained.

    A new corpus is prepared, so that `ablate` finds it; nothing else stays.

    Raises:
        UsageError: as `ablate` does.
        TransduceError: likewise.
    """
    dry = planned(recipe, out, rows, seeds, jobs, test, assignments, say, keep=False)
    with dry as (plan, _), TemporaryDirectory() as scratch:
        texts, total, left = [], 0.0, 0
        for row in plan.all:
            mine = [job for job in plan.jobs if job.row == row.name]
            cells = [row.name, row.changes, f"{parameters_of(row.config):,}"]
            try:
                config = fitted(row.config, plan.corpus, mine[0].given, jobs)
                trainer, tokenizers = assemble(config, plan.corpus, Path(scratch))
                speed = pricing.speed_of(trainer, least=3, most=1.0)
                sources = plan.asked.sources
                scoring = pricing.seconds_of_validation(
                    trainer.model, tokenizers, config, plan.corpus, sources, speed
                )
                seconds = config.training.steps * speed.seconds + 2 * scoring
                waiting = [job for job in mine if job.result() is None]
                total, left = total + seconds * len(waiting), left + len(waiting)
                cells += [pricing.duration(speed.seconds), pricing.duration(seconds)]
            except TransduceError as error:
                say(f"note: {row.name}: {error}")
                cells += ["–", "–"]
            texts.append(cells)
        columns = ["row", "changed", "parameters", "an update", "a run"]
        yield from aligned(Table(columns, texts))
        yield ""
        for sentence in [*(note for row in plan.all for note in row.notes), *plan.left_out]:
            yield f"- {sentence}"
        yield (
            f"- {left} of {len(plan.jobs)} runs are left, each of "
            f"{plan.base.config.training.steps:,} updates: about {pricing.duration(total / jobs)}"
            + (f", {jobs} side by side" if jobs > 1 else "")
        )


@contextmanager
def planned(
    recipe: Path,
    out: Path,
    names: Sequence[str],
    seeds: int,
    jobs: int,
    test: Paths,
    assignments: Iterable[str],
    say: Say,
    keep: bool = True,
) -> Iterator[tuple[Plan, int]]:
    """Hold an ablation's folder, and give what is to be done and the threads of each process.

    Args:
        recipe: as for `ablate`, as are the others.
        out: likewise.
        names: of rows and groups.
        seeds: likewise.
        jobs: likewise.
        test: likewise.
        assignments: likewise.
        say: likewise.
        keep: leave the plan in the folder, so that it is the same when it is started again.
    """
    for option, number in (("seeds", seeds), ("jobs", jobs)):
        if number < 1:
            raise UsageError(f"--{option} {number}: must be at least 1")
    groups = chosen(names or USUAL)
    user = absolute(overlay(settings_of(recipe), assignments))
    resolved({}, user)  # wrong settings are refused now
    if user.get("fine_tuning", {}).get("init_from"):
        raise UsageError(
            "fine_tuning.init_from: the rows of an ablation have other sizes than that model, and "
            "start with random weights"
        )
    refuse_strange(out)
    before = torch.get_num_threads()
    threads = max(1, before // jobs)
    torch.set_num_threads(threads)  # so that what is measured is measured as it will be
    new = not out.exists()
    try:
        with lock(out):
            config, corpus = based(user, out, keep, say)
            base = row_of(BASE, config)
            rows, left_out = rows_of(groups, config)
            asked = items_to_score(config, test) if test else validation_items(corpus, config)
            plan = Plan(out, base, groups, rows, left_out, corpus, asked, [])
            origin = fingerprint(str(corpus.folder / MANIFEST))
            given = {k: v for k, v in user.get("training", {}).items() if k in OWN}
            for row in plan.all:
                for seed in range(config.training.seed, config.training.seed + seeds):
                    changes = {"training": {"seed": seed}}
                    own_config = parse(merge(row.config.model_dump(), changes), "the recipe")
                    run = out / row.name / f"seed-{seed}"
                    plan.jobs.append(Job(row.name, seed, run, own_config, given, asked, origin))
            yield plan, threads
    finally:
        torch.set_num_threads(before)
        if new and out.is_dir() and [path.name for path in out.iterdir()] == [LOCK]:
            shutil.rmtree(out)


def refuse_strange(out: Path) -> None:
    """Refuse a folder that holds something else than an ablation, or the beginning of one.

    Raises:
        UsageError: naming what it holds.
    """
    if not out.is_dir() or (out / STATE).exists():
        return
    for path in out.iterdir():
        if path.name != LOCK and "corpus" not in path.name:
            raise UsageError(f"{out} holds something else ({path.name}): give another --out")


def based(user: Settings, out: Path, keep: bool, say: Say) -> tuple[Config, Corpus]:
    """Return base with nothing left open, and the corpus: those that are there, or new ones.

    Raises:
        UsageError: if the folder holds an ablation of another recipe.
        TransduceError: if its corpus is not what it was.
    """
    user = tomllib.loads(tomli_w.dumps(user))
    if (out / STATE).exists():
        state = read_toml(out / STATE)
        if changes := list(differences(state["recipe"], user)):
            raise UsageError(
                f"{out} holds an ablation of another recipe: {'; '.join(changes)}. Rows of two "
                "recipes cannot be compared: give another --out"
            )
        config = parse(state["base"], str(out / STATE))
        corpus = Corpus(Path(config.data.corpus))
        if fingerprint(str(corpus.folder / MANIFEST)) != state["corpus"]:
            raise TransduceError(
                f"the corpus in {corpus.folder} is not what it was when the ablation in {out} "
                "began: give another --out"
            )
        return config, corpus
    for key in user.get("training", {}).keys() & {"average", "patience", "stop_at_score"}:
        say(f"note: training.{key} is not used: all rows are measured after the last update")
    config, corpus = first_start(user, out, say)
    config = with_measured_steps(config, corpus, user, say)
    fixed: Settings = {
        "data": {"corpus": str(corpus_folder(config.data, out).resolve())},
        "training": {
            "average": 1, "patience": 0, "stop_at_score": None,
            "validate_every": config.training.steps, "keep": 1, "keep_best": 1,
            "accumulation": 1, "workers": 1,
        },
        "decoding": {"engine": "torch"},
        "preset": None,
    }  # fmt: skip
    config = parse(merge(config.model_dump(), fixed), "the recipe")
    if keep:
        state = {
            "corpus": fingerprint(str(corpus.folder / MANIFEST)),
            "recipe": user,
            "base": config.model_dump(exclude_none=True),
        }
        write_file(out / STATE, tomli_w.dumps(state).encode())
    return config, corpus


def differences(before: Settings, now: Settings, prefix: str = "") -> Iterator[str]:
    """Yield in words what differs between two recipes."""
    for key in sorted(before.keys() | now.keys()):
        one, other = before.get(key), now.get(key)
        if isinstance(one, dict) and isinstance(other, dict):
            yield from differences(one, other, f"{prefix}{key}.")
        elif one != other:
            was, is_ = ("not given" if value is None else f"{value!r}" for value in (one, other))
            yield f"{prefix}{key} was {was} and is {is_}"
