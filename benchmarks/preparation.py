"""Preparing a large corpus: time, memory of all processes, and sentencepiece's own command line.

Made-up pairs (Zipf-distributed words of letters) are written to a file; `transduce prepare` makes a
corpus of them, cleaning, report and tokenizer included, while the resident memory of its whole tree
of processes is sampled. Then a process goes through batches of an epoch. Beside it, spm_train and
spm_encode (if installed) learn from as many lines and encode both sides, each in its own process.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import date
from pathlib import Path

import numpy as np

import transduce
from transduce.data.tokenizer import TRAINING_LINES

BATCHES = """
import resource, sys, time
started = time.monotonic()
from pathlib import Path
from transduce.data.batches import Epochs, collate
from transduce.data.corpus import Corpus
epochs = Epochs(Corpus(Path(sys.argv[1])).train, 4096, seed=1)
pairs = batches = 0
first = None
for group in epochs.groups(0):
    batch = collate(group.batches[0])
    first = first or time.monotonic() - started
    pairs += len(batch.src)
    batches += 1
    if time.monotonic() - started > float(sys.argv[2]):
        break
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(first, peak, pairs, batches, time.monotonic() - started)
"""


def write_pairs(path: Path, pairs: int) -> None:
    draw = np.random.default_rng(1)
    letters = np.array(list("abcdefghijklmnopqrstuvwxyz"))
    words = np.array(["".join(draw.choice(letters, draw.integers(2, 10))) for _ in range(200_000)])
    with open(path, "w", encoding="utf-8") as file:
        for done in range(0, pairs, 50_000):
            sides = []
            for _ in range(2):
                lengths = draw.integers(4, 17, 50_000)
                ranks = (draw.zipf(1.15, int(lengths.sum())) - 1) % len(words)
                chosen = iter(words[ranks].tolist())
                sides.append([" ".join(next(chosen) for _ in range(n)) for n in lengths.tolist()])
            count = min(50_000, pairs - done)
            file.writelines(f"{s}\t{t}\n" for s, t in list(zip(*sides, strict=True))[:count])


def tree(root: int) -> list[int]:
    """Return a process and all its descendants."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
                parents[int(entry.name)] = int(fields[1])
            except OSError:
                continue
    found = [root]
    for process in found:
        found += [child for child, parent in parents.items() if parent == process]
    return found


def resident(processes: Sequence[int]) -> float:
    """Return the resident memory of processes, in MiB."""
    page = os.sysconf("SC_PAGE_SIZE")
    total = 0
    for process in processes:
        try:
            total += int(Path(f"/proc/{process}/statm").read_text().split()[1]) * page
        except OSError:
            continue
    return total / 2**20


def watched(command: Sequence[object]) -> tuple[float, float]:
    """Run a command; return its seconds and the peak memory of its tree of processes, in MiB."""
    started = time.monotonic()
    process = subprocess.Popen(list(map(str, command)))
    peak = 0.0
    while process.poll() is None:
        peak = max(peak, resident(tree(process.pid)))
        time.sleep(0.1)
    if process.returncode:
        sys.exit(f"{command[0]} failed")
    return time.monotonic() - started, peak


def sentencepiece(table: Path, folder: Path, pairs: int) -> dict[str, float]:
    """Learn and encode with sentencepiece's command line, a process for each side."""
    sides = [folder / "plain.src", folder / "plain.tgt"]
    for column, side in enumerate(sides, start=1):
        with open(side, "w") as file:
            subprocess.run(["cut", "-f", str(column), table], stdout=file, check=True)
    prefix = folder / "plain"
    learning, _ = watched(
        ["spm_train", f"--input={sides[0]},{sides[1]}", f"--model_prefix={prefix}",
         "--vocab_size=32000", "--model_type=bpe", "--byte_fallback=true",
         f"--input_sentence_size={TRAINING_LINES}", "--shuffle_input_sentence=true",
         "--minloglevel=2"]
    )  # fmt: skip
    started = time.monotonic()
    encoders = [
        subprocess.Popen(
            ["spm_encode", f"--model={prefix}.model", "--output_format=id", f"--output={side}.ids",
             str(side)]
        )
        for side in sides
    ]  # fmt: skip
    for encoder in encoders:
        assert encoder.wait() == 0
    encoding = time.monotonic() - started
    return {
        "learning_seconds": learning,
        "encoding_seconds": encoding,
        "encoded_pairs_per_second": pairs / encoding,
        "pairs_per_second": pairs / (learning + encoding),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=10_000_000)
    parser.add_argument("--folder", type=Path, help="where to work; kept, so that it can go on")
    parser.add_argument("--batch-seconds", type=float, default=60.0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = options.folder or Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        table = folder / f"{options.pairs}.tsv"
        if not table.exists():
            write_pairs(table, options.pairs)
        (folder / "valid.tsv").write_text("ab cd\tef gh\n" * 100)
        recipe = folder / "recipe.toml"
        recipe.write_text(
            f'[data]\ntrain = "{table.name}"\nvalid = "valid.tsv"\n'
            '[tokenizer]\nkind = "bpe"\nvocabulary = 32000\njoint = true\n'
        )
        corpus = folder / f"corpus-{options.pairs}"
        shutil.rmtree(corpus, ignore_errors=True)
        seconds, peak = watched(
            [sys.executable, "-m", "transduce", "prepare", recipe, "--out", corpus]
        )
        run = [sys.executable, "-c", BATCHES, str(corpus), str(options.batch_seconds)]
        numbers = subprocess.run(run, check=True, capture_output=True, text=True).stdout.split()
        first, batch_peak, seen, count, spent = map(float, numbers)
        record = {
            "date": date.today().isoformat(),
            "transduce": transduce.__version__,
            "pairs": options.pairs,
            "bytes": table.stat().st_size,
            "processors": len(os.sched_getaffinity(0)),
            "prepare": {
                "seconds": seconds,
                "pairs_per_second": options.pairs / seconds,
                "peak_mib": peak,
            },
            "batches": {
                "first_after_seconds": first,
                "peak_mib": batch_peak,
                "batches_per_second": count / (spent - first),
                "pairs_seen": seen,
            },
        }
        if shutil.which("spm_train"):
            record["sentencepiece"] = sentencepiece(table, folder, options.pairs)
        print(json.dumps(record, indent=1))
        if options.json:
            options.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
