"""Table 1: formulas against counts, paths against the whole graph, exponents of known times."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from transduce.config import LayerType, ModelConfig
from transduce.inspection import layers, positions
from transduce.inspection.layer_costs import (
    KINDS,
    best,
    cost,
    counted,
    exponent,
    layer,
    measured_path,
    mixing,
    operations,
    operations_of_layer,
    path,
    sizes,
)

SMALL = sizes(8).model_copy(update={"window": 5})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("n", "d"), [(48, 16), (100, 128)])
def test_operations_by_formula_are_those_counted(kind: LayerType, n: int, d: int) -> None:
    with torch.device("meta"):
        assert counted(mixing(kind, n, sizes(d))) == operations(kind, n, sizes(d))
        assert counted(layer(kind, n, sizes(d))) == operations_of_layer(kind, n, sizes(d))


def test_operations_of_a_layer_by_hand() -> None:
    """4 n d² for the projections, 2 n d d_ff for the network, 2 n² d between them."""
    n, d = 50, 16
    with torch.device("meta"):
        found = counted(layer("self-attention", n, sizes(d)))
    assert found == 4 * n * d * d + 2 * n * d * 4 * d + 2 * n * n * d


def test_table_1_in_n_and_d() -> None:
    """Twice the positions: four times the products of self-attention, twice those of others."""
    with torch.device("meta"):
        for kind in KINDS:
            longer = operations(kind, 2048, sizes(64)) / operations(kind, 1024, sizes(64))
            assert longer == (4 if kind == "self-attention" else 2)
            wider = operations(kind, 1024, sizes(512)) / operations(kind, 1024, sizes(256))
            squared = kind in ("recurrent", "convolutional")
            assert wider == pytest.approx(4 if squared else 2, rel=0.02)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [2, 3, 7, 33])
def test_paths_by_formula_are_those_found(kind: LayerType, n: int) -> None:
    assert path(kind, n, SMALL) == measured_path(kind, n, SMALL)


@pytest.mark.parametrize("kernel", [3, 5, 7])
@pytest.mark.parametrize("n", [2, 5, 9, 26, 64])
def test_paths_of_dilated_convolutions(kernel: int, n: int) -> None:
    config = ModelConfig(**(SMALL.model_dump() | {"dilated": True, "kernel": kernel}))
    assert path("convolutional", n, config) == measured_path("convolutional", n, config)


def test_paths_by_hand() -> None:
    found = {kind: path(kind, 256, sizes(8)) for kind in KINDS}
    assert found == {
        "self-attention": 1, "recurrent": 255, "convolutional": 255, "restricted": 16,
    }  # fmt: skip
    assert path("convolutional", 256, sizes(8, dilated=True)) == 8


def test_exponents_of_known_times() -> None:
    assert exponent([(n, 3e-9 * n**1.7) for n in (1024.0, 2048.0, 4096.0)]) == pytest.approx(1.7)


def test_memory_grows_as_what_is_kept() -> None:
    peaks = [cost("convolutional", n, 16).peak for n in (64, 128)]
    assert peaks[1] / peaks[0] == pytest.approx(2, rel=0.2)


def test_the_study_says_what_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers, "PATHS", (4, 8))
    monkeypatch.setattr(layers, "WIDTH_AT", 8)
    told: list[str] = []
    study = layers.study([8, 16], [8, 16], 8, told.append)
    assert told[0] == "round 1 of 3: n = 8, d = 8" and told[-1] == "paths"
    assert len(study.record["costs"]) == 16
    assert {way["kind"] for way in study.record["paths"]} > set(KINDS)
    table = study.sections[0].tables[0]
    assert [row[0] for row in table.rows] == list(KINDS)
    assert table.rows[0][1] == "O(n² · d)"


def test_the_shortest_times_count() -> None:
    point = cost("restricted", 4, 8)
    times = [(3.0, 1.0, 2.0), (1.0, 2.0, 3.0)]
    both = [replace(point, mixing=m, forward=f, training=t) for m, f, t in times]
    found = best(both)
    assert (found.mixing, found.forward, found.training) == (1.0, 1.0, 2.0)


def transduce(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "transduce", *map(str, arguments)], capture_output=True, text=True
    )


def test_a_command(tmp_path: Path) -> None:
    page, numbers = tmp_path / "norms.html", tmp_path / "norms.json"
    done = transduce("compare", "norms", "--updates", 2, "--out", page, "--json", numbers)
    assert done.returncode == 0, done.stderr
    assert "thread" in done.stdout.splitlines()[1]
    assert page.read_text().startswith("<!doctype html>")
    assert set(json.loads(numbers.read_text())["moved"]) == {"layer", "rms", "batch"}


def test_positions_beyond(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(positions, "LENGTHS", (12, 13, 24))
    monkeypatch.setattr(positions, "SENTENCES", 3)
    study = positions.study(updates=2)
    assert {len(points) for points in study.record["exact"].values()} == {3}
    assert [sentence.split(":")[0] for sentence in study.sections[0].sentences] == [
        "sinusoidal", "learned", "none",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("layers", "--lengths", 0), "--lengths 0: must be at least 1"),
        (("layers", "--d", 0), "--d 0: must be at least 1"),
        (("norms", "--updates", 0), "--updates 0: must be at least 1"),
        (("positions", "--out", "nowhere/page.html"), "there is no folder nowhere"),
        (("layer",), "layers"),
    ],
)
def test_wrong_usage(arguments: tuple[object, ...], says: str) -> None:
    done = transduce("compare", *arguments)
    assert done.returncode == 2
    assert says in done.stderr and "Traceback" not in done.stderr
