"""Scores: sacrebleu's numbers, several references, error rates, refusals and warnings."""

import pytest

from transduce.errors import TransduceError, UsageError
from transduce.evaluation.metrics import (
    by_source,
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
    assert "refs:several" in scores["wer"].signature


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
