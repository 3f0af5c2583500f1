"""What each thing that training is fast by brings: the product beside itself without it.

The work and the rounds are those of `training.py`; each row is a process in which one thing is
undone (`peers/ours.py`), and the ratio says how much faster the product is with it, round by round.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
from dataclasses import asdict
from datetime import date
from pathlib import Path

import training
from training import Measured, System, measure, per_round, processor, spread

FULL = "the product"
CANDIDATES = {
    "parts side by side": "bfloat16 without parts side by side",
    "bfloat16 products": "float32",
    "separate projections": "bfloat16 without separate projections",
    "explicit attention": "bfloat16 without explicit attention",
    "own gradient of the softmax": "bfloat16 without own gradient of the softmax",
    "loss in chunks": "bfloat16 without loss in chunks",
    "dropout by bits": "bfloat16 without dropout by bits",
    "fused Adam": "bfloat16 without fused Adam",
    "pages kept": "bfloat16 without pages kept",
}
COMPILED = "compiled"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=["T", "S", "B"], default="S", help="T: preset tiny")
    parser.add_argument("--rounds", type=int, default=4, help="after one round of warm-up")
    parser.add_argument("--updates", type=int, default=4, help="counted updates of a block")
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--only", nargs="+", choices=[*CANDIDATES, COMPILED])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    options.peer, options.reference = {}, ""
    if not os.environ.get("TRANSDUCE_DATA"):
        sys.exit("set TRANSDUCE_DATA to the folder of the data sets")
    chosen = options.only or list(CANDIDATES)
    training.PRESETS["T"] = "tiny"
    training.SYSTEMS.clear()
    training.SYSTEMS[FULL] = System(FULL, "ours", "bfloat16", "ours")
    for name in chosen:
        variant = CANDIDATES.get(name, "bfloat16 compiled")
        training.SYSTEMS[name] = System(f"{name}: undone", "ours", variant, "ours")
    options.systems = list(training.SYSTEMS)
    with tempfile.TemporaryDirectory() as folder:
        found = measure(options.size, options, Path(folder))
    systems: dict[str, Measured] = found["systems"]
    speeds = {name: system.rates(found["tokens"]) for name, system in systems.items()}
    peaks = {name: system.blocks[-1]["peak_mib"] for name, system in systems.items()}
    print(f"the product: {spread(speeds[FULL], '{:,.0f}')} target tokens/s, {peaks[FULL]:,.0f} MiB")
    print(
        "\n| what | times as fast with it | MiB less with it | first update, s |\n|---|---|---|---|"
    )
    for name in (name for name in systems if name != FULL):
        ratio = per_round(speeds[FULL], speeds[name], "{:.2f}")
        first = systems[name].blocks[0]["seconds"][0]
        print(f"| {name} | {ratio} | {peaks[name] - peaks[FULL]:,.0f} | {first:.1f} |")
    if options.json:
        record = {
            "date": date.today().isoformat(),
            "processor": processor(),
            "size": options.size,
            "tokens": options.tokens,
            "speeds": speeds,
            "medians": {name: statistics.median(values) for name, values in speeds.items()},
            "peak_mib": peaks,
            "about": asdict(systems[FULL])["about"],
            "skipped": found["skipped"],
        }
        options.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
