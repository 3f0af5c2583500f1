"""What runs the model during search and scoring."""

from collections.abc import Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from transduce.config import PAD
from transduce.data.batches import collate, padded
from transduce.decoding.search import Next, Step
from transduce.model import Transformer


class TorchEngine:
    """The model itself, with cached keys and values."""

    def __init__(self, model: Transformer) -> None:
        self.model = model

    @property
    def device(self) -> torch.device:
        """Where the model's weights lie."""
        return self.model.output.weight.device

    @torch.inference_mode()
    def start(self, sources: Sequence[Sequence[int]]) -> Step:
        """Encode sources (pieces without END) and return the step function of their search."""
        state = self.model.start(padded(sources, end=True).to(self.device))

        @torch.inference_mode()
        def step(tokens: Int[Tensor, "B beam"], origin: Int[Tensor, "B beam"]) -> Next:
            nonlocal state
            state = state.select(origin.to(self.device))
            logits, state = self.model.step(tokens.to(self.device), state)
            return Next(logits.log_softmax(dim=-1))

        return step

    @torch.inference_mode()
    def score(self, pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[list[float]]:
        """Return the log-probability of every target token, END included."""
        batch = collate(pairs).to(self.device)
        log_probs = self.model(batch.src, batch.tgt_in).log_softmax(dim=-1)
        chosen = log_probs.gather(2, batch.tgt_out[:, :, None])[:, :, 0]
        return [row[mask].tolist() for row, mask in zip(chosen, batch.tgt_out != PAD, strict=True)]
