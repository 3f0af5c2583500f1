"""The machine's own limit: the matrix products of a model's sizes, and nothing else.

Each weight matrix of the model is multiplied with 4,096 rows, forward and backward (three
products), in float32 and in bfloat16; the rates are weighted by how often the model has a matrix.
"""

import time
from collections.abc import Callable

import torch

from peers.protocol import Answer, Job, converse

ROWS = 4096
REPEATS = 3


def matrices(job: Job) -> dict[tuple[int, int], int]:
    """Return the model's matrices (inputs, outputs) and how many of each there are."""
    return {
        (job.d_model, job.d_model): 12 * job.N,  # 4 in an encoder layer, 8 in a decoder layer
        (job.d_model, job.d_ff): 2 * job.N,
        (job.d_ff, job.d_model): 2 * job.N,
        (job.d_model, job.vocabulary): 1,
    }


def seconds(inputs: int, outputs: int, dtype: torch.dtype) -> float:
    """Return the least time of the three products of one matrix."""
    x = torch.randn(ROWS, inputs, dtype=dtype)
    weight = torch.randn(outputs, inputs, dtype=dtype)
    y = torch.randn(ROWS, outputs, dtype=dtype)
    y_out, x_out, weight_out = torch.empty_like(y), torch.empty_like(x), torch.empty_like(weight)
    times = []
    for _ in range(REPEATS + 1):
        before = time.perf_counter()
        torch.mm(x, weight.T, out=y_out)
        torch.mm(y, weight, out=x_out)
        torch.mm(y.T, x, out=weight_out)
        times.append(time.perf_counter() - before)
    return min(times[1:])


def prepare(job: Job) -> tuple[Answer, Callable[[str], Answer]]:
    def answer(line: str) -> Answer:
        found = {}
        for dtype in (torch.float32, torch.bfloat16):
            flops = spent = 0.0
            for (inputs, outputs), count in matrices(job).items():
                flops += count * 3 * 2 * ROWS * inputs * outputs
                spent += count * seconds(inputs, outputs, dtype)
            found[str(dtype).removeprefix("torch.")] = flops / spent / 1e9
        return found

    return {"versions": {"torch": torch.__version__}, "threads": torch.get_num_threads()}, answer


if __name__ == "__main__":
    converse(prepare)
