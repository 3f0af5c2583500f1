"""How many updates the toy tasks need: 20 seeds each, for the caps of `test_toy_tasks.py`.

Not part of the suite: `python -m tests.system.toy_task_updates --json FILE`.
"""

import argparse
import json
import statistics
import tempfile
from pathlib import Path

from tests.system.test_toy_tasks import TASKS, learn


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    results: dict[str, list[tuple[float, int]]] = {}
    for task, (_, cap) in TASKS.items():
        results[task] = []
        for _ in range(options.seeds):
            with tempfile.TemporaryDirectory() as name:
                results[task].append(learn(task, Path(name), cap))
        exact = [score for score, _ in results[task]]
        updates = [count for _, count in results[task]]
        print(
            f"{task}: updates {min(updates)} to {max(updates)}, median "
            f"{statistics.median(updates):.0f}; exact match {min(exact):.1f} to {max(exact):.1f}",
            flush=True,
        )
        if options.json:
            options.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
