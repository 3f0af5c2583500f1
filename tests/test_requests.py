"""What is asked of an output, in words: prefixes, required and forbidden text, placeholders."""

import re
from collections.abc import Sequence

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from transduce.config import UNK, DecodingConfig, ModelConfig
from transduce.data.tokenizer import Tokenizer, train_tokenizer
from transduce.decoding.requests import Banned, Request, Rules, read_requests
from transduce.decoding.translator import Translator, translator_of
from transduce.errors import UsageError
from transduce.model import Transformer

TEXTS = [
    "the dog sees the cat",
    "a dog and a doghouse <b> see",
    "cats see {x} dogs",
    "das 猫 ist 犬猫",
]


def tokenizer_of(kind: str) -> Tokenizer:
    size = {"bpe": 330, "char": 330, "word": 40, "byte": 260, "unigram": 300}[kind]
    return train_tokenizer(TEXTS * 3, kind, size, normalization="NFC")


TOKENIZERS = {kind: tokenizer_of(kind) for kind in ("bpe", "char", "word", "byte", "unigram")}


def translator_with(kind: str, seed: int = 3, **decoding: object) -> Translator:
    """Return a translator of a random model that writes what it likes."""
    tokenizer = TOKENIZERS[kind]
    torch.manual_seed(seed)
    sizes = {"source_vocabulary": len(tokenizer), "target_vocabulary": len(tokenizer), "N": 1,
             "d_model": 16, "d_ff": 16, "h": 2}  # fmt: skip
    model = Transformer(ModelConfig.model_validate(sizes)).double().eval()
    torch.nn.init.normal_(model.output.weight, std=1.0)
    settings = DecodingConfig.model_validate({"max_extra": 20, "beam_size": 3, **decoding})
    return translator_of(model, (tokenizer, tokenizer), settings)


@pytest.mark.parametrize("kind", TOKENIZERS)
@pytest.mark.parametrize("beam", [1, 3])
def test_what_is_asked_for_comes(kind: str, beam: int) -> None:
    for seed in range(3):
        translator = translator_with(kind, seed, beam_size=beam)
        request = Request("a dog", "the dog", ("cat", "see", "cat"), ("hou", "gs"))
        (found,) = translator.translate([request])
        assert found.text.startswith("the dog")
        assert len(re.findall(r"\bcat\b", found.text)) >= 2
        assert re.search(r"\bsee\b", found.text)
        assert "hou" not in found.text and "gs" not in found.text
        assert "unmet" not in found.flags


@settings(max_examples=25, deadline=None)
@example("byte", 0, [" "], "beam")
@given(
    st.sampled_from(list(TOKENIZERS)),
    st.integers(0, 10**6),
    st.lists(st.text("adeghostu ", min_size=1, max_size=3), min_size=1, max_size=4),
    st.sampled_from(["beam", "sample"]),
)
def test_forbidden_text_never_comes(
    kind: str, seed: int, forbidden: list[str], method: str
) -> None:
    translator = translator_with(kind, seed, method=method, no_repeat=2)
    for found in translator.translate([Request("a", forbid=tuple(forbidden)), "a"], n_best=3)[:1]:
        for output in found.hypotheses:
            assert not any(text in output.text for text in forbidden)


def test_other_lines_do_not_notice() -> None:
    translator = translator_with("bpe")
    free = translator.translate(["a dog", "the cat"])
    mixed = translator.translate([Request("a dog", require=("cats",)), "a dog", "the cat"])
    assert [t.text for t in mixed[1:]] == [t.text for t in free]
    assert mixed[1].hypotheses[0].score == pytest.approx(free[0].hypotheses[0].score, abs=1e-9)


def test_what_is_banned_is_what_would_complete_it() -> None:
    spelled = [b"", b"", b"", b"", b" a", b"b", b"bc", b"c", b"cd", b"abd"]
    banned = Banned([b"abc", b"d"], spelled)
    assert set(banned([4])) == {6, 8, 9}
    assert set(banned([4, 5])) == {7, 8, 9}
    assert set(banned([5, 5])) == {8, 9}


def test_bytes_that_vanish_hide_nothing() -> None:
    """What is broken is not shown, so that its neighbours stand side by side; é is two bytes."""
    spelled = [b"", b"", b"", b"", b"a", b"b", b"\xc3", b"\xa9", b"\n"]
    banned = Banned([b"ab", "é".encode()], spelled)
    assert set(banned([4, 6])) == {5, 7}
    assert set(banned([4, 7, 7])) == {5}
    assert set(banned([6])) == {7}
    rules = Rules(TOKENIZERS["byte"], DecodingConfig())
    line_feed = TOKENIZERS["byte"].encode_part("a", spaced=False)[0] - ord("a") + ord("\n")
    assert line_feed in set(rules.banned((" ",))([]))


