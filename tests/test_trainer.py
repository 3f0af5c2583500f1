"""The loop: accumulation, exact resume, bad numbers, stopping, and the traces it leaves."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import BuildModel
from transduce.config import TrainingConfig
from transduce.data.batches import Batch, collate
from transduce.data.corpus import Corpus
from transduce.errors import TransduceError
from transduce.model import Transformer
from transduce.preparing import prepare_corpus
from transduce.training import trainer as module
from transduce.training.checkpoint import step_of
from transduce.training.gradients import Sums
from transduce.training.machine import pick_precision
from transduce.training.trainer import Trainer, Update, Validation

Make = Callable[..., Trainer]


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    letters = "abcdefgh"
    rows = [f"{letters[i % 5 :]}{letters[: i % 7]}\t{letters[: i % 6 + 1]}\n" for i in range(60)]
    (tmp_path / "t.tsv").write_text("".join(rows))
    (tmp_path / "v.tsv").write_text("".join(rows[:5]))
    settings = {
        "data": {"train": str(tmp_path / "t.tsv"), "valid": str(tmp_path / "v.tsv")},
        "tokenizer": {"kind": "char", "joint": True, "byte_fallback": False},
    }
    return prepare_corpus(settings, tmp_path / "corpus", lambda line: None)


@pytest.fixture
def make(build: BuildModel, corpus: Corpus, tmp_path: Path) -> Make:
    def make(
        run: str = "run", scores: list[float] | None = None, P_drop: float = 0.1, **settings: Any
    ) -> Trainer:
        given: dict[str, Any] = {
            "steps": 20, "tokens": 40, "warmup_steps": 5, "checkpoint_every": 5, "precision":
            "float32", "log_every": 1, "validate_every": 1000, "factor": 0.5, "keep": -1,
        }  # fmt: skip
        config = TrainingConfig(**(given | settings))
        torch.manual_seed(config.seed)
        model = build(P_drop=P_drop).float()
        queue = iter(scores or [])
        return Trainer(
            model,
            corpus,
            config,
            tmp_path / run,
            lambda model: Validation({"bleu": next(queue, 0.0)}),
            lambda score, than: than is None or score > than,
            lambda model: None,
        )

    return make


def start(trainer: Trainer) -> str:
    trainer.run.mkdir(exist_ok=True)
    return trainer.train()


def rows(trainer: Trainer) -> list[dict[str, float]]:
    lines = (trainer.run / "metrics.jsonl").read_text().splitlines()
    return [row for row in map(json.loads, lines) if "loss" in row]


def sums(model: Transformer) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


def record(trainer: Trainer) -> list[Any]:
    """Remember the ids and the rate of every update."""
    seen: list[Any] = []
    update = trainer.update

    def recording(group: list[Batch]) -> Any:
        result = update(group)
        seen.append(([batch.src.tolist() for batch in group], result.rate, result.sums.loss))
        return result

    trainer.update = recording  # type: ignore[method-assign, assignment]
    return seen


@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize("stop", [5, 10, 15])
def test_resuming_is_the_same_as_going_on(make: Make, accumulation: int, stop: int) -> None:
    """A21: data, rates, losses and parameters, bit by bit; dropout on, mid-epoch."""
    whole = make("whole", accumulation=accumulation)
    seen = record(whole)
    start(whole)
    interrupted = make("parts", accumulation=accumulation)
    before = record(interrupted)
    update = interrupted.update

    def update_and_stop(group: list[Batch]) -> Any:
        if interrupted.progress.step == stop + 2:
            raise KeyboardInterrupt  # two updates after the checkpoint
        return update(group)

    interrupted.update = update_and_stop  # type: ignore[method-assign, assignment]
    with pytest.raises(KeyboardInterrupt):
        start(interrupted)
    torch.manual_seed(999)
    resumed = make("parts", accumulation=accumulation, seed=1)
    torch.manual_seed(12345)
    assert resumed.resume()
    assert resumed.progress.step == stop
    after = record(resumed)
    start(resumed)
    assert before[:stop] + after == seen
    assert len(seen) == 20
    for ours, theirs in zip(sums(resumed.model), sums(whole.model), strict=True):
        assert torch.equal(ours, theirs)
    assert [row["step"] for row in rows(resumed)] == list(range(1, 21))
    assert [row["loss"] for row in rows(resumed)] == [row["loss"] for row in rows(whole)]


def test_resuming_without_a_checkpoint_starts_anew(make: Make) -> None:
    assert not make().resume()
    killed = make(checkpoint_every=100, validate_every=2)
    killed.validate = lambda model: Validation({"bleu": 1.0}, [{"output": "of the first start"}])
    killed.checkpoints.save = lambda *arguments: Path()  # type: ignore[method-assign]
    start(killed)
    again = make(steps=4)
    assert not again.resume()
    start(again)
    assert [row["step"] for row in rows(again)] == [1, 2, 3, 4]
    assert (again.run / "samples.jsonl").read_bytes() == b""


def test_micro_batches_weigh_tokens_equally(make: Make) -> None:
    """A18: one batch of two sentences equals two micro-batches of one."""
    pairs = [([5, 6], [7]), ([8, 9, 10], [11, 12, 13, 14, 15, 16, 17])]
    results = []
    for group in ([collate(pairs)], [collate(pairs[:1]), collate(pairs[1:])]):
        trainer = make(P_drop=0.0)
        trainer.model.double()
        trainer.optimizer = torch.optim.SGD(trainer.model.parameters(), lr=0.0)  # type: ignore[assignment]
        update = trainer.update(group)
        assert update.tokens == 2 + 8
        results.append((sums(trainer.model), update))
    torch.testing.assert_close(results[0][0], results[1][0], rtol=0, atol=1e-12)
    assert results[0][1].sums.loss == pytest.approx(results[1][1].sums.loss, abs=1e-12)


def test_the_reported_loss_is_per_token(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """A18: 2 tokens of loss 1.0 and 8 of loss 3.0 make 2.6, in the log too."""
    since = module.Since()
    since.add(Update(Sums(2 * 1.0, 2 * 1.0), 2, 0.1, 1.0))
    since.add(Update(Sums(8 * 3.0, 8 * 3.0), 8, 0.1, 1.0))
    row = since.metrics(make().progress, Update(Sums(), 0, 0.1, 1.0))
    assert row["loss"] == pytest.approx(2.6)
    assert row["perplexity"] == pytest.approx(math.exp(2.6))


def test_the_logged_rate_is_the_one_used(make: Make) -> None:
    """A20: read just before each of the first updates."""
    trainer = make(steps=3)
    used: list[float] = []
    trainer.optimizer.register_step_pre_hook(lambda o, a, k: used.append(o.param_groups[0]["lr"]))
    start(trainer)
    assert used == [row["learning_rate"] for row in rows(trainer)]
    assert used == pytest.approx([0.5 * 14**-0.5 * step * 5**-1.5 for step in (1, 2, 3)])


def test_batches_without_a_real_token_change_nothing(make: Make) -> None:
    """A26."""
    trainer = make()
    before = sums(trainer.model)
    empty = Batch(torch.tensor([[5, 3]]), torch.tensor([[2]]), torch.tensor([[0]]))
    assert trainer.update([empty]).tokens == 0
    assert all(torch.equal(a, b) for a, b in zip(before, sums(trainer.model), strict=True))


def test_a_loss_that_is_no_number_stops_the_run(make: Make) -> None:
    trainer = make()
    update = trainer.update

    def poisoned(group: list[Batch]) -> Any:
        if trainer.progress.step == 7:
            torch.nn.init.constant_(trainer.model.output.weight, math.nan)
        return update(group)

    trainer.update = poisoned  # type: ignore[method-assign, assignment]
    with pytest.raises(TransduceError, match="update 8: the loss is no finite number"):
        start(trainer)
    assert [step_of(path) for path in trainer.checkpoints.all()] == [5]
    resumed = make()
    assert resumed.resume() and resumed.progress.step == 5
    assert all(p.isfinite().all() for p in resumed.model.parameters())


def test_stopping_on_request_saves_and_says_so(make: Make) -> None:
    import os
    import signal

    trainer = make()
    update = trainer.update

    def interrupt(group: list[Batch]) -> Any:
        if trainer.progress.step == 6:
            os.kill(os.getpid(), signal.SIGINT)
        return update(group)

    trainer.update = interrupt  # type: ignore[method-assign, assignment]
    assert start(trainer) == "interrupted"
    assert trainer.progress.step == 7
    assert step_of(trainer.checkpoints.all()[-1]) == 7


@pytest.mark.parametrize("schedule", ["paper", "inverse_sqrt", "linear", "cosine", "constant"])
def test_patience_and_the_best(make: Make, schedule: str) -> None:
    """A25: BLEU 10, 9, 8 with patience 2 stops after the third, under every schedule."""
    best: list[int] = []
    trainer = make(scores=[10.0, 9.0, 8.0, 99.0], validate_every=2, patience=2, schedule=schedule)
    trainer.on_best = lambda model: best.append(trainer.progress.step)
    assert start(trainer) == "patience"
    assert trainer.progress.step == 6
    assert best == [2]
    trainer = make("other", scores=[10.0, 20.0, 15.0], validate_every=2, steps=6)
    trainer.on_best = lambda model: best.append(trainer.progress.step)
    assert start(trainer) == "finished"
    assert best == [2, 2, 4]
    assert [(best.score, best.step) for best in trainer.progress.best] == [(20, 4)]


def test_the_best_checkpoints_are_kept(make: Make) -> None:
    scores = [1.0, 9.0, 8.0, 2.0, 7.0]
    trainer = make(scores=scores, validate_every=4, checkpoint_every=100, keep=1, keep_best=2)
    start(trainer)
    assert [step_of(path) for path in trainer.checkpoints.all()] == [8, 12, 20]


def test_of_equal_scores_the_lower_loss_is_the_better(make: Make) -> None:
    trainer = make(scores=[0.0] * 5, validate_every=4)
    losses = iter([3.0, 2.0, 2.5, 1.0, 1.0])
    trainer.validation_loss = lambda pairs: next(losses)  # type: ignore[method-assign]
    best: list[int] = []
    trainer.on_best = lambda model: best.append(trainer.progress.step)
    start(trainer)
    assert best == [4, 8, 16]


def test_stopping_at_a_score(make: Make) -> None:
    trainer = make(scores=[10.0, 97.9, 98.0, 99.0], validate_every=2, stop_at_score=98.0)
    assert start(trainer) == "reached"
    assert trainer.progress.step == 6


def test_what_is_logged(make: Make) -> None:
    trainer = make(scores=[1.0], validate_every=20)
    start(trainer)
    row = rows(trainer)[-1]
    assert list(row) == [
        "step", "epoch", "loss", "perplexity", "learning_rate", "target_tokens_per_second",
        "gradient_norm", "seconds",
    ]  # fmt: skip
    last = json.loads((trainer.run / "metrics.jsonl").read_text().splitlines()[-1])
    assert list(last) == ["step", "epoch", "valid_loss", "valid_perplexity", "bleu"]


def test_bfloat16_follows_float32(make: Make) -> None:
    losses = []
    for precision in ("float32", "bfloat16"):
        trainer = make(precision, precision=precision, P_drop=0.0, factor=0.2)
        start(trainer)
        assert all(p.dtype == torch.float32 for p in trainer.model.parameters())
        losses.append([row["loss"] for row in rows(trainer)])
    assert losses[0] == pytest.approx(losses[1], rel=0.02)
    assert losses[0] != losses[1]


def test_precision_is_chosen_for_the_device() -> None:
    cpu = torch.device("cpu")
    assert pick_precision("float32", cpu, 64) == "float32"
    assert pick_precision("bfloat16", cpu, 64) == "bfloat16"
    assert pick_precision("auto", cpu, 64) in ("float32", "bfloat16")
