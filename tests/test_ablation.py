"""An ablation: rows and verdicts by hand, and the real thing on a few pairs of letters."""

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w

from tests.conftest import letters_recipe
from transduce.config import Config, Settings, merge, named, parse
from transduce.errors import UsageError
from transduce.evaluating import Items
from transduce.evaluation.metrics import Statistics, evaluate, statistics
from transduce.experiment import train
from transduce.inspection.ablation import ablate, priced
from transduce.inspection.ablation_rows import BASE, GROUPS, PAPER, chosen, row_of, rows_of
from transduce.inspection.ablation_runs import Failure, Result
from transduce.inspection.ablation_study import study_of
from transduce.inspection.ablation_verdicts import (
    Mean,
    difference,
    in_paper,
    judgement,
    measured,
    verdict,
)
from transduce.inspection.study import page, printed
from transduce.model_folder import METRICS

HIT = "<script>hit()</script>"


def base(**changes: Any) -> Config:
    """N 3, d_model 128, d_ff 512, h 4, and so d_k = d_v = 32."""
    return parse(merge(named("presets", "tiny"), {"model": changes}), "test")


# Rows -------------------------------------------------------------------------------------------

BY_HAND: dict[str, dict[str, Any]] = {
    "A1": {"h": 1, "d_k": 128, "d_v": 128},  # 4 / 8 heads: one
    "A2": {"h": 2, "d_k": 64, "d_v": 64},
    "A3": {"h": 8, "d_k": 16, "d_v": 16},
    "A4": {"h": 16, "d_k": 8, "d_v": 8},
    "B1": {"d_k": 8},
    "B2": {"d_k": 16},
    "C1": {"N": 1, "N_encoder": 1, "N_decoder": 1},
    "C2": {"N": 2, "N_encoder": 2, "N_decoder": 2},
    "C3": {"N": 4, "N_encoder": 4, "N_decoder": 4},
    "C4": {"d_model": 64, "d_k": 16, "d_v": 16},
    "C5": {"d_model": 256, "d_k": 64, "d_v": 64},
    "C6": {"d_ff": 256},
    "C7": {"d_ff": 1024},
    "D1": {"P_drop": 0.0},
    "D2": {"P_drop": 0.2},
    "D3": {},
    "D4": {},
    "E": {"positions": "learned"},
    "big": {"d_model": 256, "d_ff": 1024, "h": 8, "P_drop": 0.3},
    "lstm": {"encoder_layer_type": "recurrent", "decoder_layer_type": "recurrent"},
    "dilated": {
        "encoder_layer_type": "convolutional", "decoder_layer_type": "convolutional",
        "dilated": True,
    },
    "pre-rms": {"norm_place": "pre", "norm_kind": "rms"},
    "sparsemax": {"attention_normaliser": "sparsemax"},
    "none": {"positions": "none"},
}  # fmt: skip


@pytest.mark.parametrize("name", BY_HAND)
def test_rows_by_hand(name: str) -> None:
    row = row_of(name, base())
    expected = merge(base().model.model_dump(), BY_HAND[name])
    assert row.config.model.model_dump() == expected
    assert row.config.training.eps_ls == {"D3": 0.0, "D4": 0.2}.get(name, 0.1)
    assert row.paper == PAPER.get(name)


@pytest.mark.parametrize("name", [name for name in PAPER if name != BASE])
def test_of_the_papers_base_the_rows_are_the_papers(name: str) -> None:
    own = row_of(name, parse(named("presets", "base"), "test"))
    theirs = parse(named("presets", name), "test")
    assert own.config.model == theirs.model and own.config.training == theirs.training
    assert not own.notes


def test_in_words() -> None:
    assert row_of("A2", base()).changes == "h 2, d_k = d_v 64"
    assert row_of("C1", base()).changes == "N 1"
    assert row_of("C1", base(N_encoder=6, N_decoder=3)).changes == "N_encoder 2, N_decoder 1"
    assert row_of("B1", base()).changes == "d_k 8"
    assert row_of("D3", base()).changes == "eps_ls 0.0"
    assert row_of("restricted", base()).changes == "layer_type restricted, window 16"
    assert row_of("gru", base()).changes == "layer_type recurrent, cell gru"


