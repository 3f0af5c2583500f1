"""What `train` chooses by itself: units, sizes and length, always leaving alone what was said."""

from collections.abc import Callable
from pathlib import Path

import pytest

from transduce.choices import from_text, from_tokens, resolved, subwords, unit
from transduce.config import Settings, merge
from transduce.data.statistics import SideStatistics, Survey
from transduce.preparing import prepare_corpus

Write = Callable[[str, str | bytes], Path]
WORDS = [f"{a}{b}{c}" for a in "bcdfgklmnprst" for b in "aeiou" for c in "bcdfgklmnprst"]


def side(lines: list[str]) -> SideStatistics:
    found = SideStatistics()
    for line in lines:
        found.add(line)
    return found


def sentences(count: int, letters: str = "") -> list[str]:
    return [
        " ".join(WORDS[(i * k) % len(WORDS)] + letters for k in range(3, 9)) for i in range(count)
    ]


def test_units() -> None:
    assert unit(side(["jump left", "run right", "jump right"] * 30)) == "word"
    assert unit(side([f"K AE{i % 3} T" for i in range(100)])) == "word"
    assert unit(side([f"{WORDS[i]}x{WORDS[-i]}" for i in range(500)])) == "char"
    assert unit(side(sentences(500))) == "bpe"
    assert unit(side(["一" * 100 + chr(0x4E00 + i) for i in range(600)])) == "bpe"


def test_vocabulary_grows_with_the_corpus() -> None:
    assert [subwords(pairs) for pairs in (100, 3_000, 30_000, 300_000, 3_000_000, 10**9)] == [
        1_000, 4_000, 8_000, 16_000, 32_000, 32_000,
    ]  # fmt: skip


def surveyed(src: list[str], tgt: list[str]) -> Survey:
    found = Survey()
    for pair in zip(src, tgt, strict=True):
        found.add(*pair)
    return found


def test_text_of_one_script_is_joint_of_two_is_not() -> None:
    chosen = from_text(surveyed(sentences(600), sentences(600, "e")), {}).settings
    assert chosen["tokenizer"] == {
        "kind": "bpe", "vocabulary": subwords(600), "joint": True, "byte_fallback": False,
    }  # fmt: skip
    greek = [
        line.translate(str.maketrans("bcdfgklmnprstaeiou", "βγδζηθκλμνξπρσταεο"))
        for line in sentences(600)
    ]
    assert not from_text(surveyed(sentences(600), greek), {}).settings["tokenizer"]["joint"]
    assert chosen["evaluation"]["metrics"] == ["bleu", "chrf"]
    assert chosen["preset"] == "tiny" and chosen["model"]["d_model"] == 128


def test_letters_to_words_are_separate_and_exact() -> None:
    words = [f"{WORDS[i % 800]}{WORDS[i % 311]}" for i in range(2000)]
    chosen = from_text(surveyed(words, [" ".join(word) for word in words]), {}).settings
    assert chosen["tokenizer"] == {
        "joint": False, "source": {"kind": "char"}, "target": {"kind": "word"},
        "byte_fallback": False,
    }  # fmt: skip
    assert chosen["evaluation"]["metrics"] == ["exact", "per"]


def test_bleu_divides_chinese_and_japanese_otherwise() -> None:
    english = sentences(40)
    chinese = ["".join(chr(0x4E00 + (i * k) % 900) for k in range(3, 15)) for i in range(40)]
    japanese = ["".join(chr(0x3042 + (i * k) % 80) for k in range(3, 15)) for i in range(40)]

    def scheme(tgt: list[str], user: Settings) -> str | None:
        chosen = from_text(surveyed(english, tgt), user).settings["evaluation"]
        found: str | None = chosen.get("bleu_tokenize")
        return found

    assert scheme(english, {}) is None
    assert scheme(chinese, {}) == "zh"
    assert scheme(japanese, {}) in ("ja-mecab", "char")
    assert scheme(english, {"data": {"languages": ["en", "zh-Hans"]}}) == "zh"
    assert scheme(chinese, {"evaluation": {"bleu_tokenize": "char"}}) is None


def test_an_alphabet_always_fits() -> None:
    """A06: what is chosen works, also for a small corpus of many characters."""
    chinese = [chr(0x4E00 + 3 * i) * 2 + chr(0x4E00 + 3 * i + 1) + chr(0x4E00 + 3 * i + 2)
               for i in range(700)]  # fmt: skip
    chosen = from_text(surveyed(sentences(700), chinese), {}).settings["tokenizer"]
    assert chosen["vocabulary"] > 2_100


USERS: list[Settings] = [
    {"tokenizer": {"kind": "char"}},
    {"tokenizer": {"kind": "byte"}},
    {"tokenizer": {"kind": "byte", "joint": True}},
    {"tokenizer": {"symbols": ["<2de>"], "character_coverage": 0.99}},
    {"tokenizer": {"kind": "unigram", "joint": False}},
    {"tokenizer": {"joint": True}},
    {"tokenizer": {"joint": False, "source": {"kind": "bpe"}}},
    {"tokenizer": {"vocabulary": 300}},
    {"preset": "small", "training": {"steps": 77, "schedule": "paper"}},
    {"training": {"minutes": 3.0, "tokens": 99}, "model": {"norm_place": "post", "P_drop": 0.4}},
    {"profile": "paper"},
    {},
]


@pytest.mark.parametrize("user", USERS, ids=str)
@pytest.mark.parametrize("letters", [False, True])
def test_what_the_user_says_stays_and_all_is_valid(
    user: Settings, letters: bool, write: Write, tmp_path: Path
) -> None:
    lines = [w + v for w in WORDS[:40] for v in WORDS[:20]] if letters else sentences(400)
    table = write("t.tsv", "".join(f"{line}\t{line[::-1]}\n" for line in lines))
    user = merge(user, {"data": {"train": str(table), "valid": str(table)}})
    corpus = prepare_corpus(user, tmp_path / "corpus", lambda line: None)
    text = from_text(corpus.survey(), user)
    config = resolved(text.settings, user)
    tokens = from_tokens(corpus, config, user)
    config = resolved(merge(text.settings, tokens.settings), user)
    said = merge(config.model_dump(), user)
    assert config.model_dump(exclude={"tokenizer"}) == {
        key: value for key, value in said.items() if key != "tokenizer"
    }
    for key, value in user.get("tokenizer", {}).items():
        found = config.model_dump(exclude_none=True)["tokenizer"][key]
        assert found == value
    assert all(": " in reason for reason in text.reasons + tokens.reasons)


def test_longer_targets_raise_the_output_limit(write: Write, tmp_path: Path) -> None:
    table = write("t.tsv", "ab\t" + "ab" * 60 + "\n" + "ba\tab\n" * 5)
    user: Settings = {
        "data": {"train": str(table), "valid": str(table)},
        "tokenizer": {"kind": "char", "joint": True},
    }
    config = resolved({}, user)
    corpus = prepare_corpus(user, tmp_path / "corpus", lambda line: None)
    chosen = from_tokens(corpus, config, user).settings
    assert chosen["decoding"]["max_extra"] == 118 + 10
