"""Several processes: the same weights as one process with all the batches (A19)."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

SCRIPT = """
import sys
import torch
from safetensors.torch import save_file
from transduce.config import ModelConfig, TrainingConfig
from transduce.data.batches import collate
from transduce.model import Transformer
from transduce.training.distributed import together
from transduce.training.gradients import Gradients

out, shares = sys.argv[1], eval(sys.argv[2])
torch.manual_seed(1)
model = Transformer(ModelConfig(
    N=2, d_model=16, d_ff=32, h=2, P_drop=0.0, source_vocabulary=20, target_vocabulary=20,
    joint_vocabulary=True)).train()
pairs = [([5, 6], [7]), ([8, 9, 10], [11, 12, 13, 14, 15, 16, 17])]
with together() as ranks:
    group = [collate([pairs[i] for i in batch]) for batch in shares[ranks.rank]]
    gradients = Gradients(model, TrainingConfig(precision="float32"))
    sums = gradients.compute(group, 2 + 8, 1, ranks)
    torch.optim.SGD(model.parameters(), lr=0.5).step()
    assert ranks.of_first(ranks.rank + 7.0) == [7.0]
    ranks.wait()
    found = {name: p.detach().clone() for name, p in model.named_parameters()}
    found["loss"] = torch.tensor(sums.loss)
    save_file(found, f"{out}-{ranks.rank}.safetensors")
"""


def run(out: Path, shares: list[list[list[int]]]) -> list[dict[str, torch.Tensor]]:
    """Start a process for each share of the pairs; return what each of them ends with."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    count = len(shares)
    processes = [
        subprocess.Popen(
            [sys.executable, "-W", "error", "-c", SCRIPT, str(out), repr(shares)],
            env=os.environ
            | ({
                "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank),
                "WORLD_SIZE": str(count), "LOCAL_RANK": str(rank),
            } if count > 1 else {}),
        )
        for rank in range(count)
    ]  # fmt: skip
    assert [process.wait(120) for process in processes] == [0] * count
    return [load_file(f"{out}-{rank}.safetensors") for rank in range(count)]


@pytest.mark.parametrize(
    "shares",
    [[[[0]], [[1]]], [[[0, 1]], []], [[[0], [1]]]],
    ids=["2 and 8 tokens", "a process without sentences", "accumulation"],
)
def test_the_same_as_one_process(tmp_path: Path, shares: list[list[list[int]]]) -> None:
    (right,) = run(tmp_path / "one", [[[0, 1]]])
    for found in run(tmp_path / "several", shares):
        assert found.keys() == right.keys()
        for name, tensor in found.items():
            torch.testing.assert_close(tensor, right[name], rtol=1e-6, atol=1e-6)


RECIPE = """
[data]
train = "t.tsv"
valid = "t.tsv"
[model]
N = 1
d_model = 16
d_ff = 32
h = 2
P_drop = 0.0
[training]
steps = 12
tokens = 40
accumulation = {accumulation}
precision = "float32"
warmup_steps = 5
validate_every = 6
checkpoint_every = 6
[decoding]
beam_size = 1
"""


def test_the_command_in_two_processes(tmp_path: Path) -> None:
    """torchrun -m transduce train ...: the run of one process with twice the micro-batches."""
    rows = [
        f"{' '.join('abcdef'[i % 5 :])}\t{' '.join('abcdef'[: i % 6 + 1])}\n" for i in range(40)
    ]
    (tmp_path / "t.tsv").write_text("".join(rows))
    found = []
    for processes in (1, 2):
        (tmp_path / "recipe.toml").write_text(RECIPE.format(accumulation=4 // processes))
        run = tmp_path / f"run-{processes}"
        torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
        command = [sys.executable, *torchrun, "-m", "transduce"]
        done = subprocess.run(
            [*command, "train", str(tmp_path / "recipe.toml"), "--out", str(run)],
            capture_output=True, text=True, timeout=300,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert done.stderr.count("validation after 12 updates") == 1
        found.append(load_file(run / "checkpoints" / "step-12" / "model.safetensors"))
    for name, tensor in found[0].items():
        torch.testing.assert_close(tensor, found[1][name], rtol=1e-4, atol=1e-5)
