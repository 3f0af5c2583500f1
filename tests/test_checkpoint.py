"""Files: written whole or not at all, averaged right, refused when broken, never executed."""

import errno
import io
import json
import pickle
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.conftest import BuildModel
from transduce import model_folder
from transduce.errors import TransduceError
from transduce.model_folder import (
    average,
    read_tensors,
    set_weights,
    weights,
    write_file,
    write_tensors,
)
from transduce.training.checkpoint import Best, Checkpoints, Progress, average_of, step_of


def small() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    model(torch.randn(5, 3)).square().sum().backward()
    optimizer.step()
    return model, optimizer


def steps(checkpoints: Checkpoints) -> list[int]:
    return [step_of(path) for path in checkpoints.all()]


def test_save_and_restore(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "c", keep=3)
    model, optimizer = small()
    progress = Progress(step=7, epoch=1, window=2, batch=3, best=[Best(2.5, 1.0, 5)], misses=1)
    path = checkpoints.save(model, optimizer, progress)
    assert sorted(p.name for p in path.iterdir()) == [
        "model.safetensors", "optimizer.safetensors", "state.json",
    ]  # fmt: skip
    other, other_optimizer = small()
    assert checkpoints.restore(path, other, other_optimizer) == progress
    for ours, theirs in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(ours, theirs)
        for key in ("exp_avg", "exp_avg_sq", "step"):
            assert torch.equal(optimizer.state[ours][key], other_optimizer.state[theirs][key])


def test_rotation_keeps_the_newest_and_the_best(tmp_path: Path) -> None:
    """A25."""
    model, optimizer = small()
    checkpoints = Checkpoints(tmp_path / "some", keep=2)
    for step in range(1, 6):
        checkpoints.save(model, optimizer, Progress(step=step, best=[Best(1.0, 1.0, 1)]))
    assert steps(checkpoints) == [1, 4, 5]
    checkpoints = Checkpoints(tmp_path / "all", keep=-1)
    for step in range(1, 6):
        checkpoints.save(model, optimizer, Progress(step=step))
    assert steps(checkpoints) == [1, 2, 3, 4, 5]
    checkpoints = Checkpoints(tmp_path / "ten", keep=2)  # by number, not by name
    for step in (8, 9, 10, 11):
        checkpoints.save(model, optimizer, Progress(step=step))
    assert steps(checkpoints) == [10, 11]


def test_a_full_disk_leaves_the_older_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A22 (a): no space after 1 kB."""
    model, optimizer = small()
    checkpoints = Checkpoints(tmp_path, keep=2)
    older = checkpoints.save(model, optimizer, Progress(step=1))
    content = (older / "model.safetensors").read_bytes()

    class Full(io.FileIO):
        def write(self, data: object) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(model_folder, "open", lambda path, mode: Full(path, "w"), raising=False)
    with pytest.raises(TransduceError, match="No space left on device"):
        checkpoints.save(model, optimizer, Progress(step=2))
    monkeypatch.undo()
    assert steps(checkpoints) == [1]
    assert [path.name for path in tmp_path.iterdir()] == ["step-1"]
    assert (older / "model.safetensors").read_bytes() == content
    assert checkpoints.restore(older, *small()).step == 1


KILLED = """
import sys, time, torch
from pathlib import Path
from torch import nn
from transduce import model_folder
from transduce.training import checkpoint
from transduce.training.checkpoint import Checkpoints, Progress

model = nn.Linear(3, 3)
checkpoints = Checkpoints(Path(sys.argv[1]), keep=2)
optimizer = torch.optim.Adam(model.parameters())
checkpoints.save(model, optimizer, Progress(step=1))
slowly = checkpoint.write_tensors
def write(path, tensors):
    slowly(path, tensors)
    print("writing", flush=True)
    time.sleep(60)
