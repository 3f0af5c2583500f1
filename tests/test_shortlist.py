"""Which target pieces may come: learnt from pairs, beside the weights, obeyed by the search."""

import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import letters_recipe
from transduce.config import EOS, PAD, Settings, merge
from transduce.decoding.choosing import choose
from transduce.decoding.translator import Translator, load, opened
from transduce.errors import TransduceError, UsageError
from transduce.evaluating import Items
from transduce.experiment import train
from transduce.exporting import shortlist as module
from transduce.exporting.shortlist import (
    FILE,
    Shortlist,
    expected_counts,
    learn,
)
from transduce.model_folder import find_model, load_settings, write_tensors
from transduce.shortlisting import coverage, shortlist

pytest.importorskip("ctranslate2")
Write = Callable[[str, str | bytes], Path]
PIECES = ["<pad>", "<unk>", "<s>", "</s>", *"abcdefgh"]
"""Of both sides: the ids of the letters are 4 to 11."""


def ids(text: str) -> list[int]:
    return [PIECES.index(letter) for letter in text]


def allowed(found: Shortlist, text: str) -> str:
    return "".join(sorted(PIECES[id_] for id_ in found.allowed(ids(text))))


def test_model_1_by_hand() -> None:
    """Two pairs, (a, e) and (ab, ef), with the empty word, one step from equal probabilities.

    Of the first pair e comes from a and from nothing by halves; of the second each of e and f comes
    from a, b and nothing by thirds.
    """
    keys, counts = expected_counts([(ids("a"), ids("e")), (ids("ab"), ids("ef"))], len(PIECES))
    pairs = [(int(key) // len(PIECES), int(key) % len(PIECES)) for key in keys]
    a, b, e, f = ids("abef")
    assert pairs == [(PAD, e), (PAD, f), (a, e), (a, f), (b, e), (b, f)]
    assert counts.sum() == pytest.approx(3)  # each target piece comes from somewhere

    def step(t: dict[tuple[int, int], float]) -> dict[tuple[int, int], float]:
        """Do one iteration as the paper writes it, piece by piece."""
        found = dict.fromkeys(t, 0.0)
        for src, tgt in (([PAD, a], [e]), ([PAD, a, b], [e, f])):
            for piece in tgt:
                total = sum(t[of, piece] for of in src)
                for of in src:
                    found[of, piece] += t[of, piece] / total
        return found

    t = {pair: 1.0 for pair in pairs}
    for _ in range(module.ITERATIONS):
        by_hand = step(t)
        sums = {of: sum(n for (its, _), n in by_hand.items() if its == of) for of in (PAD, a, b)}
        t = {(of, piece): n / sums[of] for (of, piece), n in by_hand.items()}
    assert counts == pytest.approx([by_hand[pair] for pair in pairs])
    assert by_hand[a, e] == max(by_hand[of, e] for of in (PAD, a, b))
    assert by_hand[b, f] == max(by_hand[of, f] for of in (PAD, a, b))


def dictionary(count: int, seed: int = 0) -> list[tuple[list[int], list[int]]]:
    """Return pairs in which a, b, c, d become e, f, g, h, in another order."""
    draw, pairs = random.Random(seed), []
    for _ in range(count):
        src = draw.choices(ids("abcd"), k=draw.randint(1, 5))
        tgt = [id_ + 4 for id_ in src]
        draw.shuffle(tgt)
        pairs.append((src, tgt))
    return pairs


def test_a_dictionary_is_found() -> None:
    found = learn(dictionary(200), PIECES, PIECES, each=1, always=1)
    (everywhere,) = found.always
    for letter, other in zip("abcd", "efgh", strict=True):
        # Itself, since the target has such a piece; its translation; the most frequent one.
        assert set(allowed(found, letter)) == {letter, other, PIECES[everywhere]}
    assert coverage(found, dictionary(20, seed=1)) == 1.0
    none = Shortlist(np.zeros(0, np.int32), np.full((len(PIECES), 1), PAD, np.int32))
    assert coverage(none, dictionary(20)) == 0.0


def test_pairs_are_taken_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts of parts are added: with much of everything in each, nothing else comes out."""
    whole = learn(dictionary(300), PIECES, PIECES, each=2, always=3)
    monkeypatch.setattr(module, "LINKS", 500)
    assert len(list(module.parts(dictionary(300)))) > 5
    again = learn(dictionary(300), PIECES, PIECES, each=2, always=3)
    assert (again.always == whole.always).all()
    assert (again.candidates[:, 0] == whole.candidates[:, 0]).all()


@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(EOS + 1, 11), min_size=1, max_size=6),
            st.lists(st.integers(EOS + 1, 11), min_size=1, max_size=6),
        ),
        min_size=1,
        max_size=8,
    ),
    st.integers(1, 4),
    st.integers(1, 4),
)
def test_what_every_shortlist_is(
    pairs: list[tuple[list[int], list[int]]], each: int, always: int
) -> None:
    found = learn(pairs, PIECES, PIECES, each, always)
    assert found.candidates.shape == (len(PIECES), each + 1)
    assert len(found.always) <= always
    seen = {id_ for _, tgt in pairs for id_ in tgt}
    assert set(found.always.tolist()) <= seen
    for src in range(EOS + 1, len(PIECES)):
        together = {id_ for its, tgt in pairs if src in its for id_ in tgt}
        assert found.allowed([src]) <= together | set(found.always.tolist()) | {src}
    # The more is asked for, the more is allowed.
    more = learn(pairs, PIECES, PIECES, each + 3, always + 3)
    for src in range(EOS + 1, len(PIECES)):
        assert found.allowed([src]) <= more.allowed([src])


def test_no_pair_and_pieces_with_spaces() -> None:
    with pytest.raises(UsageError, match="no pair to learn"):
        learn([], PIECES, PIECES)
    for odd in ("a b", "\t", ""):
        with pytest.raises(UsageError, match="with a space"):
            learn(dictionary(3), PIECES, [*PIECES, odd])


# In a model folder


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    train(letters_recipe(folder, steps=80, every=40), folder / "run")
    return folder / "run"


@pytest.fixture
def model(run: Path, tmp_path: Path) -> Path:
    shutil.copytree(find_model(run), tmp_path / "model")
    return tmp_path / "model"


LINES = ["a", "ab", "", "abc", "b" * 17, "ca" * 15, "bcabca", "c", " "]


def translator(folder: Path, **decoding: object) -> Translator:
    fast: Settings = {"device": "cpu", "decoding": {"engine": "ctranslate2", "shortlist": True}}
    return opened([folder], merge(fast, {"decoding": decoding}))[1]


def save(folder: Path, always: list[int], each: list[int]) -> None:
    """Write a shortlist that allows the same pieces for every source piece."""
    rows = np.array([each] * len(load_settings(folder)[1][0]), np.int32).reshape(-1, len(each))
    Shortlist(np.array(always, np.int32), rows).save(folder)


@pytest.mark.parametrize("beam", [1, 4])
def test_what_allows_everything_changes_nothing(model: Path, beam: int) -> None:
    size = len(load_settings(model)[1][1])
    save(model, [*range(EOS + 1, size)], [PAD])
    exact = load(model, device="cpu").translate(LINES, beam_size=beam)
    for one, other in zip(translator(model).translate(LINES, beam_size=beam), exact, strict=True):
        best, its = one.hypotheses[0], other.hypotheses[0]
        assert (one.text, one.flags, best.tokens) == (other.text, other.flags, its.tokens)
        assert best.score == pytest.approx(its.score, abs=1e-4)


@pytest.mark.parametrize("beam", [1, 4])
def test_nothing_else_comes_out_and_scores_are_the_models(model: Path, beam: int) -> None:
    _, target = load_settings(model)[1]
    one_piece = EOS + 2
    save(model, [one_piece], [PAD])
    few, exact = translator(model, beam_size=beam), load(model, device="cpu")
    found = few.translate(LINES)
    texts = [one.text for one in found]
    assert texts == [one.text for one in few.translate(LINES, detail="text")]
    assert texts == [one.text for one in few.translate(LINES, detail="score")]
    for one in found:
        for output in one.hypotheses:
            assert set(output.tokens) <= set(target.pieces([one_piece, EOS]))
        if one.hypotheses[0].finished and one.text:
            (scored,) = exact.score([(one.source, one.text)])
            best = one.hypotheses[0]
            assert best.log_probability == pytest.approx(scored.log_probability, abs=1e-3)


def test_a_new_shortlist_is_used(model: Path) -> None:
    """The converted model is made anew with it."""
    _, target = load_settings(model)[1]
    for piece in (EOS + 2, EOS + 3):
        save(model, [piece], [PAD])
        for one in translator(model).translate(["ab"]):
            assert set(one.hypotheses[0].tokens) <= set(target.pieces([piece, EOS]))
    # Without being asked for it changes nothing.
    plain = opened([model], {"device": "cpu", "decoding": {"engine": "ctranslate2"}})[1]
    exact = load(model, device="cpu").translate(LINES)
    assert [one.text for one in plain.translate(LINES)] == [one.text for one in exact]


def test_broken_ones_are_refused(model: Path) -> None:
    size = len(load_settings(model)[1][0])
    with pytest.raises(UsageError, match=r"has none; learn one with `transduce shortlist"):
        translator(model)
    good = torch.full((3,), 3, dtype=torch.int32), torch.zeros(size, 2, dtype=torch.int32)
    for always, candidates, message in (
        (good[0].float(), good[1], "no shortlist"),
        (good[1] + 1, good[1], "no shortlist"),
        (good[0] + size, good[1], "another vocabulary"),
        (good[0], good[1] - 1, "another vocabulary"),
        (good[0], good[1][:-1], "another vocabulary"),
    ):
        write_tensors(model / FILE, {"always": always, "candidates": candidates})
        with pytest.raises(TransduceError, match=message):
            translator(model)
    write_tensors(model / FILE, {"always": good[0]})
    with pytest.raises(TransduceError, match="no shortlist"):
        translator(model)
    (model / FILE).write_bytes(b"not tensors")
    with pytest.raises(TransduceError, match="cannot read"):
        translator(model)


def test_only_the_fast_engine_has_one(model: Path) -> None:
    save(model, [EOS + 2], [PAD])
    asked: Settings = {"device": "cpu", "decoding": {"shortlist": True}}
    assert str(choose([model], asked)).endswith("; with its shortlist)")
    torch_asked = merge(asked, {"decoding": {"engine": "torch"}})
    with pytest.raises(UsageError, match="only ctranslate2 has one, and torch is asked for"):
        choose([model], torch_asked)
    with pytest.raises(UsageError, match="only ctranslate2 has one, and only torch knows"):
        choose([model], merge(asked, {"decoding": {"min_length": 3}}))
    config, exact = opened([model], asked)  # to score and to evaluate, torch has no need of one
    assert not config.decoding.shortlist
    assert [one.text for one in exact.translate(LINES)] == [
        one.text for one in load(model, device="cpu").translate(LINES)
    ]


def test_a_recipe_may_ask_for_one(tmp_path: Path) -> None:
    """Training has none, and ends well; then translating says what is missing."""
    recipe = merge(letters_recipe(tmp_path, steps=4, every=2), {"decoding": {"shortlist": True}})
    train(recipe, tmp_path / "run")
    with pytest.raises(UsageError, match="has none; learn one"):
        translator(tmp_path / "run")


@pytest.fixture
def pairs(write: Write) -> Iterator[Path]:
    draw = random.Random(2)
    texts = ["".join(draw.choices("abc", k=draw.randint(1, 6))) for _ in range(250)]
    yield write(
        "p.tsv", "".join(f"{text}\t{' '.join(text.upper())}\n" for text in texts) + "\tno source\n"
    )


def test_it_says_what_it_is_worth(model: Path, pairs: Path) -> None:
    """From pairs to translations with it."""
    settings: Settings = {"evaluation": {"metrics": ["exact"]}}
    asked, said = Items(["abc", "b"], [["A B C"], ["B"]]), list[str]()
    shortlist(model, [str(pairs)], 3, 100, asked, settings, said.append)
    kept, without, with_it, hint = said
    assert kept.startswith("of 2 pairs that were kept aside, 100.0% of the target pieces are")
    assert without.startswith("without it: exact ") and "; 2 sentences in " in without
    assert without.split(";")[0].removeprefix("without") == with_it.split(";")[0][len("with") :]
    assert hint == "to translate with it: --set decoding.shortlist=true"
    exact = load(model, device="cpu").translate(LINES)
    assert [one.text for one in translator(model).translate(LINES)] == [one.text for one in exact]


def test_nothing_is_left_of_a_failure(model: Path, write: Write) -> None:
    empty = write("empty.tsv", "\n")
    with pytest.raises(UsageError, match="no pair to learn"):
        shortlist(model, [str(empty)], 50, 100, None, {}, lambda line: None)
    assert not (model / FILE).exists()