def test_what_is_not_possible_is_rounded_and_said() -> None:
    assert row_of("A1", base()).notes == ("A1: h 0.5 is not possible: 1",)
    few = row_of("B1", base(d_k=2, d_v=2))
    assert few.config.model.d_k == 1 and few.notes == ("B1: d_k 0.5 is not possible: 1",)
    # 12 heads of a width of 30: 10 is the nearest that divides it
    odd = row_of("A4", base(d_model=30, h=3))
    assert (odd.config.model.h, odd.config.model.d_k) == (10, 3)
    assert odd.notes == ("A4: h 12 is not possible: 10",)
    even = row_of("convolutional", base(kernel=4))
    assert even.config.model.kernel == 5 and "even" in even.notes[0]
    far = row_of("E", parse({"data": {"max_length": 3000}}, "test"))
    assert far.config.model.max_positions == 3001


def test_what_is_the_same_is_left_out_and_named() -> None:
    rows, left_out = rows_of(chosen(["C1", "C2", "E", "norms", "positions"]), base(N=1))
    assert [row.name for row in rows["positions"]] == ["none"]
    assert "post-layer" not in [row.name for row in rows["norms"]]
    assert "C" not in rows
    assert left_out == [
        "left out, since here it would be the same as base: C1: N 0.333 is not possible: 1, "
        "C2: N 0.667 is not possible: 1, post-layer, sinusoidal",
        "left out, since here it would be the same as E: learned",
    ]


def test_a_probability_that_goes_the_other_way_has_no_counterpart() -> None:
    assert row_of("D2", base(P_drop=0.3)).paper is None
    assert "other direction" in row_of("D2", base(P_drop=0.3)).notes[0]
    assert row_of("D1", base(P_drop=0.3)).paper == PAPER["D1"]
    assert row_of("big", base(P_drop=0.3)).paper == PAPER["big"]


def test_what_a_row_leaves_as_it_is_is_said() -> None:
    notes = row_of("D1", base(attention_dropout=0.1)).notes
    assert notes == ("D1: of dropout only P_drop changes: attention_dropout and activation_dropout "
                     "stay",)  # fmt: skip


def test_names() -> None:
    assert [group.name for group in chosen(["layers", "B1", "A"])] == ["A", "B", "layers"]
    assert [group.rows for group in chosen(["B2", "B2"])] == [("B2",)]
    with pytest.raises(UsageError, match="did you mean 'layers'"):
        chosen(["layer"])
    with pytest.raises(UsageError, match="at least one more"):
        chosen(["base"])
    assert {row for group in GROUPS for row in group.rows} >= PAPER.keys() - {BASE}


# Verdicts ---------------------------------------------------------------------------------------


def test_verdicts_by_hand() -> None:
    assert [judgement(sign, rising=False) for sign in (-1, 0, 1)] == ["better", "equal", "worse"]
    assert [judgement(sign, rising=True) for sign in (-1, 0, 1)] == ["worse", "equal", "better"]
    assert in_paper(PAPER["A1"], "perplexity") == "worse"  # 5.29 against 4.92
    assert (
        in_paper(PAPER["D3"], "perplexity") == "better" and in_paper(PAPER["D3"], "wer") == "worse"
    )
    assert in_paper(PAPER["A3"], "bleu") == "equal" and in_paper(None, "bleu") is None
    assert verdict("worse", "worse") == "worse, as in the paper"
    assert verdict("better", "worse") == "better, against the paper"
    assert verdict("better", "equal") == "better; equal in the paper"
    assert verdict("equal", "worse") == "not distinguishable"
    assert verdict("worse", None) == "worse"


