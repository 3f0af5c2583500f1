"""An exported ONNX folder as an engine, so that our own search and scores run over it."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from transduce.config import BOS, EOS
from transduce.decoding.engines import Pairs, StepByStep, covered
from transduce.decoding.search import Next, Step
from transduce.errors import TransduceError


class OnnxEngine(StepByStep):
    """The graphs of a folder, run by onnxruntime on the CPU.

    Args:
        folder: written by `transduce.exporting.onnx.export`.

    Raises:
        TransduceError: if onnxruntime is missing, or the folder holds no such graphs.
    """

    def __init__(self, folder: Path) -> None:
        try:
            from transduce.exporting.standalone.onnx import Model
        except ImportError:
            raise TransduceError(
                "running ONNX models needs onnxruntime: pip install 'transduce[onnx]'"
            ) from None
        if not (folder / "decoder.onnx").is_file():
            raise TransduceError(f"{folder} is no exported ONNX model: no decoder.onnx")
        try:
            self.model = Model(folder, torch.get_num_threads())
        except Exception as error:  # of onnxruntime's own kinds, which have no common ancestor
            raise TransduceError(f"cannot read {folder}: {str(error).splitlines()[0]}") from None

    def start(self, sources: Sequence[Sequence[int]], coverage: bool = False) -> Step:
        """See `StepByStep.start`."""
        state = self.model.start(sources)
        attended = torch.zeros(len(sources), 1, state.src_mask.shape[1])

        def step(tokens: Int[Tensor, "B beam"], origin: Int[Tensor, "B beam"]) -> Next:
            nonlocal attended
            wanted = ["log_probs", "attention"] if coverage else ["log_probs"]
            said = state.step(tokens.numpy(), origin.numpy(), wanted)
            log_probs, *attention = map(torch.from_numpy, said)
            if not coverage:
                return Next(log_probs)
            attended = attended.flatten(0, 1)[origin] + attention[0]
            src_mask = torch.from_numpy(state.src_mask)[:, None]
            return Next(log_probs, covered(attended, src_mask))

        return step

    def score(self, pairs: Pairs) -> list[list[float]]:
        """See `Engine.score`; the targets are fed token by token, shortest pairs leaving first."""
        order = sorted(range(len(pairs)), key=lambda i: -len(pairs[i][1]))
        state = self.model.start([pairs[i][0] for i in order])
        scores: list[list[float]] = [[] for _ in pairs]
        for t in range(max((len(target) for _, target in pairs), default=-1) + 1):
            live = [i for i in order if len(pairs[i][1]) >= t]
            tokens = [[BOS if t == 0 else pairs[i][1][t - 1]] for i in live]
            rows = np.arange(len(live))[:, None]
            (log_probs,) = state.step(np.array(tokens), rows, ["log_probs"])
            for i, row in zip(live, log_probs[:, 0], strict=True):
                scores[i].append(float(row[[*pairs[i][1], EOS][t]]))
        return scores
