"""How cost grows: memory with the corpus and the file, time of decoding with the output's length.

Memory of training: made-up corpora of 10,000 to 1,000,000 pairs; a first process prepares, a second
one trains, and the peak memory of the second is read from the operating system. Memory of
translation: the command, with --model, on files of as many lines. Decoding: a random model whose
END is never generated, so that every output runs to its limit.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import torch

from transduce.config import EOS, ModelConfig
from transduce.decoding.engines import TorchEngine
from transduce.decoding.search import beam_search
from transduce.model import Transformer

MODEL = {"N": 3, "d_model": 256, "d_ff": 1024, "h": 4}


def training_memory(pairs: int, folder: Path) -> float:
    """Return the peak memory, in MiB, of a process that trains on so many pairs."""
    draw = random.Random(1)
    words = [f"w{i}" for i in range(400)]
    with open(folder / f"{pairs}.tsv", "w") as file:
        for _ in range(pairs):
            line = " ".join(draw.choices(words, k=draw.randint(5, 25)))
            file.write(f"{line}\t{line}\n")
    (folder / "valid.tsv").write_text("w1 w2\tw1 w2\n")
    command = [
        *(sys.executable, "-m", "transduce", "train", "--train", folder / f"{pairs}.tsv"),
        *("--valid", folder / "valid.tsv", "--out", folder / f"run{pairs}"),
        *("--preset", "tiny", "--set", "tokenizer.kind=word", "--set", "training.tokens=2048"),
    ]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    subprocess.run([*command, "--set", "training.steps=1"], check=True, **quiet)  # type: ignore[call-overload]
    resumed = [*command, "--resume", "--set", "training.steps=100"]
    process = subprocess.Popen(list(map(str, resumed)), **quiet)  # type: ignore[call-overload]
    _, status, usage = os.wait4(process.pid, 0)
    assert status == 0
    return usage.ru_maxrss / 1024


def milliseconds_per_token(length: int) -> float:
    """Return the time per generated token of 16 outputs of a length, beam 4."""
    torch.manual_seed(1)
    config = ModelConfig(source_vocabulary=8000, target_vocabulary=8000, **MODEL)  # type: ignore[arg-type]
    model = Transformer(config).eval()
    engine = TorchEngine(model)
    sources = [[5] * 20] * 16
    times = []
    for _ in range(4):
        before = time.perf_counter()
        beam_search(engine.start(sources), [length] * 16, 4, never=(0, 1, 2, EOS))
        times.append(1000 * (time.perf_counter() - before) / length)
    return statistics.median(times[1:])


def translation_cost(model: Path, lines: int, folder: Path) -> dict[str, float]:
    """Return the peak memory, in MiB, and the seconds of translating a file of so many lines."""
    source, words = folder / f"{lines}.txt", ["two", "dogs", "play", "in", "the", "white", "snow"]
    with open(source, "w") as file:
        for i in range(lines):
            file.write(" ".join(words[: 1 + i % 7]) + "\n")
    command = [
        *(sys.executable, "-m", "transduce", "translate", model, "--input", source),
        *("--output", folder / "out", "--beam-size", "1"),
    ]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    before = time.perf_counter()
    process = subprocess.Popen(list(map(str, command)), **quiet)  # type: ignore[call-overload]
    _, status, usage = os.wait4(process.pid, 0)
    assert status == 0
    return {"mib": usage.ru_maxrss / 1024, "seconds": time.perf_counter() - before}


def straightness(lengths: dict[int, float]) -> tuple[float, float, float]:
    """Fit seconds = slope · length + start; return both, and R²."""
    x = np.array(list(lengths), dtype=float)
    y = x * np.array(list(lengths.values())) / 1000
    slope, start = np.polyfit(x, y, 1)
    left = y - (slope * x + start)
    return float(slope), float(start), float(1 - left.var() / y.var())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, help="whose translation's memory is measured")
    parser.add_argument("--lines", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--only", choices=["decoding", "training", "translation"])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    record: dict[str, Any] = {"date": date.today().isoformat(), "torch": torch.__version__}
    if options.only in (None, "decoding"):
        lengths = {length: milliseconds_per_token(length) for length in (16, 32, 64, 128, 256, 512)}
        print("| output tokens | ms a step (16 sentences, beam 4) |\n|---|---|")
        for length, milliseconds in lengths.items():
            print(f"| {length} | {milliseconds:.1f} |")
        slope, start, R2 = straightness(lengths)
        print(f"\nseconds = {1000 * slope:.2f} ms · tokens + {1000 * start:.0f} ms, R² = {R2:.4f}")
        record |= {"milliseconds_per_step": lengths, "r_squared": R2}
    with tempfile.TemporaryDirectory() as name:
        if options.only in (None, "training"):
            memory = {n: training_memory(n, Path(name)) for n in (10_000, 100_000, 1_000_000)}
            print("\n| pairs | peak memory of training, MiB |\n|---|---|")
            for pairs, mebibytes in memory.items():
                print(f"| {pairs:,} | {mebibytes:,.0f} |")
            record["training_mebibytes"] = memory
        if options.model and options.only in (None, "translation"):
            cost = {n: translation_cost(options.model, n, Path(name)) for n in options.lines}
            print("\n| lines | peak memory of translation, MiB | seconds |\n|---|---|---|")
            for lines, found in cost.items():
                print(f"| {lines:,} | {found['mib']:,.0f} | {found['seconds']:,.0f} |")
            record["translation"] = cost
    if options.json:
        options.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
