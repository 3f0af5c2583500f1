"""What `train` chooses by itself: units, sizes and length, always leaving alone what was said."""

from collections.abc import Callable
from pathlib import Path

import pytest

from transduce.choices import from_text, from_tokens, resolved, subwords, unit
from transduce.config import DataConfig, Settings, merge
from transduce.data.corpus import SideSurvey, Survey, prepare, survey

Write = Callable[[str, str | bytes], Path]
WORDS = [f"{a}{b}{c}" for a in "bcdfgklmnprst" for b in "aeiou" for c in "bcdfgklmnprst"]


def side(lines: list[str]) -> SideSurvey:
    found = SideSurvey()
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
    return Survey(len(src), side(src), side(tgt))


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
    }  # fmt: skip
    assert chosen["evaluation"]["metrics"] == ["exact", "per"]


USERS: list[Settings] = [
    {"tokenizer": {"kind": "char"}},
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
    text = from_text(survey(str(table), DataConfig()), user)
    config = resolved(text.settings, user)
    corpus = prepare(config, tmp_path / "corpus")
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
    chosen = from_tokens(prepare(config, tmp_path / "corpus"), config, user).settings
    assert chosen["decoding"]["max_extra"] == 118 + 10
