"""Translate lines with a model of CTranslate2: standard input to standard output.

    python translate.py < lines.txt > translations.txt

This file and those beside it stand alone. Needed: ctranslate2, and sentencepiece where the model
has .spm files. `Translator` can also be imported.
"""

import json
import math
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import ctranslate2

from transduce.exporting.standalone.text import BOS, EOS, PAD, UNK, Lines, Task, run

TINY = 1e-9  # a length penalty that is none; with 0, CTranslate2 ends with the first output


class Translator(Lines):
    """Lines in, lines out.

    Args:
        folder: the exported model.
        threads: that work on one sentence or batch; 0: as many as there are cores.
        changes: settings instead of those in transduce.json.
    """

    def __init__(self, folder: Path, threads: int = 0, **changes: Any) -> None:
        super().__init__(folder, **changes)
        threads = threads or os.cpu_count() or 1
        with ThreadPoolExecutor(1) as loading:  # so that OpenMP's threads for it end with it
            self.model = loading.submit(
                ctranslate2.Translator,
                str(folder),
                compute_type=self.precision,
                intra_threads=threads,
            ).result()
        self.source_pieces, self.target_pieces = (
            read_vocabulary(folder, side) for side in ("source", "target")
        )
        self.ids = {piece: id_ for id_, piece in enumerate(self.target_pieces)}

    def search(self, tasks: Sequence[Task]) -> Sequence[Sequence[int]]:
        """See `Lines.search`."""
        most = max(task.limit for task in tasks)
        found = [self._best(task, outputs) for task, outputs in self._outputs(tasks, most)]
        for i, task in enumerate(tasks):
            usual = found[i][-1:] == [EOS] or (found[i] and self.settings["beam_size"] == 1)
            if not usual:  # beyond its limit, reserved tokens, or driven out by unfinished ones
                for careful in (False, True):
                    ((_, outputs),) = self._outputs([task], task.limit, TINY, careful)
                    found[i] = self._best(task, outputs) or found[i]
                    if found[i]:
                        break
        return found

    def _outputs(
        self, tasks: Sequence[Task], limit: int, power: float = 0.0, careful: bool = False
    ) -> Any:
        """Return each task with its outputs: pieces, and the sum of their log-probabilities."""
        beam = self.settings["beam_size"]
        power = power or self._power(max(len(task.source) for task in tasks) + 1)
        said = self.model.translate_batch(
            [[self.source_pieces[id_] for id_ in task.source] for task in tasks],
            beam_size=beam,
            num_hypotheses=beam,
            length_penalty=power,
            max_input_length=0,
            max_decoding_length=limit,
            min_decoding_length=0,
            return_end_token=True,
            return_scores=beam > 1,  # else it need not normalise
            suppress_sequences=[[self.target_pieces[id_]] for id_ in (PAD, UNK, BOS)]
            if careful
            else None,
        )
        return [
            (
                task,
                [
                    (pieces, score * len(pieces) ** power)
                    for pieces, score in zip(one.hypotheses, one.scores or [0.0], strict=True)
                ],
            )
            for task, one in zip(tasks, said, strict=True)
        ]

    def _power(self, n: int) -> float:
        """Return the p for which n^p, CTranslate2's penalty, grows as ours does at n tokens.

        The order of a beam is made by ours afterwards; CTranslate2's decides which outputs of more
        than the beam is wide are given.
        """
        kind, alpha = self.settings["penalty"], self.settings["alpha"]
        p = {"none": 0.0, "average": 1.0, "gnmt": alpha * n / (n + 5)}[kind]
        return max(TINY, p)

    def _best(self, task: Task, outputs: Sequence[tuple[list[str], float]]) -> list[int]:
        """Return the best output by our length penalty; nothing if none is as it must be."""
        best: tuple[bool, float, list[int]] = (False, -math.inf, [])
        for pieces, total in outputs:
            tokens = [self.ids[piece] for piece in pieces]
            if len(tokens) > task.limit:
                if len(outputs) > 1:
                    return []
                tokens = tokens[: task.limit]  # greedy search with a limit is greedy search cut
            if not {PAD, UNK, BOS} & set(tokens):
                one = (tokens[-1:] == [EOS], total / self.penalty(len(tokens)), tokens)
                best = max(best, one, key=lambda found: found[:2])
        return best[2]


def read_vocabulary(folder: Path, side: str) -> list[str]:
    """Return the pieces of a side in the order of their ids."""
    path = folder / "shared_vocabulary.json"
    if not path.exists():
        path = folder / f"{side}_vocabulary.json"
    pieces: list[str] = json.loads(path.read_text(encoding="utf-8"))
    return pieces


if __name__ == "__main__":
    run(lambda folder, threads, changes: Translator(folder, threads, **changes))
