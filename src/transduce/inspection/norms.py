"""Why LayerNorm: the same sentences alone, in company, and among longer ones, with each norm."""

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from transduce.inspection.layers import machine
from transduce.inspection.study import Curve, Plot, Section, Study, Table
from transduce.inspection.toy import copier, letters, right_letters, shifted
from transduce.model import Transformer

KINDS = ("layer", "rms", "batch")
LONGEST, SENTENCES = 12, 16
SITUATIONS = ("alone", "among 15 others", "among 15 others, some of 40 letters")


def study(
    updates: int = 300, seed: int = 1, tell: Callable[[str], None] = lambda line: None
) -> Study:
    """Train a copying model with each norm, and give it the same sentences in other company.

    Args:
        updates: of each training.
        seed: of weights and letters.
        tell: is told how far it is.
    """
    moved: dict[str, dict[str, list[float]]] = {}
    right: dict[str, dict[str, list[float]]] = {}
    for kind in KINDS:
        model = copier(LONGEST, updates, seed, kind, tell, norm_kind=kind)
        for mode in ("training", "evaluation"):
            model.train(mode == "training")
            of_mode = [company(model, situation, seed) for situation in range(3)]
            usual = of_mode[0][0]
            moved.setdefault(kind, {})[mode] = [
                ((logits - usual).abs().max() / usual.std()).item() for logits, _ in of_mode
            ]
            right.setdefault(kind, {})[mode] = [share for _, share in of_mode]
    rows = [
        [kind, mode, *(f"{moved[kind][mode][i]:.1e}" for i in (1, 2)),
         *(f"{share:.1f}" for share in right[kind][mode])]
        for kind in KINDS
        for mode in ("training", "evaluation")
    ]  # fmt: skip
    columns = [
        "norm", "mode", *(f"moved, {one}" for one in SITUATIONS[1:]),
        *(f"right, {one}" for one in SITUATIONS),
    ]  # fmt: skip
    plot = Plot(
        "Next letter right in training mode, per cent", "company", "per cent",
        [
            Curve(kind, [(float(i), y) for i, y in enumerate(right[kind]["training"])])
            for kind in KINDS
        ],
        log=False, names=["alone", "company", "longer company"],
    )  # fmt: skip
    return Study(
        "Norms and company",
        "LayerNorm normalises the features of one position, so a sentence is what it is whoever it "
        "is with. Batch normalisation takes its means over all positions of a batch.",
        [Section("The same sentences", sentences(moved, right), [Table(columns, rows)], [plot])],
        machine(),
        {"updates": updates, "seed": seed, "moved": moved, "right": right},
    )


def company(
    model: Transformer, situation: int, seed: int
) -> tuple[Float[Tensor, "sentences T vocab"], float]:
    """Return the logits of the same sentences in a situation, and how many letters are right.

    Args:
        model: in training or evaluation mode; it is not changed.
        situation: which of `SITUATIONS`.
        seed: of the letters.
    """
    draw = torch.Generator().manual_seed(seed + 2)
    asked = letters([LONGEST] * SENTENCES, draw)
    others = [LONGEST] * 15 if situation == 1 else [LONGEST] * 5 + [40] * 10
    strangers = letters(others, draw)
    kept = {name: p.detach().clone() for name, p in model.named_parameters()}
    said, right = [], 0
    for one in asked:
        src = one[None] if situation == 0 else beside(one, strangers)
        with torch.inference_mode():
            said.append(model(src, shifted(src))[0, : len(one)])
        right += int(right_letters(model, src)[0].sum())
    with torch.no_grad():
        for name, parameter in model.named_parameters():  # running means have moved
            parameter.copy_(kept[name])
    return torch.stack(said), 100 * right / asked.numel()


def beside(one: Int[Tensor, " S"], others: Int[Tensor, "B wide"]) -> Int[Tensor, "more wide"]:
    """Return a sentence, padded, and others in one batch."""
    whole = others.new_zeros(1 + len(others), others.size(1))
    whole[0, : len(one)], whole[1:] = one, others
    return whole


def sentences(
    moved: dict[str, dict[str, list[float]]], right: dict[str, dict[str, list[float]]]
) -> list[str]:
    """Say what was found, and why."""
    said = [
        f"{kind}: in training mode company moves the logits by {max(moved[kind]['training']):.1e} "
        f"of their spread, in evaluation by {max(moved[kind]['evaluation']):.1e}. Of the next "
        f"letters {right[kind]['training'][0]:.0f} % are right alone in training mode, "
        f"{right[kind]['training'][2]:.0f} % among longer sentences, "
        f"{right[kind]['evaluation'][0]:.0f} % in evaluation mode."
        for kind in KINDS
    ]
    said.append(
        "Differences of about 1e-6 are rounding: products of other sizes add up in another order. "
        "With batch normalisation a sentence becomes another one in other company while it is "
        "trained; alone, its means are those of a dozen positions. In evaluation running means "
        "stand in their place, which no training step ever used, and whose fit depends on the "
        "lengths and sentences that training happened to put together."
    )
    said.append(
        "Without the mean taken away (rms) nothing changes in this respect: it too is of one "
        "position alone."
    )
    return said