checkpoint.write_tensors = write
checkpoints.save(model, optimizer, Progress(step=2))
"""


def test_killed_while_saving(tmp_path: Path) -> None:
    """A22 (b): the older checkpoint loads; the leftover goes at the next start."""
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "writing\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert (tmp_path / ".step-2").exists()
    checkpoints = Checkpoints(tmp_path, keep=2)
    assert steps(checkpoints) == [1]
    assert not (tmp_path / ".step-2").exists()
    model = nn.Linear(3, 3)
    assert (
        checkpoints.restore(checkpoints.all()[0], model, torch.optim.Adam(model.parameters())).step
        == 1
    )


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    """A22 (c), in a form that holds for root too: a file where the folder should be."""
    (tmp_path / "file").write_text("")
    with pytest.raises(TransduceError, match="cannot write"):
        Checkpoints(tmp_path / "file" / "checkpoints", keep=1)
    with pytest.raises(TransduceError, match="cannot write"):
        write_file(tmp_path / "nowhere" / "x", b"")


def test_averaging() -> None:
    """A23: the mean, in wide sums, of one the same, of different ones an error."""
    one, three = {"w": torch.tensor([1.0])}, {"w": torch.tensor([3.0])}
    assert average([one, three])["w"].item() == 2.0
    assert average([three])["w"].item() == 3.0
    large = [{"w": torch.tensor([60000.0], dtype=torch.float16)}] * 2
    assert average(large)["w"].item() == 60000.0
    with pytest.raises(TransduceError, match="names or shapes"):
        average([one, {"v": torch.tensor([1.0])}])
    with pytest.raises(TransduceError, match="names or shapes"):
        average([one, {"w": torch.ones(2)}])


def test_averaging_tied_matrices(build: BuildModel) -> None:
    """A23: one matrix under three names is averaged once, and still shared."""
    options = {"joint_vocabulary": True, "source_vocabulary": 29}
    models = [build(**options), build(**options)]
    for model, value in zip(models, (1.0, 3.0), strict=True):
        nn.init.constant_(model.source_embedding.weight, value)
    tensors = average(weights(model) for model in models)
    assert "output.weight" not in tensors and "target_embedding.weight" not in tensors
    loaded = build(**options)
    set_weights(loaded, tensors, Path("x"))
    assert loaded.output.weight is loaded.source_embedding.weight
    assert (loaded.output.weight == 2.0).all()


def test_average_of_the_last(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=-1)
    for step in (9, 10, 11):
        model, optimizer = small()
        nn.init.constant_(model[0].weight, step)  # type: ignore[index]
        checkpoints.save(model, optimizer, Progress(step=step))
    tensors, chosen = average_of(tmp_path, 2, "last")
    assert [path.name for path in chosen] == ["step-10", "step-11"]
    assert (tensors["0.weight"] == 10.5).all()
    with pytest.raises(TransduceError, match="3 checkpoints, not 4"):
        average_of(tmp_path, 4, "last")


def test_average_of_the_best(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=1)
    best = [Best(30.0, 1.0, 2), Best(20.0, 1.0, 4)]
    for step in range(1, 6):
        model, optimizer = small()
        nn.init.constant_(model[0].weight, step)  # type: ignore[index]
        checkpoints.save(model, optimizer, Progress(step=step, best=best))
    assert steps(checkpoints) == [2, 4, 5]
    tensors, chosen = average_of(tmp_path, 2, "best")
    assert [path.name for path in chosen] == ["step-2", "step-4"]
    assert (tensors["0.weight"] == 3.0).all()
    with pytest.raises(TransduceError, match="2 best checkpoints, not 3"):
        average_of(tmp_path, 3, "best")


def test_the_best_in_order() -> None:
    """A25: direction belongs to the metric; ties go to the lower loss, then to the earlier."""
    for sign in (1, -1):
        progress = Progress()

        def is_better(score: float, than: float | None, sign: int = sign) -> bool:
            return than is None or sign * score > sign * than

        scores = [(10, 3.0), (30, 3.0), (20, 3.0), (30, 2.0), (30, 2.0), (5, 1.0)]
        places = [
            progress.enter(Best(sign * float(score), loss, step), is_better, most=3)
            for step, (score, loss) in enumerate(scores)
        ]
        assert places == [0, 0, 1, 0, 1, None]
        assert [best.step for best in progress.best] == [3, 4, 1]
        assert progress.misses == 2


class Marker:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return open, (str(self.path), "w")


def test_nothing_loaded_is_executed(tmp_path: Path, build: BuildModel) -> None:
    """A24: a pickle under each file name that is read."""
    marker = tmp_path / "executed"
    poison = pickle.dumps(Marker(marker))
    checkpoints = Checkpoints(tmp_path / "c", keep=1)
    model, optimizer = small()
    for name in ("model.safetensors", "optimizer.safetensors", "state.json"):
        path = checkpoints.save(model, optimizer, Progress(step=1))
        (path / name).write_bytes(poison)
        with pytest.raises(TransduceError):
            checkpoints.restore(path, *small())
    assert not marker.exists()
    pickle.loads(poison).close()
    assert marker.exists()  # the poison works


def test_broken_tensors_are_named(tmp_path: Path, build: BuildModel) -> None:
    """A24: missing, extra, misshapen, truncated."""
    model = build()
    path = tmp_path / "model.safetensors"
    good = weights(model)
    renamed = {("moved" if name == "encoder.layers.0.self_attention.W_Q.weight" else name): tensor
               for name, tensor in good.items()}  # fmt: skip
    with pytest.raises(TransduceError) as caught:
        set_weights(model, renamed, path)
    assert "missing: encoder.layers.0.self_attention.W_Q.weight" in str(caught.value)
    assert "unknown: moved" in str(caught.value)
    with pytest.raises(TransduceError, match=r"source_embedding.weight is \[3, 3\], expected"):
        set_weights(model, good | {"source_embedding.weight": torch.ones(3, 3)}, path)
    with pytest.raises(TransduceError, match=rf"missing: .* and {len(good) - 5} more$"):
        set_weights(model, {}, path)
    name = "source_embedding.weight"
    for tensor, words in (
        (good[name] / 0, "not all numbers of source_embedding.weight are finite"),
        (good[name].int(), "source_embedding.weight holds no plain numbers, but torch.int32"),
    ):
        with pytest.raises(TransduceError, match=words):
            set_weights(model, good | {name: tensor}, path)
    write_tensors(path, good)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(TransduceError, match="cannot read"):
        read_tensors(path)
    with pytest.raises(TransduceError, match="No such file"):
        read_tensors(tmp_path / "nowhere.safetensors")


def test_state_is_json(tmp_path: Path) -> None:
    model, optimizer = small()
    path = Checkpoints(tmp_path, keep=1).save(model, optimizer, Progress(step=3, epoch=2))
    assert json.loads((path / "state.json").read_text())["epoch"] == 2
