"""Pairs that a model makes: both kinds, where they come from, and going on after a stop."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import letters_recipe
from transduce.augmenting import PROVENANCE, augment
from transduce.config import Settings, merge
from transduce.data.readers import read_pairs
from transduce.decoding import translator as module
from transduce.decoding.translator import Translator, load
from transduce.errors import TransduceError, UsageError
from transduce.experiment import train

Write = Callable[[str, str | bytes], Path]
EXACT: Settings = {"device": "cpu", "decoding": {"engine": "torch"}}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    train(letters_recipe(folder, steps=60, every=60), folder / "run")
    return folder / "run"


def quiet(line: str) -> None:
    """Listen to nothing."""


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("engine", ["torch", "ctranslate2"])
def test_distilled_targets_are_the_models_outputs(
    run: Path, write: Write, tmp_path: Path, engine: str
) -> None:
    pairs = write("p.tsv", "ab\tX\nbca\tY\n\tZ\nc\tC\n")
    out = tmp_path / "made.jsonl"
    settings = merge(EXACT, {"decoding": {"engine": engine}})
    augment(run, "distilled", [str(pairs)], out, settings, quiet)
    made = load(run, device="cpu").translate(["ab", "bca", "", "c"])
    for record, expected, number in zip(records(out), made, (1, 2, 3, 4), strict=True):
        assert (record["src"], record["tgt"]) == (expected.source, expected.text)
        assert record["score"] == pytest.approx(expected.hypotheses[0].score, abs=1e-4)
        assert (record["line"], record["flags"]) == (number, list(expected.flags))
    read = [(pair.src, pair.tgt) for pair in read_pairs(str(out))]  # as training reads them
    assert read == [(one.source, one.text) for one in made]
    noted = json.loads((tmp_path / f"made.jsonl{PROVENANCE}").read_bytes())
    assert (noted["kind"], noted["model"]) == ("distilled", str(run))
    assert noted["decoding"]["engine"] == engine
    assert set(noted["given"]) == {str(pairs)}


def test_sources_of_targets(run: Path, write: Write, tmp_path: Path) -> None:
    lines = write("mono.txt", "ab\tnot a pair\nca\n")
    augment(run, "back", [str(lines)], tmp_path / "b.jsonl", EXACT, quiet)
    (_, second) = records(tmp_path / "b.jsonl")
    assert (second["src"], second["tgt"]) == (load(run).translate(["ca"])[0].text, "ca")
    assert len(records(tmp_path / "b.jsonl")) == 2


def test_it_goes_on_where_it_stopped(
    run: Path, write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs = str(write("p.tsv", "".join(f"{'abc'[i % 3] * (1 + i % 4)}\tX\n" for i in range(9))))
    augment(run, "distilled", [pairs], tmp_path / "whole.jsonl", EXACT, quiet)
    monkeypatch.setattr("transduce.translating.CHUNK", 2)
    calls = 0
    translate = Translator.translate

    def stopped(self: Translator, *arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise KeyboardInterrupt
        return translate(self, *arguments, **options)

    monkeypatch.setattr(module.Translator, "translate", stopped)
    out = tmp_path / "made.jsonl"
    said: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        augment(run, "distilled", [pairs], out, EXACT, quiet)
    assert not out.exists()
    augment(run, "distilled", [pairs], out, EXACT, said.append)
    assert "going on after line 4" in said
    assert out.read_bytes() == (tmp_path / "whole.jsonl").read_bytes()


def test_what_is_read_is_not_written_over(run: Path, write: Write, tmp_path: Path) -> None:
    given = write("given.jsonl", '{"src": "ab", "tgt": "A B"}\n')
    (tmp_path / "same.jsonl").symlink_to(given)
    for out in (given, tmp_path / "same.jsonl"):
        with pytest.raises(UsageError, match="is what is read"):
            augment(run, "distilled", [str(given)], out, EXACT, quiet)
    for name in ("made.tsv", "made"):  # which training would read as something else
        with pytest.raises(UsageError, match=r"must end in \.jsonl"):
            augment(run, "distilled", [str(given)], tmp_path / name, EXACT, quiet)
    assert {path.name for path in tmp_path.iterdir()} == {"given.jsonl", "same.jsonl"}


def test_another_kind_is_not_continued(
    run: Path, write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = str(write("m.txt", "a\n" * 5))
    out = tmp_path / "made.jsonl"
    beside = tmp_path / ".made.jsonl.journal"
    (tmp_path / ".made.jsonl.part").write_text("{}\n")
    beside.write_text(json.dumps({"settings": "other", "lines": 1, "bytes": 3, "read": ""}))
    with pytest.raises(UsageError, match="with another model or other settings"):
        augment(run, "back", [lines], out, EXACT, quiet)
    with pytest.raises(TransduceError, match="nowhere"):
        augment(run, "back", [str(tmp_path / "nowhere")], tmp_path / "o.jsonl", EXACT, quiet)
