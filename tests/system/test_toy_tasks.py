"""It learns: copy, reverse and sort, from files of pairs to exact match, by the real commands.

The seed is not fixed. Training stops when validation is perfect; the cap is three times
the median number of updates over 20 seeds (docs/results.md).
"""

import random
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

TASKS: dict[str, tuple[Callable[[list[str]], list[str]], int]] = {
    "copy": (lambda words: words, 1050),
    "reverse": (lambda words: words[::-1], 1875),
    "sort": (sorted, 2700),
}
RECIPE = """
[data]
train = "train.tsv"
valid = "valid.tsv"
[model]
N = 2
d_model = 64
d_ff = 128
h = 4
P_drop = 0.0
[training]
tokens = 1024
learning_rate = 3e-3
warmup_steps = 100
validate_every = 50
validate_sentences = 300
stop_at_score = 100.0
[decoding]
max_extra = 5
beam_size = 1
"""


def pairs(task: str, count: int, draw: random.Random) -> str:
    solve, _ = TASKS[task]
    rows: set[str] = set()
    while len(rows) < count:
        words = [draw.choice("abcdefghij") for _ in range(draw.randint(2, 7))]
        rows.add(" ".join(words) + "\t" + " ".join(solve(words)) + "\n")
    return "".join(sorted(rows, key=lambda _: draw.random()))


def transduce(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "transduce", *map(str, arguments)],
        capture_output=True, text=True, check=True, timeout=600,
    )  # fmt: skip


def learn(task: str, folder: Path, cap: int, changes: Sequence[str] = ()) -> tuple[float, int]:
    """Train and evaluate; return the exact match on unseen pairs and the number of updates."""
    seed = random.SystemRandom().randrange(10**6)
    rows = pairs(task, 6800, random.Random(seed)).splitlines(keepends=True)
    (folder / "train.tsv").write_text("".join(rows[:6000]))
    (folder / "valid.tsv").write_text("".join(rows[6000:6300]))
    (folder / "test.tsv").write_text("".join(rows[6300:]))
    (folder / "recipe.toml").write_text(RECIPE)
    settings = [f"training.steps={cap}", f"training.seed={seed}", *changes]
    done = transduce(
        "train", folder / "recipe.toml", "--out", folder / "run",
        *(word for setting in settings for word in ("--set", setting)),
    )  # fmt: skip
    updates = int(
        re.findall(r"validation after ([\d,]+) updates", done.stderr)[-1].replace(",", "")
    )
    scored = transduce(
        "evaluate", folder / "run", "--test", folder / "test.tsv", "--metrics", "exact"
    )
    return float(scored.stdout.split()[1]), updates


@pytest.mark.parametrize("task", TASKS)
def test_it_learns(task: str, tmp_path: Path) -> None:
    exact, updates = learn(task, tmp_path, TASKS[task][1])
    assert exact >= 98.0, f"after {updates} updates"


LAYER_TYPES = {  # settings, caps of copy and reverse
    "restricted": (["model.window=3"], 1500, 2400),
    "recurrent": (["model.cell=gru"], 1200, 2400),
    "convolutional": (["model.kernel=5"], 1200, 1800),
}


@pytest.mark.parametrize("task", ["copy", "reverse"])
@pytest.mark.parametrize("kind", LAYER_TYPES)
def test_every_layer_type_learns(kind: str, task: str, tmp_path: Path) -> None:
    """In the place of self-attention, on both sides; cross-attention stays."""
    settings, copy_cap, reverse_cap = LAYER_TYPES[kind]
    types = [f"model.{side}_layer_type={kind}" for side in ("encoder", "decoder")]
    cap = copy_cap if task == "copy" else reverse_cap
    exact, updates = learn(task, tmp_path, cap, [*types, *settings])
    assert exact >= 98.0, f"after {updates} updates"
