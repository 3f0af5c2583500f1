"""The shop window, with a dictionary of a few hundred words and seconds of training."""

import random
from pathlib import Path

import pytest
from rich.console import Console

from transduce import quickstart
from transduce.data import cmudict
from transduce.model_folder import load_config


@pytest.fixture
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(0)
    words = {"".join(draw.choices("abcdefg", k=draw.randint(2, 6))) for _ in range(300)}
    spoken = {word: [" ".join(word.upper())] for word in sorted(words)}
    spoken["gab"] = ["G A B", "J A B"]
    monkeypatch.setattr(cmudict, "dictionary", lambda: spoken)
    monkeypatch.setattr(quickstart, "TEST_WORDS", 40)
    monkeypatch.setattr(quickstart, "VALID_WORDS", 10)


@pytest.mark.usefixtures("_small")
def test_from_data_to_a_model_and_on_again(tmp_path: Path) -> None:
    said: list[str] = []
    result = quickstart.quickstart(tmp_path / "q", 0.02, said.append)
    assert result is not None
    assert result.words == 40 and len(result.examples) == 40
    assert result.per >= 0 and 0 <= result.wer <= 100
    text = "\n".join(said)
    for part in ("held out", "updates in 0.02 minutes", "departures", "Carnegie Mellon"):
        assert part in text
    config = load_config(tmp_path / "q")
    assert (config.model.norm_place, config.model.P_drop) == ("pre", 0.0)
    said.clear()
    again = quickstart.quickstart(tmp_path / "q", 0.02, said.append)
    assert again is not None and again.wer == result.wer
    assert any("all updates are done" in line for line in said)


def test_the_table_and_what_to_type_next(tmp_path: Path) -> None:
    examples = [("a", ["AH", "EY"], "EY"), ("b", ["B IY"], "B"), ("c", ["S IY"], "S IY")]
    result = quickstart.Result(33.3, 10.0, 3, Path("runs/x"), examples)
    assert quickstart.choose_examples(result) == [examples[0], examples[2], examples[1]]
    console = Console(record=True, width=120, file=(tmp_path / "out").open("w"))
    quickstart.show(result, "transduce", console)
    text = console.export_text()
    assert "AH / EY" in text and "✗" in text
    assert "echo transduction | transduce translate runs/x" in text
    console.file.close()