def test_means_by_hand() -> None:
    assert Mean.of([3.0]) == Mean(3.0, None)
    two = Mean.of([1.0, 3.0])
    assert two.value == 2.0 and two.half_width == pytest.approx(12.706)  # √2 / √2 · t
    assert Mean.of([1.0, 2.0, 3.0]).text(2) == "2.00 ± 2.48"


def rate(*wrong: int) -> Statistics:
    """Of items that are right (0) or wrong (1)."""
    items = np.array([[one, 1] for one in wrong], np.float64)
    return Statistics(items, lambda sums: float(100 * sums[0] / sums[1]))


def test_differences() -> None:
    bad, good = rate(*[1] * 50, *[0] * 50), rate(*[1] * 10, *[0] * 90)
    clear = difference({1: good}, {1: bad, 2: bad})
    assert clear is not None and clear.value == -40.0 and clear.sign == -1
    assert clear.low < -40 < clear.high < 0 and clear.seeds == {1: -40.0}
    assert difference({1: good}, {2: bad}) is None
    same = difference({1: bad}, {1: bad})
    assert same is not None and (same.value, same.low, same.high, same.sign) == (0, 0, 0, 0)
    # One seed says so and the other says the opposite: nothing is known.
    luck = difference({1: good, 2: bad}, {1: bad, 2: good})
    assert luck is not None and luck.value == 0 and luck.sign == 0 and luck.high > 30


@pytest.mark.parametrize("metric", ["bleu", "chrf", "ter", "wer", "per", "exact", "word_edits"])
def test_statistics_make_the_score(metric: str) -> None:
    outputs = ["a b c d e", "the cat sat on the mat", "", "x"]
    references = [["a b c d f"], ["the cat sat on a mat", "a cat"], ["y"], ["x"]]
    made_of = statistics(outputs, references, metric)
    whole = evaluate(outputs, references, [metric])[metric].score
    assert made_of.total() == pytest.approx(whole, rel=1e-6)
    samples = made_of.samples(20)
    assert np.array_equal(samples, made_of.samples(20)) and len(set(samples)) > 2


def results(*failures: str) -> dict[str, dict[int, Result | Failure]]:
    def result(loss: float, wrong: int) -> Result:
        outputs = ["no"] * wrong + ["yes"] * (30 - wrong)
        return Result(np.exp(loss).item(), {"wer": 0.0}, 9, 1.0, 2.0, [(loss, 1)] * 30, outputs)

    found: dict[str, dict[int, Result | Failure]] = {
        "base": {1: result(1.0, 15)}, "A1": {1: result(1.5, 30)}, "C1": {1: result(0.5, 15)},
    }  # fmt: skip
    return found | {name: {1: Failure(f"diverged {HIT}")} for name in failures}


def studied(found: dict[str, dict[int, Result | Failure]]) -> Any:
    config = parse(merge(base().model_dump(), {"evaluation": {"metrics": ["wer"]}}), "test")
    groups = chosen(["A1", "C1", "D1"])
    rows, left_out = rows_of(groups, config)
    asked = Items(["s"] * 30, [["yes"]] * 30)
    every = [row_of(BASE, config), *(row for some in rows.values() for row in some)]
    of_base, *others = measured(every, found, asked, config)
    by_group = {"A": others[:1], "C": others[1:2], "D": others[2:]}
    return study_of(groups, by_group, of_base, [*left_out, HIT], 30, HIT)


def test_the_study_says_what_was_found() -> None:
    text = "\n".join(printed(studied(results("D1"))))
    assert "Perplexity against base. A1: worse, as in the paper." in text
    assert "WER against base. A1: worse, as in the paper." in text
    assert "Perplexity against base. C1: better, against the paper." in text
    assert "WER against base. C1: not distinguishable." in text
    assert "D1, seed 1, failed: diverged" in text
    assert (
        "of 3 rows that differ from base in the paper, 1 point the paper’s way, 1 against" in text
    )
    assert "5.29" in text and "24.9" in text


