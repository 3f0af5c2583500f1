"""A run that is killed again and again ends as the run that never was: bit by bit.

The real command, started with `--resume`, is killed (SIGKILL) at random moments until so many kills
are done, and then left alone. Checkpoints, model and log must equal those of an undisturbed run.

Not part of the suite at this length: `python -m tests.system.kill_points --kills 50`, or on a
recipe of one's own `... --kills 5 --recipe FILE --set training.steps=600`.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import date
from pathlib import Path

import torch

TOY = """
[data]
train = "train.tsv"
valid = "valid.tsv"
[model]
N = 2
d_model = 32
d_ff = 64
h = 4
P_drop = 0.2
attention_dropout = 0.1
activation_dropout = 0.1
[training]
steps = 200
tokens = 400
accumulation = 2
workers = 2
word_dropout = 0.05
warmup_steps = 50
validate_every = 20
validate_sentences = 20
checkpoint_every = 7
keep = 3
keep_best = 3
average = 3
average_of = "best"
patience = 30
log_every = 1
[decoding]
beam_size = 1
max_extra = 2
"""


def toy(folder: Path) -> Path:
    """Write a copy task of 400 pairs (some 25 updates an epoch) and its recipe."""
    draw = random.Random(1)
    for name, count in (("train", 400), ("valid", 40)):
        words = [[draw.choice("abcdefgh") for _ in range(draw.randint(1, 9))] for _ in range(count)]
        (folder / f"{name}.tsv").write_text(
            "".join(f"{' '.join(w)}\t{' '.join(w)}\n" for w in words)
        )
    (folder / "toy.toml").write_text(TOY)
    return folder / "toy.toml"


def command(recipe: Path, out: Path, settings: Sequence[str]) -> list[str]:
    """Return the command that starts a run, or goes on with it."""
    options = [part for setting in settings for part in ("--set", setting)]
    return [
        sys.executable,
        "-m",
        "transduce",
        "train",
        str(recipe),
        "--resume",
        "--out",
        str(out),
        *options,
    ]


def undisturbed(recipe: Path, out: Path, settings: Sequence[str] = ()) -> float:
    """Run to the end; return the seconds it took."""
    before = time.monotonic()
    subprocess.run(command(recipe, out, settings), check=True, stderr=subprocess.DEVNULL)
    return time.monotonic() - before


def disturbed(
    recipe: Path, out: Path, kills: int, longest: float, settings: Sequence[str] = ()
) -> list[tuple[float, int]]:
    """Run with so many kills, each at a random moment up to `longest` seconds after a start.

    Returns:
        Seconds after the start, and the newest checkpoint then, of each kill.
    """
    done: list[tuple[float, int]] = []
    while len(done) < kills:
        process = subprocess.Popen(command(recipe, out, settings), stderr=subprocess.DEVNULL)
        delay = random.uniform(0.1, longest)
        try:
            process.wait(delay)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            steps = [int(path.name[5:]) for path in (out / "checkpoints").glob("step-*")]
            done.append((delay, max(steps, default=0)))
        else:
            assert process.returncode == 0, f"the run failed with status {process.returncode}"
            break  # the run was over before all kills were done
    undisturbed(recipe, out, settings)
    return done


def traces(run: Path) -> dict[str, object]:
    """Return all that a run leaves, but for the times in it."""
    found: dict[str, object] = {}
    for path in sorted(run.rglob("*")):
        name = str(path.relative_to(run))
        if not path.is_file() or name.startswith("corpus/") or name == ".lock":
            continue
        if name == "metrics.jsonl":
            rows = [json.loads(line) for line in path.read_text().splitlines()]
            times = {"seconds", "target_tokens_per_second"}
            found[name] = [{k: v for k, v in row.items() if k not in times} for row in rows]
        elif path.name == "state.json":
            found[name] = {k: v for k, v in json.loads(path.read_text()).items() if k != "seconds"}
        else:
            found[name] = path.read_bytes()
    return found


def differences(one: Path, other: Path) -> list[str]:
    """Return the files in which two runs differ."""
    ours, theirs = traces(one), traces(other)
    return sorted(name for name in ours | theirs if ours.get(name) != theirs.get(name))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--recipe", type=Path)
    parser.add_argument("--set", action="append", default=[], dest="settings")
    parser.add_argument("--folder", type=Path, help="where the runs stay; else they are removed")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = options.folder or Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        recipe = options.recipe or toy(folder)
        seconds = undisturbed(recipe, folder / "whole", options.settings)
        longest = seconds if options.kills < 10 else max(6.0, seconds / 4)
        kills: list[tuple[float, int]] = []
        found: list[str] = []
        runs = 0
        while len(kills) < options.kills:  # a run may be over before it was killed so often
            runs += 1
            killed = folder / f"killed-{runs}"
            left = options.kills - len(kills)
            kills += disturbed(recipe, killed, left, longest, options.settings)
            found += [f"{killed.name}/{path}" for path in differences(folder / "whole", killed)]
            print(f"{len(kills)} kills in {runs} runs; files that differ: {found or 'none'}")
        steps = [step for _, step in kills]
        print(
            f"undisturbed {seconds:.0f} s; {len(kills)} kills in {runs} runs, after update "
            f"{min(steps)} to {max(steps)}; files that differ: {found or 'none'}"
        )
        if options.json:
            record = {
                "date": date.today().isoformat(),
                "torch": torch.__version__,
                "recipe": options.recipe.name if options.recipe else "toy",
                "settings": options.settings,
                "seconds": seconds,
                "runs": runs,
                "kills": kills,
                "differences": found,
            }
            options.json.write_text(json.dumps(record, indent=1) + "\n")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
