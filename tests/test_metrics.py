"""Scores: sacrebleu's numbers, several references, error rates, refusals and warnings."""

import json
import math
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transduce.errors import TransduceError, UsageError
from transduce.evaluation.metrics import (
    Comparison,
    by_sentence,
    by_source,
    compare,
    evaluate,
    is_better,
    tokenized_looking,
)

REFERENCES = [["Hello, world! It's 3.5 km away."], ["The cat sat on the mat."]]
TOKENIZED = ["Hello , world ! It 's 3.5 km away .", "The cat sat on the mat ."]


def test_bleu_and_chrf() -> None:
    """A35."""
    same = [refs[0] for refs in REFERENCES]
    assert evaluate(same, REFERENCES, ["bleu"])["bleu"].score == pytest.approx(100.0)
    scores = evaluate(TOKENIZED, REFERENCES, ["bleu", "chrf", "ter"])
    assert scores["bleu"].score == pytest.approx(71.85, abs=0.005)
    assert scores["chrf"].score == pytest.approx(100.0)
    assert "tok:13a" in scores["bleu"].signature and "version:" in scores["bleu"].signature
    warning = tokenized_looking(TOKENIZED, REFERENCES)
    assert warning is not None and "tokenized" in warning
    assert tokenized_looking(same, REFERENCES) is None
    assert tokenized_looking(TOKENIZED, [[text] for text in TOKENIZED]) is None


def test_corpus_bleu_is_not_the_mean_of_sentences() -> None:
    outputs = ["the cat sat on the mat", "a dog"]
    references = [["the cat sat on the mat"], ["one dog barked loudly today"]]
    assert evaluate(outputs, references, ["bleu"])["bleu"].score == pytest.approx(63.51, abs=0.005)


def test_tokenization_is_in_the_signature() -> None:
    score = evaluate(TOKENIZED, [[t] for t in TOKENIZED], ["bleu"], "none")["bleu"]
    assert "tok:none" in score.signature
    with pytest.raises(UsageError, match=r"bleu_tokenize = 'jamecab'.*did you mean 'ja-mecab'"):
        evaluate(["a"], [["a"]], ["bleu"], "jamecab")


def test_a_missing_dictionary_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    from sacrebleu.tokenizers import tokenizer_ja_mecab

    monkeypatch.setattr(tokenizer_ja_mecab, "MeCab", None)
    with pytest.raises(UsageError, match=r"transduce\[japanese\]"):
        evaluate(["a"], [["a"]], ["bleu"], "ja-mecab")


def test_several_references_per_item() -> None:
    sources, references = by_source(["read", "a", "read"], ["R EH D", "AH", "R IY D"])
    assert sources == ["read", "a"]
    assert references == [["R EH D", "R IY D"], ["AH"]]
    scores = evaluate(["R IY D", "EY"], references, ["wer", "exact", "per", "bleu"])
    assert scores["wer"].score == 50.0
    assert scores["exact"].score == 50.0
    assert scores["per"].score == pytest.approx(100 * 1 / 4)  # one edit, 3 + 1 tokens
    assert "nrefs:var" in scores["wer"].signature


def test_per_takes_the_nearest_reference() -> None:
    """P13: edits to the nearest reference over that reference's tokens, summed over the items."""
    scores = evaluate(["A B C"], [["X Y Z A B C D", "A B"]], ["per", "wer"])
    assert scores["per"].score == pytest.approx(100 * 1 / 2)
    scores = evaluate(["A B C", ""], [["A B D"], ["A B C D E"]], ["per"])
    assert scores["per"].score == pytest.approx(100 * 6 / 8)


def test_word_edits_is_the_ordinary_wer_of_text() -> None:
    scores = evaluate(["the cat sat", "a dog"], [["the cat sat down"], ["a dog"]], ["word_edits"])
    assert scores["word_edits"].score == pytest.approx(100 * 1 / 6)


def test_unequal_counts_are_refused_with_both_numbers() -> None:
    with pytest.raises(TransduceError, match=r"3 outputs but 2 items"):
        evaluate(["a", "b", "c"], [["a"], ["b"]], ["bleu"])
    with pytest.raises(TransduceError, match="nothing to score"):
        evaluate([], [], ["bleu"])


def test_the_direction_belongs_to_the_metric() -> None:
    """A25."""
    assert is_better("bleu", 20.0, 10.0) and not is_better("bleu", 15.0, 20.0)
    assert is_better("wer", 10.0, 20.0) and not is_better("wer", 20.0, 20.0)
    assert is_better("bleu", 0.0, None) and is_better("wer", 100.0, None)


# Intervals and tests

DRAW = random.Random(7)
WORDS = ["a", "b", "c", "d", "e", "f", "g"]
TRUTH = [" ".join(DRAW.choices(WORDS, k=DRAW.randint(4, 12))) for _ in range(120)]


def worse(rate: float, seed: int) -> list[str]:
    """Return the truth with a share of its words replaced."""
    draw = random.Random(seed)
    return [
        " ".join(draw.choice(WORDS) if draw.random() < rate else word for word in line.split())
        for line in TRUTH
    ]


