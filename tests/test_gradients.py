"""Gradients: the same however a batch is divided, the same again, and as much as fits."""

import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.conftest import BuildModel
from transduce.config import EOS, UNK, TrainingConfig
from transduce.data.batches import Batch, collate
from transduce.model import Transformer
from transduce.training.gradients import Gradients, divided, with_unknown_words
from transduce.training.loss import label_smoothed

PAIRS = [([5, 6, 7, 8], [6, 5]), ([9], [7, 8, 9]), ([5, 5], [6]), ([8, 7, 6], [9, 9, 9, 9])]
BATCH = collate(PAIRS)
TOKENS = sum(len(tgt) + 1 for _, tgt in PAIRS)


def computed(model: Transformer, groups: list[Batch], **settings: Any) -> list[Tensor]:
    gradients = Gradients(model, TrainingConfig(precision="float32", **settings))
    gradients.compute(groups, TOKENS, step=3)
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize("workers", [1, 2, 3, 7])
def test_parts_side_by_side_are_the_whole(build: BuildModel, workers: int) -> None:
    model = build(P_drop=0.0).train()
    logits = model(BATCH.src, BATCH.tgt_in)
    loss = label_smoothed(logits, BATCH.tgt_out).sum / TOKENS
    right = torch.autograd.grad(loss, list(model.parameters()))
    ours = computed(model, [BATCH], workers=workers)
    for one, other in zip(ours, right, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-14)
    halves = computed(model, [collate(PAIRS[:1]), collate(PAIRS[1:])], workers=workers)
    for one, other in zip(halves, right, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("workers", [1, 3])
def test_the_same_again_bit_by_bit(build: BuildModel, workers: int) -> None:
    model = build(P_drop=0.3, attention_dropout=0.2, activation_dropout=0.1).train().float()
    first = computed(model, [BATCH, BATCH], workers=workers, word_dropout=0.2)
    torch.manual_seed(99)
    again = computed(model, [BATCH, BATCH], workers=workers, word_dropout=0.2)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    other = computed(model, [BATCH, BATCH], workers=workers, word_dropout=0.2, seed=2)
    assert not all(torch.equal(a, b) for a, b in zip(first, other, strict=True))


def test_frozen_parameters_get_no_gradient(build: BuildModel) -> None:
    model = build(P_drop=0.0).train()
    model.encoder.requires_grad_(False)
    Gradients(model, TrainingConfig(workers=2)).compute([BATCH], TOKENS, step=1)
    assert all(p.grad is None for p in model.encoder.parameters())
    assert all(p.grad is not None for p in model.decoder.parameters())


COMPILED = """
import torch
from tests.test_gradients import BATCH, computed
from transduce.config import ModelConfig
from transduce.errors import TransduceError
from transduce.model import Transformer

plain = torch.compile
vocabularies = {"source_vocabulary": 10, "target_vocabulary": 10}
model = Transformer(ModelConfig(N=1, d_model=8, d_ff=8, h=2, P_drop=0.0, **vocabularies)).double()
torch.compile = lambda f, dynamic: plain(f, dynamic=dynamic, backend="eager")
for one, other in zip(computed(model, [BATCH], compile=True), computed(model, [BATCH])):
    torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-14)

def broken(*_):
    raise RuntimeError("no compiler")

torch.compiler.reset()
torch.compile = lambda f, dynamic: plain(f, dynamic=dynamic, backend=broken)
try:
    computed(model, [BATCH], compile=True)
except TransduceError as error:
    print(error)
"""


def test_compiled_is_the_same_or_says_why_not() -> None:
    """The graph is taken for real and run by a plain backend; without the suite's type checks."""
    done = subprocess.run([sys.executable, "-c", COMPILED], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "no compiler" in done.stdout
    assert done.stdout.endswith("Set training.compile = false\n")


class Small:
    """A stand-in for a machine on which only so many sentences at a time fit in memory."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
        states = Transformer.states

        def states_if_they_fit(model: Transformer, src: Tensor, tgt_in: Tensor) -> Tensor:
            if len(src) > most:
                raise RuntimeError("DefaultCPUAllocator: can't allocate memory: 12 bytes")
            return states(model, src, tgt_in)

        monkeypatch.setattr(Transformer, "states", states_if_they_fit)


def test_what_does_not_fit_is_divided(build: BuildModel, monkeypatch: pytest.MonkeyPatch) -> None:
    model = build(P_drop=0.0).train()
    right = computed(model, [BATCH])
    Small(monkeypatch, most=1)
    gradients = Gradients(model, TrainingConfig(precision="float32"))
    sums = gradients.compute([BATCH], TOKENS, step=3)
    assert (sums.divided, sums.skipped) == (3, 0)
    for one, other in zip(model.parameters(), right, strict=True):
        torch.testing.assert_close(one.grad, other, rtol=1e-12, atol=1e-14)


def test_what_fits_in_no_way_is_left_out(
    build: BuildModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = build().train()
    Small(monkeypatch, most=0)
    sums = Gradients(model, TrainingConfig(workers=2)).compute([BATCH], TOKENS, step=1)
    assert (sums.skipped, sums.loss) == (len(PAIRS), 0.0)
    assert all(p.grad is None for p in model.parameters())


def test_other_errors_are_not_swallowed(build: BuildModel, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(model: Transformer, src: Tensor, tgt_in: Tensor) -> Tensor:
        raise RuntimeError("shapes do not fit")

    monkeypatch.setattr(Transformer, "states", broken)
    with pytest.raises(RuntimeError, match="shapes"):
        Gradients(build().train(), TrainingConfig(workers=2)).compute([BATCH], TOKENS, step=1)


def test_parts_hold_every_sentence_once_without_surplus_padding() -> None:
    parts = divided(BATCH, 3)
    assert [len(part.src) for part in parts] == [2, 1, 1]
    rows = [row[row != 0].tolist() for part in parts for row in part.src]
    assert sorted(rows) == sorted([*src, EOS] for src, _ in PAIRS)
    for part in parts:
        for ids in (part.src, part.tgt_in, part.tgt_out):
            assert (ids[:, -1] != 0).any()
    assert len(divided(BATCH, 9)) == len(PAIRS)


def test_word_dropout_touches_inputs_only() -> None:
    batch = collate([(list(range(4, 60)), list(range(4, 60)))] * 20)
    dropped = with_unknown_words(batch, 0.3, (1, 2))
    assert torch.equal(dropped.tgt_out, batch.tgt_out)
    for before, after in ((batch.src, dropped.src), (batch.tgt_in, dropped.tgt_in)):
        changed = before != after
        assert (after[changed] == UNK).all() and (before[changed] > EOS).all()
        assert 0.25 < changed[before > EOS].float().mean() < 0.35
    assert torch.equal(with_unknown_words(batch, 0.3, (1, 2)).src, dropped.src)
    assert with_unknown_words(batch, 0.0, (1, 2)) is batch
