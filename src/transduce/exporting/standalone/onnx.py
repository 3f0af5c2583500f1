"""Translate lines with a model in ONNX: standard input to standard output.

    python translate.py < lines.txt > translations.txt

This file and those beside it stand alone. Needed: onnxruntime, numpy, and sentencepiece where the
model has .spm files. `Model`, `Translator` and `search` can also be imported.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime

from transduce.exporting.standalone.text import BOS, EOS, PAD, Lines, Penalty, Task, run

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]


# The model --------------------------------------------------------------------------------------


class Model:
    """The graphs of a folder.

    Args:
        folder: where encoder.onnx and decoder.onnx are.
        threads: how many threads an operation may use; 0: as many as there are cores.
    """

    def __init__(self, folder: Path, threads: int = 0) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        self._encoder, self._decoder = (
            onnxruntime.InferenceSession(
                str(folder / name), options, providers=["CPUExecutionProvider"]
            )
            for name in ("encoder.onnx", "decoder.onnx")
        )

    def start(self, sources: Sequence[Sequence[int]]) -> "State":
        """Encode sources (pieces without END)."""
        src = np.full((len(sources), max(map(len, sources), default=0) + 1), PAD, dtype=np.int64)
        for row, pieces in zip(src, sources, strict=True):
            row[: len(pieces) + 1] = [*pieces, EOS]
        values = self._encoder.run_with_ort_values(None, {"src": on_cpu(src)})
        names = [output.name for output in self._encoder.get_outputs()]
        return State(self._decoder, dict(zip(names, values, strict=True)), src != PAD)


@dataclass
class State:
    """What the decoder remembers of a batch between steps."""

    decoder: Any
    values: dict[str, Any]
    src_mask: npt.NDArray[np.bool_]
    """True where a source token stands, [B, S]."""
    beam: int = 1

    def step(
        self, tokens: Ints, origin: Ints, wanted: Sequence[str], k: int = 1
    ) -> list[npt.NDArray[Any]]:
        """Feed each hypothesis its next token.

        Args:
            tokens: [B, beam].
            origin: the row (sentence · beam + hypothesis) that each had in the step before. The
                hypotheses of a sentence come from one sentence; sentences may be left out.
            wanted: which outputs of the decoder to return: log_probs [B, beam, vocab];
                best_log_probs and best_tokens [B, beam, k]; attention [B, beam, S].
            k: how many best tokens.
        """
        sentences = origin[:, 0] // self.beam
        if not np.array_equal(sentences, np.arange(len(self.src_mask))):
            self.src_mask = self.src_mask[sentences]
            for name in self.values:
                if name == "src_mask" or name.startswith("memory"):
                    self.values[name] = on_cpu(self.values[name].numpy()[sentences])
        self.beam = tokens.shape[1]
        most = np.array([k], dtype=np.int64)
        given = {"tokens": on_cpu(tokens), "origin": on_cpu(origin), "k": on_cpu(most)}
        own = [name for name in self.values if name.startswith(("K.", "V."))]
        names = [*wanted, *(f"next_{name}" for name in own)]
        said = self.decoder.run_with_ort_values(names, given | self.values)
        self.values |= zip(own, said[len(wanted) :], strict=True)
        return [value.numpy() for value in said[: len(wanted)]]


def on_cpu(array: npt.NDArray[Any]) -> Any:
    """Return an array as the runtime takes it."""
    return onnxruntime.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array))


# Search -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Hypothesis:
    """The beginning of an output."""

    tokens: tuple[int, ...] = ()
    total: float = 0.0
    """The sum of the log-probabilities."""
    parent: int = 0
    """Which hypothesis of its sentence it continues."""


@dataclass
class Beam:
    """The hypotheses of a sentence: those that live, best first, and the best that has ended."""

    limit: int
    live: list[Hypothesis] = field(default_factory=lambda: [Hypothesis()])
    best: Hypothesis | None = None
    best_score: float = -math.inf
    done: bool = False

    def grow(
        self, continuations: Iterable[tuple[float, int, int]], size: int, penalty: Penalty
    ) -> None:
        """Go on with the best continuations (sum, parent, token), best first."""
        length, lives = len(self.live[0].tokens) + 1, []
        for rank, (total, parent, token) in enumerate(continuations):
            longer = Hypothesis((*self.live[parent].tokens, token), total, parent)
            if token != EOS:
                lives.append(longer)
            elif rank < size and total / penalty(length) > self.best_score:
                self.best, self.best_score = longer, total / penalty(length)
        self.live = lives[:size] or self.live[:1]
        # A log-probability is never positive: this is the best that a live hypothesis can reach.
        reachable = self.live[0].total / penalty(self.limit)
        self.done = not lives or length == self.limit or self.best_score >= reachable


def search(
    model: Model,
    sources: Sequence[Sequence[int]],
    limits: Sequence[int],
    size: int,
    penalty: Penalty,
) -> list[tuple[int, ...]]:
    """Return the best output of each source; beam search, and greedy search for a beam of one.

    At every step the 2 · size best continuations are looked at (of a beam of one the best alone):
    those that end are finished, and the `size` best that do not end live on. A sentence is done at
    its limit, or when nothing that lives can beat its best finished output any more. If none
    ended, the best unfinished one is returned.

    Args:
        model: the graphs.
        sources: pieces without END.
        limits: the most tokens of each output, END included.
        size: how many hypotheses of a sentence live on.
        penalty: the length penalty.
    """
    most = 1 if size == 1 else 2 * size
    state, beams = model.start(sources), [Beam(limit) for limit in limits]
    live, tokens = beams, np.full((len(beams), 1), BOS, dtype=np.int64)
    origin = np.arange(len(beams), dtype=np.int64)[:, None]
    while live:
        log_probs, ids = state.step(tokens, origin, ["best_log_probs", "best_tokens"], most)
        found = continuations(live, log_probs, ids, most)
        for beam, some in zip(live, found, strict=True):
            beam.grow(some, size, penalty)
        rows = [(row * tokens.shape[1], beam) for row, beam in enumerate(live) if not beam.done]
        live = [beam for _, beam in rows]
        # All beams are equally wide: of twice as many continuations at most half end.
        last = [[one.tokens[-1] for one in beam.live] for beam in live]
        from_ = [[row + one.parent for one in beam.live] for row, beam in rows]
        tokens, origin = np.array(last, dtype=np.int64), np.array(from_, dtype=np.int64)
    return [(beam.best or beam.live[0]).tokens for beam in beams]


def continuations(
    beams: Sequence[Beam], log_probs: Floats, tokens: Ints, most: int
) -> Iterator[list[tuple[float, int, int]]]:
    """Yield the best continuations of each beam, best first: sum, hypothesis, token.

    Log-probabilities and tokens are [B, beam, k].
    """
    before = np.array([[one.total for one in beam.live] for beam in beams])
    totals = (before[:, :, None] + log_probs).reshape(len(beams), -1)
    order = np.argsort(-totals, axis=1, kind="stable")[:, :most]
    ids = np.take_along_axis(tokens.reshape(len(beams), -1), order, axis=1)
    totals = np.take_along_axis(totals, order, axis=1)
    parents = order // log_probs.shape[2]
    for columns in zip(totals.tolist(), parents.tolist(), ids.tolist(), strict=True):
        yield [one for one in zip(*columns, strict=True) if one[0] > -math.inf]


class Translator(Lines):
    """Lines in, lines out.

    Args:
        folder: the exported model.
        threads: see `Model`.
        changes: settings instead of those in transduce.json.
    """

    def __init__(self, folder: Path, threads: int = 0, **changes: Any) -> None:
        super().__init__(folder, **changes)
        self.model = Model(folder, threads)

    def search(self, tasks: Sequence[Task]) -> Sequence[Sequence[int]]:
        """See `Lines.search`."""
        sources, limits = [task.source for task in tasks], [task.limit for task in tasks]
        return search(self.model, sources, limits, self.settings["beam_size"], self.penalty)


if __name__ == "__main__":
    run(lambda folder, threads, changes: Translator(folder, threads, **changes))