def test_placeholders_are_copied() -> None:
    pattern = ["</?[a-z]>", "[{][a-z]+[}]"]
    translator = translator_with("bpe", placeholders=pattern)
    lines = ["see <b>{x}</b> dogs", "a dog", "{x} {x}"]
    found = translator.translate(lines)
    assert all(found[0].text.count(mark) == 1 for mark in ("<b>", "{x}", "</b>"))
    assert found[2].text.count("{x}") == 2
    plain = translator_with("bpe").translate(lines)
    assert found[1].text == plain[1].text
    assert all(
        not translation.flags or translation.flags == ("unfinished",) for translation in plain
    )


def test_placeholders_that_cannot_be_had_are_flagged() -> None:
    """A word vocabulary has no ⟦9⟧; and where there is no room, the rest comes anyway."""
    translator = translator_with("word", placeholders=["⟦9⟧"])
    (found,) = translator.translate(["a ⟦9⟧ dog"])
    assert "unmet" in found.flags
    tight = translator_with("bpe", placeholders=["[a-z]+"], max_extra=0)
    (found,) = tight.translate(["{x} {x} doghouse"])
    assert len(found.hypotheses[0].tokens) <= len(TOKENIZERS["bpe"].encode("{x} {x} doghouse")) + 1


def test_words_of_scripts_without_spaces_get_none() -> None:
    rules = Rules(TOKENIZERS["char"], DecodingConfig())
    assert TOKENIZERS["char"].pieces(rules.phrase("犬猫").tokens) == ["犬", "猫"]
    assert not rules.phrase("犬猫").word
    dog = rules.phrase("dog")
    assert dog.word
    assert TOKENIZERS["char"].pieces(dog.tokens) == ["▁", "d", "o", "g"]
    rule = rules.of(Request("a", require=("dog",)), 99, "line 1")
    inside = TOKENIZERS["char"].pieces(sorted(rule.inside))
    assert "h" in inside and "▁" not in inside and "<" not in inside


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (Request("a", prefix="dog " * 40), ["may have", "max_extra"]),
        (Request("a", require=("dog",) * 40), ["may have"]),
        (Request("a", require=("a dog",), forbid=("dog",)), ["'a dog' is asked for", "'dog'"]),
        (Request("a", prefix="a dog", forbid=("dog",)), ["forbidden"]),
    ],
    ids=str,
)
def test_impossible_requests(request_: Request, words: Sequence[str]) -> None:
    with pytest.raises(UsageError, match="line 2: ") as error:
        translator_with("bpe").translate(["a", request_])
    assert all(word in str(error.value) for word in words)


def test_what_the_vocabulary_cannot_spell() -> None:
    assert UNK in TOKENIZERS["word"].encode("zebra")
    with pytest.raises(UsageError, match="line 1: the model's vocabulary cannot spell 'zebra'"):
        translator_with("word").translate([Request("a", require=("zebra",))])
    with pytest.raises(UsageError, match="drawn"):
        translator_with("bpe", method="sample").translate([Request("a", require=("dog",))])


def test_requests_are_read_from_lines() -> None:
    lines = ['{"source": "a"}', '{"source": "", "prefix": "b", "require": ["c"], "forbid": []}']
    assert list(read_requests(lines, "f")) == [Request("a"), Request("", "b", ("c",))]
    assert Request("a", "p", ("r",)).also(Request("", "q", ("s",), ("t",))) == Request(
        "a", "p", ("r", "s"), ("t",)
    )


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("source", ["not JSON"]),
        ('{"prefix": "a"}', ["source"]),
        ('{"source": 3}', ["source", "string"]),
        ('{"source": "a", "forbid": "b"}', ["forbid"]),
        ('{"source": "a", "forbids": []}', ["'forbids'", "did you mean 'forbid'"]),
        ("[]", ["object"]),
    ],
)
def test_lines_that_are_no_requests(line: str, words: list[str]) -> None:
    with pytest.raises(UsageError, match=r"f\.jsonl, line 2: ") as error:
        list(read_requests(['{"source": "a"}', line], "f.jsonl"))
    assert all(word in str(error.value) for word in words)
