"""What is said about a run: once, about the right thing, and nothing about a good one."""

import pytest

from transduce.config import TrainingConfig
from transduce.training.watch import Watch


def watch(schedule: str = "paper", **settings: object) -> Watch:
    return Watch(TrainingConfig.model_validate({"schedule": schedule, **settings}))


def test_a_good_run_needs_no_words() -> None:
    seen = watch()
    for step in range(1, 2000):
        assert not list(seen.update(step, 9.0 * step**-0.1 + 0.3 * (step % 3), 1e-3))
    assert not list(seen.waiting(0.05)) and not list(seen.memory(0, 0))
    for number in range(9):
        assert not list(seen.validation(3.0 - 0.1 * number, best=True))


def test_divergence_is_named_once_with_its_knob() -> None:
    for schedule, knob in (("paper", "training.factor"), ("linear", "training.learning_rate")):
        seen = watch(schedule)
        said = [
            note
            for step in range(1, 900)
            for note in seen.update(step, 8.0 - step / 100 if step < 400 else 7.0, 1e-3)
        ]
        assert len(said) == 1 and "risen" in said[0] and knob in said[0]


def test_one_bad_update_is_no_divergence() -> None:
    seen = watch()
    for step in range(1, 500):
        assert not list(seen.update(step, 20.0 if step == 300 else 4.0, 1e-3))


def test_an_easy_batch_at_the_start_is_no_good_time() -> None:
    """As when fine-tuning begins with pairs that the model knows."""
    seen = watch()
    for step in range(1, 500):
        assert not list(seen.update(step, 0.2 if step == 1 else 4.0, 1e-3))


def test_learning_by_heart() -> None:
    seen = watch("linear")
    said = [list(seen.validation(2.0 + 0.1 * n, best=n == 0)) for n in range(8)]
    assert [len(notes) for notes in said] == [0, 0, 0, 0, 1, 0, 0, 0]
    assert "by heart" in said[4][0] and "P_drop" in said[4][0]


@pytest.mark.parametrize(("schedule", "words"), [("paper", 1), ("constant", 1), ("cosine", 0)])
def test_a_plateau_is_one_unless_the_rate_falls(schedule: str, words: int) -> None:
    seen = watch(schedule)
    notes = [note for n in range(9) for note in seen.validation(2.0 + 0.1 * (n % 2), best=n == 0)]
    assert len(notes) == words
    assert all("schedule" in note for note in notes)


def test_memory_and_input() -> None:
    seen = watch()
    assert "accumulation" in next(iter(seen.memory(2, 0)))
    assert not list(seen.memory(3, 0))
    assert "max_length" in next(iter(seen.memory(3, 1)))
    assert "30%" in next(iter(seen.waiting(0.3)))


def test_not_finite_names_what_can_be_done() -> None:
    seen = watch("linear", precision="bfloat16", warmup_steps=10)
    early = seen.not_finite(5, 2e-3, "loss")
    assert "update 5" in early and "warmup_steps" in early and "float32" in early
    list(seen.update(1, 3.5, 1e-3))
    late = seen.not_finite(50, 2e-3, "gradient")
    assert "warmup_steps" not in late and "learning_rate" in late and "3.50" in late
