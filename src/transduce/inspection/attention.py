"""What the parts of a model say while it runs, recorded by hooks: nothing in the model knows of it.

Names are those of the module tree, as in a model folder: `decoder.layers.2.cross_attention`.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import get_ident
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from transduce.data.batches import collate
from transduce.model import MultiHeadAttention, Transformer

Kind = Literal["encoder_self", "decoder_self", "cross"]
KINDS: tuple[Kind, ...] = ("encoder_self", "decoder_self", "cross")
"""What attends to what: source to source, target to target before it, target to source."""


@dataclass(frozen=True)
class Passed:
    """What went into a module and what came out of it."""

    inputs: tuple[Any, ...]
    output: Tensor

    @property
    def input(self) -> Tensor:
        """The first thing that went in."""
        return self.inputs[0]


@contextmanager
def recording(
    model: Transformer, wanted: Callable[[str, nn.Module], bool]
) -> Iterator[dict[str, Passed]]:
    """Record what passes the modules that are `wanted`, by name; of several passes the last.

    Only this thread is listened to. A recorded `weights` has attention computed explicitly.
    """
    passed: dict[str, Passed] = {}
    thread = get_ident()

    def listen(name: str, module: nn.Module) -> Any:
        def record(module: nn.Module, inputs: tuple[Any, ...], output: object) -> None:
            if get_ident() == thread and isinstance(output, Tensor):
                passed[name] = Passed(inputs, output)

        return module.register_forward_hook(record)

    hooks = [listen(name, module) for name, module in model.named_modules() if wanted(name, module)]
    try:
        yield passed
    finally:
        for hook in hooks:
            hook.remove()


def module_name(kind: Kind, layer: int) -> str:
    """Return the name of the attention of a kind in a layer, counted from 0."""
    stack = "encoder" if kind == "encoder_self" else "decoder"
    return f"{stack}.layers.{layer}.{'cross_attention' if kind == 'cross' else 'self_attention'}"


def attentive_layers(model: Transformer, kind: Kind) -> list[int]:
    """Return the layers that have attention of a kind: with other layer types some have none."""
    stack = model.encoder if kind == "encoder_self" else model.decoder
    modules = dict(model.named_modules())
    layers = range(len(stack.layers))
    return [i for i in layers if isinstance(modules[module_name(kind, i)], MultiHeadAttention)]


@torch.inference_mode()
def attention_weights(
    model: Transformer, pairs: Sequence[tuple[Sequence[int], Sequence[int]]]
) -> list[dict[Kind, Float[Tensor, "layers h q k"]]]:
    """Return the attention weights of sources with their targets, of all layers that have any.

    Args:
        model: in evaluation mode.
        pairs: ids of source and target, without BEGIN and END (they are added, P14).

    Returns:
        For each pair, by kind. Row t of `decoder_self` and `cross` belongs to the step that
        produced target token t (END last); its input was the token before. No padding is left.
    """
    device = model.source_embedding.weight.device
    batch = collate(pairs).to(device)
    kinds = {kind: attentive_layers(model, kind) for kind in KINDS}
    names = {f"{module_name(kind, i)}.weights" for kind in KINDS for i in kinds[kind]}
    with recording(model, lambda name, _: name in names) as passed:
        model(batch.src, batch.tgt_in)
    found: list[dict[Kind, Tensor]] = []
    for row, (src, tgt) in enumerate(pairs):
        S, T = len(src) + 1, len(tgt) + 1
        sizes: dict[Kind, tuple[int, int]] = {
            "encoder_self": (S, S), "decoder_self": (T, T), "cross": (T, S),
        }  # fmt: skip
        of_pair: dict[Kind, Tensor] = {}
        for kind, (q, k) in sizes.items():
            own = [passed[f"{module_name(kind, i)}.weights"].output[row] for i in kinds[kind]]
            nothing = torch.zeros(0, model.config.h, q, k)
            of_pair[kind] = torch.stack([w[:, :q, :k].cpu() for w in own]) if own else nothing
        found.append(of_pair)
    return found
