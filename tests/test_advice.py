"""Notes on settings that do not fit: each has a case that earns it, ordinary runs earn none."""

from typing import Any

import pytest

from transduce import choices
from transduce.advice import advice
from transduce.config import Config, Settings, merge, named, overlay, parse
from transduce.data.corpus import Corpus


class Pretended(Corpus):
    """A corpus of which only the counts exist."""

    def __init__(self, pairs: int, length: int, vocabulary: int, **changes: Any) -> None:
        tokens = pairs * length
        side = {
            "tokens": tokens, "vocabulary": vocabulary, "used": round(0.6 * vocabulary),
            "unknown": 0, "lengths": {"max": 5 * length},
        }  # fmt: skip
        part = {"tokens": {"source": side, "target": side}}
        self.manifest = {
            "train": {"pairs": pairs, "source_tokens": tokens, "target_tokens": tokens,
                      "longest_surplus": 10},
            "valid": {"pairs": 1000},
            "tokenizer": {"kind": "bpe", "vocabulary": vocabulary},
        }  # fmt: skip
        self.pretended = {"parts": {"train": part, "valid": part}}
        for place, value in changes.items():
            self.manifest = merge(self.manifest, _nested(place, value))
            self.pretended = merge(self.pretended, _nested(place, value))

    def report(self) -> dict[str, Any]:
        return self.pretended


def _nested(place: str, value: object) -> Settings:
    """Turn "a__b" and 1 into {"a": {"b": 1}}."""
    first, _, rest = place.partition("__")
    return {first: _nested(rest, value) if rest else value}


def chosen(corpus: Corpus, preset: str, user: Settings, *assignments: str) -> Config:
    """Return what `train` would choose, for text or for letters."""
    user = overlay(merge({"preset": preset}, user), assignments)
    vocabularies = {"source_vocabulary": 8000, "target_vocabulary": 8000}
    user = merge(user, {"tokenizer": corpus.manifest["tokenizer"], "model": vocabularies})
    rules = choices.from_tokens(corpus, choices.resolved({}, user), user)
    return choices.resolved(rules.settings, user)


def notes(corpus: Corpus, *assignments: str, preset: str = "tiny") -> list[str]:
    return list(advice(chosen(corpus, preset, {}, *assignments), corpus))


MULTI30K = Pretended(29_000, 16, 8000)
LETTERS: dict[str, Any] = {
    "tokenizer": {"joint": False, "byte_fallback": False, "source": {"kind": "char"},
                  "target": {"kind": "word"}},
    "parts__train__tokens__source__used": 44, "parts__train__tokens__target__used": 44,
}  # fmt: skip


@pytest.mark.parametrize(
    ("corpus", "preset"),
    [
        (MULTI30K, "tiny"),
        (MULTI30K, "small"),
        (Pretended(3_000, 20, 4000), "tiny"),
        (Pretended(160_000, 12, 14_000), "small"),
        (Pretended(4_500_000, 30, 32_000), "base"),
        (Pretended(4_500_000, 30, 32_000), "big"),
        (Pretended(125_000, 7, 44, **LETTERS), "tiny"),
        (Pretended(8_000, 7, 44, **LETTERS), "tiny"),
        (Pretended(16_000, 15, 24, **LETTERS), "tiny"),
    ],
    ids=["multi30k", "multi30k-small", "3k", "tatoeba", "wmt", "wmt-big", "cmudict", "8k", "scan"],
)
def test_plain_choices_on_ordinary_data_give_no_note(corpus: Corpus, preset: str) -> None:
    assert notes(corpus, preset=preset) == []


def test_the_papers_own_run_gives_no_note() -> None:
    corpus = Pretended(4_500_000, 30, 37_000)
    for profile in ("paper", "t2t"):
        sizes = named("presets", "base")["model"]
        tables = merge(named("profiles", profile), {"model": sizes})
        assert list(advice(parse(tables, "test"), corpus)) == []


