"""Translation speed of a trained model: greedy and beam 4, in batches and one line at a time."""

import argparse
import json
import os
import statistics
import sys
import time
from datetime import date
from pathlib import Path

import torch

import transduce
from transduce.data.files import read_lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--input", type=Path, help="default: Multi30k test 2016, English")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    path = options.input
    if path is None:
        if "TRANSDUCE_DATA" not in os.environ:
            sys.exit("set TRANSDUCE_DATA to the folder of the data sets, or give --input")
        path = Path(os.environ["TRANSDUCE_DATA"]) / "multi30k" / "test_2016_flickr.en.gz"
    lines = list(read_lines(path))
    translator = transduce.load(options.model, device="cpu")
    translator.translate(lines[:100])  # warm-up
    speeds: dict[int, list[float]] = {1: [], 4: []}
    singles: dict[int, list[float]] = {1: [], 4: []}
    for _ in range(options.rounds):
        for beam in speeds:
            before = time.perf_counter()
            translator.translate(lines, beam_size=beam)
            speeds[beam].append(len(lines) / (time.perf_counter() - before))
    for line in lines[:100]:
        for beam in singles:
            before = time.perf_counter()
            translator.translate([line], beam_size=beam)
            singles[beam].append(1000 * (time.perf_counter() - before))
    print("| search | sentences/s | one sentence, p50 ms | p95 ms |")
    print("|---|---|---|---|")
    for beam, values in speeds.items():
        times = sorted(singles[beam])
        print(
            f"| {'greedy' if beam == 1 else f'beam {beam}'} | {statistics.median(values):,.0f} "
            f"| {statistics.median(times):.1f} | {times[94 * len(times) // 100]:.1f} |"
        )
    if options.json:
        record = {
            "date": date.today().isoformat(),
            "sentences": len(lines),
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
            "sentences_per_second": speeds,
            "milliseconds_alone": singles,
        }
        options.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