def test_intervals_are_those_of_sacrebleu(tmp_path: Path) -> None:
    """To the last digit, as its own command computes them."""
    outputs = worse(0.2, 1)
    (tmp_path / "ref").write_text("\n".join(TRUTH) + "\n")
    (tmp_path / "out").write_text("\n".join(outputs) + "\n")
    command: list[str | Path]
    command = [sys.executable, "-m", "sacrebleu", tmp_path / "ref", "-i", tmp_path / "out", "-w",
               "6", "-m", "bleu", "chrf", "ter", "--confidence"]  # fmt: skip
    done = subprocess.run(command, capture_output=True, check=True)
    ours = evaluate(outputs, [[t] for t in TRUTH], ["bleu", "chrf", "ter"], samples=1000)
    for theirs, score in zip(json.loads(done.stdout), ours.values(), strict=True):
        assert theirs["score"] == round(score.score, 6)
        assert theirs["confidence_mean"] == round(float(score.mean or 0), 6)
        assert theirs["confidence_var"] == round(float(score.half_width or 0), 6)
        assert theirs["signature"] == score.signature


def test_the_interval_of_an_error_rate_by_hand() -> None:
    outputs = worse(0.05, 2)
    score = evaluate(outputs, [[t] for t in TRUTH], ["wer"], samples=400)["wer"]
    wrong = np.array([output != truth for output, truth in zip(outputs, TRUTH, strict=True)])
    draws = np.random.default_rng(12345).choice(len(wrong), size=(400, len(wrong)))
    rates = np.sort(100 * wrong[draws].mean(axis=1))
    assert score.mean == pytest.approx(rates.mean())
    assert score.half_width == pytest.approx((rates[389] - rates[10]) / 2)
    low, high = score.interval or (0, 0)
    assert low < score.score < high
    assert "bs:400|seed:12345" in score.signature
    assert str(
        score
    ) == f"wer {score.score:.2f} (μ = {score.mean:.2f} ± {score.half_width:.2f})" + (
        f"  ({score.signature})"
    )
    assert evaluate(outputs, [[t] for t in TRUTH], ["wer"])["wer"].interval is None


@pytest.mark.parametrize("metric", ["bleu", "chrf", "ter", "wer", "exact", "per", "word_edits"])
def test_a_known_step_apart(metric: str) -> None:
    """Five times as many wrong words are no chance; other wrong words, as many, are."""
    good, bad, as_good = worse(0.02, 3), worse(0.25, 4), worse(0.02, 5)
    references = [[t] for t in TRUTH]
    found = compare(good, bad, references, [metric])[metric]
    assert found.p_value < 0.01
    assert str(found).endswith(": better")
    assert is_better(metric, found.score, found.baseline)
    back = compare(bad, good, references, [metric])[metric]
    assert back.difference == pytest.approx(-found.difference)
    assert str(back).endswith(": worse")
    same = compare(good, as_good, references, [metric])[metric]
    assert same.p_value > 0.05
    assert "chance" in str(same)
    assert found.score == pytest.approx(evaluate(good, references, [metric])[metric].score)


def test_comparing_with_itself() -> None:
    found = compare(TRUTH, TRUTH, [[t] for t in TRUTH], ["bleu", "wer"])
    assert [c.difference for c in found.values()] == [0.0, 0.0]
    assert all("chance" in str(c) for c in found.values())
    with pytest.raises(TransduceError, match="1 outputs but 120 items"):
        compare(TRUTH, ["a"], [[t] for t in TRUTH], ["bleu"])
    assert Comparison("wer", 10.0, 12.0, 0.01).record() == {
        "score": 12.0, "difference": -2.0, "p_value": 0.01,
    }  # fmt: skip


def test_scores_of_sentences() -> None:
    """BLEU of a short sentence takes the n-grams it has; error rates are of the one item."""
    outputs, references = ["a b", "a b c d e", "x"], [["a b"], ["a b c d"], ["a"]]
    bleu = by_sentence(outputs, references, "bleu", "none")
    assert bleu[0] == pytest.approx(100.0) and bleu[2] == 0.0 < bleu[1] < 100.0
    assert by_sentence(outputs, references, "per") == pytest.approx([0.0, 25.0, 100.0])
    assert by_sentence(outputs, references, "exact") == [100.0, 0.0, 0.0]


SMALL_SETS = st.lists(
    st.tuples(*[st.sampled_from(["", "a", "b c", "a b c d e f", "犬 が", "xyz"])] * 3),
    min_size=1,
    max_size=4,
)


@given(SMALL_SETS)
@settings(deadline=None, max_examples=60)
def test_small_sets_have_intervals(rows: list[tuple[str, str, str]]) -> None:
    """Whatever is empty, right or wrong: sacrebleu mixes types of numbers there."""
    outputs, references = [row[0] for row in rows], [[row[1]] for row in rows]
    names = ["bleu", "chrf", "ter", "exact", "wer", "per", "word_edits"]
    plain = evaluate(outputs, references, names)
    for name, score in evaluate(outputs, references, names, samples=50).items():
        assert score.interval is not None and score.mean is not None
        assert score.interval[0] <= score.interval[1] and math.isfinite(score.mean)
        assert score.score == plain[name].score
    compare(outputs, [row[2] for row in rows], references, names, samples=50)
