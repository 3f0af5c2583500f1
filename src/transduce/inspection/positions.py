"""Sinusoids, learned positions, none: what each does beyond the length that was trained (§3.5)."""

from collections.abc import Callable

import torch

from transduce.inspection.layers import machine
from transduce.inspection.study import Curve, Plot, Section, Study, Table
from transduce.inspection.toy import copied, copier, letters, right_letters

KINDS = ("sinusoidal", "learned", "none")
TRAINED = 12
"""Letters of the longest sentence of training."""
LENGTHS = (2, 4, 6, 8, 10, 12, 13, 14, 16, 20, 24, 30, 36)
FAR = 24
"""The length that the sentences speak of."""
SENTENCES = 100
"""Of each length."""


def study(
    updates: int = 1000, seed: int = 1, tell: Callable[[str], None] = lambda line: None
) -> Study:
    """Train a copying model with each kind of positions, and test it beyond.

    Args:
        updates: of each training.
        seed: of weights and letters.
        tell: is told how far it is.
    """
    whole: dict[str, list[tuple[float, float]]] = {}
    single: dict[str, list[tuple[float, float]]] = {}
    for kind in KINDS:
        model = copier(
            TRAINED, updates, seed, kind, tell, positions=kind, max_positions=max(LENGTHS) + 1
        )
        draw = torch.Generator().manual_seed(seed + 1)
        for n in LENGTHS:
            src = letters([n] * SENTENCES, draw)
            exact = 100 * copied(model, src).float().mean().item()
            found = 100 * right_letters(model, src).float().mean().item()
            whole.setdefault(kind, []).append((float(n), exact))
            single.setdefault(kind, []).append((float(n), found))
    rows = [
        [f"{n}", *(f"{whole[kind][i][1]:.1f}" for kind in KINDS),
         *(f"{single[kind][i][1]:.1f}" for kind in KINDS)]
        for i, n in enumerate(LENGTHS)
    ]  # fmt: skip
    columns = ["letters", *KINDS, *(f"{kind}, next letter" for kind in KINDS)]
    plots = [
        Plot(title, "letters", "per cent", [Curve(kind, values[kind]) for kind in KINDS], log=False)
        for title, values in (("Copied exactly", whole), ("Next letter right", single))
    ]
    return Study(
        "Positions beyond the trained length",
        f"Three small models learn to copy up to {TRAINED} random letters; then they are asked for "
        "more. The paper chose sinusoids hoping that they carry on where training ends.",
        [Section("What is copied", list(sentences(whole, single)), [Table(columns, rows)], plots)],
        machine(),
        {"updates": updates, "seed": seed, "trained": TRAINED, "exact": whole, "next": single},
    )


def sentences(
    whole: dict[str, list[tuple[float, float]]], single: dict[str, list[tuple[float, float]]]
) -> list[str]:
    """Say what was found, and why."""
    why = {
        "sinusoidal": "Beyond, every position has a vector that no training showed; it is made as "
        "the others are, but the heads have learned to find their way among those alone.",
        "learned": "Beyond, the rows of the table are as they were drawn at the beginning: noise.",
        "none": "An encoder without positions sees a bag of letters: their order is lost but for "
        "what the decoder, whose mask shows each step one letter more, can count.",
    }
    said = []
    for kind in KINDS:
        within = [y for x, y in whole[kind] if x <= TRAINED]
        just, far = (next(y for x, y in whole[kind] if x == n) for n in (TRAINED + 1, FAR))
        letter = next(y for x, y in single[kind] if x == FAR)
        said.append(
            f"{kind}: up to {TRAINED} letters {sum(within) / len(within):.0f} % are copied "
            f"exactly, of {TRAINED + 1} letters {just:.0f} %, of {FAR} {far:.0f} % (there, "
            f"{letter:.0f} % of the next letters are right when those before are given). "
            f"{why[kind]}"
        )
    return said
