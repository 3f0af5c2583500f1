"""Attention as explicit products against the fused kernel, and the softmax of short rows.

Forward and backward together, about 2,048 tokens in 4 heads of 64, with a padding mask.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path

import torch
from torch import Tensor

from transduce.model.transformer import attention, fused_attention, masked_softmax


def milliseconds(functions: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Time functions in turns; return medians."""
    times: dict[str, list[float]] = {name: [] for name in functions}
    for number in range(rounds + 2):
        for name, function in functions.items():
            before = time.perf_counter()
            function()
            if number >= 2:
                times[name].append(1000 * (time.perf_counter() - before))
    return {name: statistics.median(values) for name, values in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    record: dict[str, dict[str, float]] = {}
    print("| type | positions | explicit, ms | fused, ms |\n|---|---|---|---|")
    for dtype in (torch.float32, torch.bfloat16):
        for length in (10, 16, 32, 64, 128, 256, 512, 1024):
            shape = (max(1, 2048 // length), 4, length, 64)
            Q, K, V = (torch.randn(shape, dtype=dtype, requires_grad=True) for _ in range(3))
            mask = torch.ones(shape[0], 1, 1, length, dtype=torch.bool)

            def run(
                function: Callable[..., Tensor], tensors: tuple[Tensor, ...], mask: Tensor
            ) -> object:
                return torch.autograd.grad(function(*tensors, mask).sum(), tensors)

            inputs = (Q, K, V)
            found = milliseconds(
                {
                    "explicit": lambda i=inputs, m=mask: run(attention, i, m),  # type: ignore[misc]
                    "fused": lambda i=inputs, m=mask: run(fused_attention, i, m),  # type: ignore[misc]
                },
                options.rounds,
            )
            name = str(dtype).removeprefix("torch.")
            record[f"{name} {length}"] = found
            print(f"| {name} | {length} | {found['explicit']:.2f} | {found['fused']:.2f} |")
    print("\n| keys | library's softmax, ms | written out, ms |\n|---|---|---|")
    for length in (6, 10, 14, 16, 24):
        scores = torch.randn(2048 // length, 4, length, length, requires_grad=True)
        found = milliseconds(
            {
                "library": lambda s=scores: torch.autograd.grad(s.softmax(-1).square().sum(), s),  # type: ignore[misc]
                "written out": lambda s=scores: torch.autograd.grad(
                    masked_softmax(s, None).square().sum(), s
                ),  # type: ignore[misc]
            },
            options.rounds,
        )
        record[f"softmax {length}"] = found
        print(f"| {length} | {found['library']:.2f} | {found['written out']:.2f} |")
    if options.json:
        versions = {"date": date.today().isoformat(), "torch": torch.__version__}
        options.json.write_text(json.dumps(versions | record, indent=1) + "\n")


if __name__ == "__main__":
    main()
