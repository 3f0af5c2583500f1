"""The model in the paper's terms, against the paper's numbers and the model itself."""

import subprocess
import sys
from pathlib import Path

import pytest

from transduce.config import Settings, overlay
from transduce.inspection.explanation import settings_to_explain, study
from transduce.inspection.study import Study


def rows(found: Study, heading: str) -> dict[str, list[str]]:
    section = next(section for section in found.sections if section.heading == heading)
    return {row[0]: list(row[1:]) for row in section.tables[0].rows}


def explained(**model: object) -> Study:
    settings: Settings = {
        "model": {"d_model": 16, "d_ff": 32, "h": 2, "N": 1, "N_decoder": 2} | model,
        "tokenizer": {"vocabulary": 50}, "training": {"tokens": 64},
    }  # fmt: skip
    return study(settings, "recipe")


def test_the_papers_base() -> None:
    """§3: 6 + 6 layers of 512; 37,000 pieces in one matrix: 63 million (PAPER, D4)."""
    found = study(
        overlay({"profile": "paper", "preset": "base", "tokenizer": {"vocabulary": 37000}}), "base"
    )
    assert found.record == {"parameters": 63_045_632, "departures": []}
    parts = rows(found, "Parameters")
    assert parts["source embedding"][0] == f"{37000 * 512:,}"
    assert parts["encoder: self attention"][0] == f"{6 * 4 * 512**2:,}"
    assert parts["decoder: cross attention"][0] == f"{6 * 4 * 512**2:,}"
    assert parts["decoder: norms"][0] == f"{6 * 3 * 2 * 512:,}"
    assert sum(int(n.replace(",", "")) for n, _ in parts.values()) == 63_045_632
    said = rows(found, "Operations")
    layer = 4 * 512**2 + 2 * 32 * 512 + 2 * 512 * 2048
    assert said["encoder, a source token"] == [f"{6 * layer:,}"]
    assert said["output, a target token"] == [f"{512 * 37000:,}"]
    assert found.sections[-1].sentences == ["None."]


def test_shapes_and_departures() -> None:
    found = explained(norm_place="pre", decoder_layer_type="recurrent", positions="none")
    figure = rows(found, "Figure 1")
    assert figure["source embedding"] == ["B S 16", "row of [50, 16] · √d_model"]
    assert figure["decoder, 2 × masked recurrent layer"][1] == "LSTM from position to position"
    assert any("decoder_layer_type = recurrent" in line for line in found.sections[-1].sentences)


@pytest.mark.parametrize(
    "model",
    [
        {"decoder_layer_type": "convolutional", "kernel": 4},
        {"encoder_layer_type": "restricted", "decoder_layer_type": "restricted"},
        {"tie_embeddings": False, "norm_kind": "batch", "attention_normaliser": "relu"},
        {"positions": "learned", "output_bias": True},
    ],
)
def test_every_part_is_counted(model: dict[str, object]) -> None:
    found = explained(**model)
    parts = rows(found, "Parameters")
    whole = sum(int(n.replace(",", "")) for n, _ in parts.values())
    assert whole == found.record["parameters"]


def test_the_command(tmp_path: Path) -> None:
    recipe = tmp_path / "r.toml"
    recipe.write_text('preset = "tiny"\n')
    command = [sys.executable, "-m", "transduce", "explain"]
    done = subprocess.run(
        [*command, str(recipe), "--set", "model.h=1"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("r in the paper's terms")
    assert "1 heads of d_k 128" in done.stdout
    done = subprocess.run([*command, str(tmp_path / "no.toml")], capture_output=True, text=True)
    assert done.returncode in (1, 2) and "Traceback" not in done.stderr


def test_a_model_folder_is_explained_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("[model]\nsource_vocabulary = 9\ntarget_vocabulary = 9\n")
    found = settings_to_explain(tmp_path, ["model.N=2"])
    assert found["model"]["source_vocabulary"] == 9 and found["model"]["N"] == 2