@pytest.mark.parametrize(
    ("assignments", "words"),
    [
        (["training.warmup_steps=4000"], ["first 4,000 of 6,800", "training.warmup_steps = 340"]),
        (["training.schedule=paper", "training.warmup_steps=40"],
         ["peak rate of 1.4e-02", "d_model 128", "before", "is 1.4e-03", "training.factor"]),
        (["training.learning_rate=0.01"], ["peak rate of 1.0e-02", "training.learning_rate"]),
        (["training.learning_rate=0.004", "model.norm_place=post"], ["after", '"pre"']),
        (["training.tokens=50000", "training.steps=600"],
         ["a pass over the data has only 9 updates", "training.tokens = 23200 gives 20"]),
        (["training.steps=500"], ["only 2.2 times", "training.steps = 680 makes it 3"]),
        (["training.steps=60000"], ["265 times", "training.patience"]),
        (["training.tokens=70", "training.steps=60000"], ["target 81 pieces", "70 tokens"]),
        (["training.accumulation=30"], ["whole batch of 68 tokens", "data.max_length"]),
        (["training.validate_every=7000"],
         ["validate_every = 7,000", "6,800 updates", "453 makes fifteen"]),
    ],
    ids=lambda value: " ".join(value),
)  # fmt: skip
def test_settings_that_do_not_fit(assignments: list[str], words: list[str]) -> None:
    found = notes(MULTI30K, *assignments)
    assert len(found) == 1, found
    for word in words:
        assert word in found[0]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"valid__pairs": 99}, ["99 validation pairs", "100 or more"]),
        ({"valid__pairs": 1}, ["1 validation pair are"]),
        ({"parts__train__tokens__source__unknown": 5000}, ["1.1% of the training sources'"]),
        ({"parts__valid__tokens__target__unknown": 50_000}, ["10.8% of the validation targets'"]),
        ({"parts__train__tokens__source__used": 1500, "parts__train__tokens__target__used": 1500},
         ["joint vocabulary of 7,744 pieces", "4,744 never"]),
        ({"parts__train__tokens__source__tokens": 20_000,
          "parts__train__tokens__target__tokens": 10_000}, ["3.9 times on average"]),
        ({"tokenizer__joint": False, "parts__train__tokens__target__used": 3000},
         ["the target vocabulary", "4,744 never"]),
        ({"train__target_tokens": 20_000, "train__pairs": 1000},
         ["1,384,448 parameters", "69 for each", "20,000 target tokens"]),
    ],
    ids=str,
)  # fmt: skip
def test_data_that_does_not_do(changes: dict[str, Any], words: list[str]) -> None:
    corpus = Pretended(29_000, 16, 8000, **changes)
    pinned = ["training.tokens=1000", "training.steps=2000", "training.validate_every=100"]
    found = notes(corpus, *pinned, "training.warmup_steps=50")
    assert len(found) == 1, found
    for word in words:
        assert word in found[0]


def test_bytes_are_never_too_many() -> None:
    changes = {"tokenizer": {"kind": "byte"}, "parts__train__tokens__source__used": 30,
               "parts__train__tokens__target__used": 30}  # fmt: skip
    assert notes(Pretended(29_000, 60, 260, **changes), "training.steps=9000") == []


def test_an_end_by_patience_may_be_far_off() -> None:
    assert notes(MULTI30K, "training.steps=60000", "training.patience=5") == []
    assert notes(MULTI30K, "training.steps=60000", "training.stop_at_score=30.0") == []


def test_what_came_with_a_model_is_no_mistake() -> None:
    corpus = Pretended(2_000, 25, 8000)
    said = notes(corpus, preset="base")
    assert any("parameters outside" in note for note in said)
    user = {"fine_tuning": {"init_from": "model"}}
    assert not any("parameters" in n for n in advice(chosen(corpus, "base", user), corpus))