def test_without_base_there_is_nothing_to_compare_with() -> None:
    text = "\n".join(printed(studied(results("base", "D1"))))
    assert "base, seed 1, failed" in text and "against base" not in text


def test_text_is_never_markup() -> None:
    """A40."""
    html = page(studied(results("D1")))
    assert "<script" not in html and html.count("&lt;script&gt;") >= 3


# The real thing ---------------------------------------------------------------------------------

STEPS = 40


def command(recipe: Path, out: Path, seeds: int) -> subprocess.Popen[str]:
    """Start the real command: base and A1 (C1 is as base), as many at a time as there are seeds."""
    words = ["ablate", recipe, "--out", out, "--rows", "A1", "C1", "--seeds", seeds]
    words += ["--jobs", seeds]
    return subprocess.Popen(
        [sys.executable, "-m", "transduce", *map(str, words)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("letters")
    settings: Settings = letters_recipe(folder, STEPS, 10)
    settings["training"] |= {"log_every": 1, "average": 3, "patience": 1}
    settings["evaluation"] = {"metrics": ["wer", "per"]}
    (folder / "recipe.toml").write_text(tomli_w.dumps(settings))
    return folder / "recipe.toml"


@pytest.fixture(scope="module")
def whole(recipe: Path) -> Path:
    """An ablation that nobody stopped."""
    out = recipe.parent / "whole"
    process = command(recipe, out, 2)
    text, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors
    assert "better or worse" not in text and "A: number of heads" in text and "WER" in text
    assert "base (N 1, d_model 16" in errors and "training.average is not used" in errors
    assert "C1: N 0.333 is not possible: 1" in text
    return out


def of_runs(out: Path) -> dict[str, Any]:
    """Return what the runs came to, but for the time they took."""
    found = {}
    for path in sorted(out.glob("*/seed-*/result.json")):
        record = json.loads(path.read_text())
        found[f"{path.parts[-3]} {path.parts[-2]}"] = {
            key: record[key] for key in ("perplexity", "scores", "losses", "outputs", "parameters")
        }
    return found


def test_a_real_one(whole: Path) -> None:
    runs = of_runs(whole)
    assert runs.keys() == {"base seed-1", "base seed-2", "A1 seed-1", "A1 seed-2"}
    assert len({run["perplexity"] for run in runs.values()}) == 4
    record = json.loads((whole / "ablation.json").read_text())
    assert record["seeds"] == [1, 2] and record["metric"] == "wer"
    (row,) = record["groups"]["A"]
    assert (
        row["row"] == "A1"
        and row["difference"]["perplexity"]["low"] <= row["difference"]["perplexity"]["value"]
    )
    for seed, run in row["seeds"].items():
        log = [
            json.loads(line)
            for line in (whole / f"A1/seed-{seed}" / METRICS).read_text().splitlines()
        ]
        (validated,) = (line for line in log if "valid_perplexity" in line)
        assert validated["step"] == STEPS
        assert run["perplexity"] == pytest.approx(validated["valid_perplexity"], rel=0.01)
        assert run["scores"] == {key: validated[key] for key in ("wer", "per")}
    html = (whole / "ablation.html").read_text()
    assert "A1" in html and "<script" not in html and "Student" in html


def test_a_run_is_an_ordinary_run(whole: Path) -> None:
    said: list[str] = []
    assert train({}, whole / "A1" / "seed-1", resume=True, say=said.append) == "finished"
    assert f"going on after update {STEPS}" in said


def test_finished_rows_are_not_trained_again(recipe: Path, whole: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in whole.glob("*/seed-*/result.json")}
    said: list[str] = []
    study, complete = ablate(recipe, whole, ["A1", "C1"], seeds=2, say=said.append)
    assert study is not None and complete
    assert "4 of 4 runs are finished already" in said
    assert before == {path: path.stat().st_mtime_ns for path in before}


def test_another_recipe_is_refused_by_name(recipe: Path, whole: Path) -> None:
    with pytest.raises(
        UsageError, match=r"training\.tokens was 64 and is 32; .*give another --out"
    ):
        ablate(
            recipe, whole, ["A1"],
            assignments=["training.tokens=32", "training.warmup_steps=3"],
        )  # fmt: skip
    run = whole / "A1" / "seed-1" / "config.toml"
    text = run.read_text()
    run.write_text(text.replace("h = 1\n", "h = 2\n"))
    with pytest.raises(UsageError, match=r"model.h = 2, not 1"):
        ablate(recipe, whole, ["A1"])
    run.write_text(text)


def in_the_middle(process: subprocess.Popen[str], log: Path) -> None:
    """Wait until a run has written some more lines to its log."""
    before = log.read_bytes() if log.exists() else b""
    end = time.monotonic() + 120
    while time.monotonic() < end and process.poll() is None:
        now = log.read_bytes() if log.exists() else b""
        if now != before and now.count(b"\n") > 3:
            return
        time.sleep(0.01)
    raise AssertionError(process.communicate()[1])


def test_killed_stopped_and_started_again(recipe: Path, whole: Path) -> None:
    out = recipe.parent / "stopped"
    shutil.copytree(whole, out)
    shutil.rmtree(out / "A1")
    (out / "ablation.html").unlink()
    log = out / "A1" / "seed-1" / METRICS
    killed = command(recipe, out, 1)
    in_the_middle(killed, log)
    killed.kill()
    killed.communicate()
    stopped = command(recipe, out, 1)
    in_the_middle(stopped, log)
    stopped.send_signal(signal.SIGINT)
    text, errors = stopped.communicate(timeout=60)
    if stopped.returncode != 0:  # it may have been too quick for us
        assert stopped.returncode == 130, errors
        assert text == "" and "same command goes on" in errors and "failed" not in errors
        assert not (out / "ablation.html").exists()
    again = command(recipe, out, 1)
    _, errors = again.communicate(timeout=120)
    assert again.returncode == 0, errors
    runs = of_runs(whole)
    del runs["A1 seed-2"]
    assert of_runs(out) == runs


def test_a_row_that_fails_does_not_stop_the_others(recipe: Path, whole: Path) -> None:
    broken = whole / "D1" / "seed-1" / "checkpoints" / "step-10"
    broken.mkdir(parents=True)
    (broken / "model.safetensors").write_bytes(b"nothing of the kind")
    study, complete = ablate(recipe, whole, ["D1", "D3"], jobs=2)
    assert study is not None and not complete
    text = "\n".join(printed(study))
    assert "D1, seed 1, failed:" in text and "step-10" in text
    assert (whole / "D3" / "seed-1" / "result.json").exists()
    record = json.loads((whole / "ablation.json").read_text())
    assert record["groups"]["D"][0]["failures"].keys() == {"1"}


def test_a_dry_run_leaves_only_the_corpus(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transduce.pricing.SECONDS", 0.05)
    lines = list(priced(recipe, tmp_path / "dry", ["A1", "C1"], seeds=2))
    assert [line.split()[0] for line in lines[2:4]] == ["base", "A1"]
    assert "h 1, d_k = d_v 16" in lines[3]
    assert "4 of 4 runs are left" in lines[-1]
    assert {path.name for path in (tmp_path / "dry").iterdir()} == {".lock", "corpus"}


def test_mistakes_leave_nothing_behind(recipe: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    for assignment, words in (
        ("training.stepz=3", "training.steps"),
        ("fine_tuning.init_from=model", "random weights"),
        ("model.h=3", "multiple of h"),
    ):
        with pytest.raises(UsageError, match=words):
            ablate(recipe, out, ["A1"], assignments=[assignment])
        assert not out.exists()
    out.mkdir()
    (out / "thesis.tex").touch()
    with pytest.raises(UsageError, match=r"something else \(thesis.tex\)"):
        ablate(recipe, out, ["A1"])
    assert [path.name for path in out.iterdir()] == ["thesis.tex"]
