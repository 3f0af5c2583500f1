"""The rows of Table 3, and further ones, carried over to a base model of any size (§6.2)."""

import importlib.util
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple

from transduce.config import Config, ModelConfig, Settings, merge, named, parse
from transduce.errors import UsageError, did_you_mean

BASE = "base"


class Paper(NamedTuple):
    """What Table 3 prints of a row (newstest2013, English to German)."""

    perplexity: float
    """Per word-piece."""
    bleu: float
    parameters: int | None = None
    """In millions; None where the column is empty."""


PAPER = {
    "base": Paper(4.92, 25.8, 65),
    "A1": Paper(5.29, 24.9),
    "A2": Paper(5.00, 25.5),
    "A3": Paper(4.91, 25.8),
    "A4": Paper(5.01, 25.4),
    "B1": Paper(5.16, 25.1, 58),
    "B2": Paper(5.01, 25.4, 60),
    "C1": Paper(6.11, 23.7, 36),
    "C2": Paper(5.19, 25.3, 50),
    "C3": Paper(4.88, 25.5, 80),
    "C4": Paper(5.75, 24.5, 28),
    "C5": Paper(4.66, 26.0, 168),
    "C6": Paper(5.12, 25.4, 53),
    "C7": Paper(4.75, 26.2, 90),
    "D1": Paper(5.77, 24.6),
    "D2": Paper(4.95, 25.5),
    "D3": Paper(4.67, 25.3),
    "D4": Paper(5.47, 25.7),
    "E": Paper(4.92, 25.7),
    "big": Paper(4.33, 26.4, 213),
}


class Group(NamedTuple):
    """Rows that answer one question."""

    name: str
    title: str
    rows: tuple[str, ...]
    finding: str
    """What the paper says about them."""


GROUPS = (
    Group(
        "A", "A: number of heads", ("A1", "A2", "A3", "A4"),
        "The paper, with h · d_k kept as it is: one head is 0.9 BLEU worse than the best setting, "
        "and quality drops with too many heads as well.",
    ),
    Group(
        "B", "B: width of the keys", ("B1", "B2"),
        "The paper: narrower keys hurt; whether a key suits a query is not easy to tell.",
    ),
    Group(
        "C", "C: sizes", ("C1", "C2", "C3", "C4", "C5", "C6", "C7"),
        "The paper: bigger models are better.",
    ),
    Group(
        "D", "D: dropout and label smoothing", ("D1", "D2", "D3", "D4"),
        "The paper: dropout helps much against over-fitting; label smoothing costs perplexity and "
        "brings BLEU.",
    ),
    Group(
        "E", "E: learned positions", ("E",),
        "The paper: learned positions give nearly the same as sinusoids.",
    ),
    Group(
        "big", "big", ("big",),
        "The paper: the best of all rows, trained for three times as many updates as base. Here "
        "it has as many as base.",
    ),
    Group(
        "layers", "Layer types",
        ("self-attention", "restricted", "lstm", "gru", "convolutional", "dilated"),
        "The paper compares cost and path length of these (Table 1), not what they learn. Each "
        "stands in the place of self-attention in both stacks; attention to the source stays.",
    ),
    Group(
        "norms", "Norms",
        ("post-layer", "post-batch", "post-rms", "pre-layer", "pre-batch", "pre-rms"),
        "The paper normalises the features of a position after the residual sum (post, layer) and "
        "tries nothing else.",
    ),
    Group(
        "normalisers", "What makes weights of scores",
        ("softmax", "relu", "sparsemax", "entmax"),
        "The paper has softmax and tries nothing else.",
    ),
    Group(
        "positions", "Positions", ("sinusoidal", "learned", "none"),
        "The paper: learned positions give nearly the same as sinusoids; it never leaves them out.",
    ),
)  # fmt: skip
USUAL = ("A", "B", "C", "D", "E")
"""The groups of those who name none."""


def _both(kind: str, **more: object) -> Settings:
    return {"encoder_layer_type": kind, "decoder_layer_type": kind, **more}


VARIANTS: dict[str, Settings] = {
    "self-attention": _both("self-attention"),
    "restricted": _both("restricted"),
    "lstm": _both("recurrent", cell="lstm"),
    "gru": _both("recurrent", cell="gru"),
    "convolutional": _both("convolutional", dilated=False),
    "dilated": _both("convolutional", dilated=True),
    **{
        f"{place}-{kind}": {"norm_place": place, "norm_kind": kind}
        for place in ("post", "pre")
        for kind in ("layer", "batch", "rms")
    },
    **{name: {"attention_normaliser": name} for name in ("softmax", "relu", "sparsemax", "entmax")},
    **{name: {"positions": name} for name in ("sinusoidal", "learned", "none")},
}
"""Of rows that Table 3 lacks: what they change in [model]."""


@dataclass(frozen=True)
class Row:
    """A model that differs from base in one respect."""

    name: str
    config: Config
    """Of its runs, but for the seed."""
    changes: str
    """What differs from base, in words; of base itself, its sizes."""
    notes: tuple[str, ...] = ()
    """Where it could not be as in the paper."""
    paper: Paper | None = None
    """None too where the paper changes the same thing in the other direction."""


def chosen(names: Sequence[str]) -> list[Group]:
    """Return the groups with those of their rows that are named, or whose group is.

    Raises:
        UsageError: with the nearest right name, if there is none of that name.
    """
    known = [BASE, *(name for group in GROUPS for name in (group.name, *group.rows))]
    for name in names:
        if name not in known:
            groups = ", ".join(group.name for group in GROUPS)
            raise UsageError(
                f"--rows {name}: there is no such row or group{did_you_mean(name, known)} (groups: "
                f"{groups}; rows: {', '.join(row for group in GROUPS for row in group.rows)})"
            )
    found = [
        group._replace(rows=tuple(row for row in group.rows if group.name in names or row in names))
        for group in GROUPS
    ]
    if not any(group.rows for group in found):
        raise UsageError(f"--rows: {BASE} is what others are compared with: name at least one more")
    return [group for group in found if group.rows]


def rows_of(groups: Iterable[Group], base: Config) -> tuple[dict[str, list[Row]], list[str]]:
    """Return the rows of each group, scaled to a base model, and sentences on those left out.

    Left out is what comes out equal to base or to a row before it, and what is not installed.
    """
    seen = {_trained(base): BASE}
    rows: dict[str, list[Row]] = {}
    left_out, same = [], dict[str, list[str]]()
    for group in groups:
        for name in group.rows:
            if name == "entmax" and not importlib.util.find_spec("entmax"):
                left_out.append("entmax is left out: it needs pip install 'transduce[entmax]'")
                continue
            row = row_of(name, base)
            if twin := seen.get(_trained(row.config)):
                same.setdefault(twin, []).append("; ".join(row.notes) or name)
                continue
            seen[_trained(row.config)] = name
            rows.setdefault(group.name, []).append(row)
    left_out += [
        f"left out, since here it would be the same as {twin}: {', '.join(names)}"
        for twin, names in same.items()
    ]
    return rows, left_out


def row_of(name: str, base: Config) -> Row:
    """Return a row, scaled to a base model."""
    if name == BASE:
        keys = ("N_encoder", "N_decoder", "d_model", "d_ff", "h", "d_k", "d_v", "P_drop")
        sizes = base.model.model_dump(include={*keys}) | {"eps_ls": base.training.eps_ls}
        return Row(BASE, base, in_words(sizes), paper=PAPER[BASE])
    notes: list[str] = []
    comparable = True
    if name in VARIANTS:
        changes: Settings = {"model": dict(VARIANTS[name])}
        if base.model.kernel % 2 == 0 and "convolutional" in changes["model"].values():
            changes["model"]["kernel"] = base.model.kernel + 1
            notes.append(f"kernel {base.model.kernel} is even: {base.model.kernel + 1}")
    else:
        row, paper = preset(name), preset(BASE)
        sizes = dict(_sizes(row.model, paper.model, base.model, notes))
        values, comparable = _values(row, paper, base, notes)
        changes = merge({"model": sizes}, values)
    if changes["model"].get("positions") == "learned":  # as many as training pairs may need
        longest = max(base.model.max_positions, base.data.max_length + 1)
        changes["model"]["max_positions"] = longest
    config = parse(merge(base.model_dump(), changes), f"row {name}")
    return Row(
        name,
        config,
        in_words(dict(_differences(config, base))),
        tuple(f"{name}: {note}" for note in notes),
        PAPER.get(name) if comparable else None,
    )


def preset(name: str) -> Config:
    """Return a row of Table 3 in its own size."""
    return parse(named("presets", name), f"preset {name}")


def _sizes(
    row: ModelConfig, paper: ModelConfig, base: ModelConfig, notes: list[str]
) -> Iterator[tuple[str, Any]]:
    """Yield the sizes that stand to `base` as `row` stands to the paper's base.

    Heads share the width h · d_k, whose ratio counts: rows A keep it, rows B and C do not. A number
    of heads must divide it. What is not possible is rounded, and noted.
    """

    def nearest(key: str, exact: Fraction, possible: Iterable[int] = ()) -> int:
        found = max(1, int(exact + Fraction(1, 2)))
        found = min(possible, key=lambda n: (abs(n - exact), n), default=found)
        if key.startswith("N") and base.N_encoder == base.N_decoder:
            key = "N"
        note = f"{key} {float(exact):.3g} is not possible: {found}"
        if found != exact and note not in notes:
            notes.append(note)
        return found

    def ratio(*keys: str) -> Fraction:
        result = Fraction(1)
        for key in keys:
            result *= Fraction(getattr(row, key), getattr(paper, key))
        return result

    for key in ("N", "N_encoder", "N_decoder", "d_model", "d_ff"):
        if (factor := ratio(key)) != 1:
            yield key, nearest(key, getattr(base, key) * factor)
    widths = {key: base.h * getattr(base, key) * ratio("h", key) for key in ("d_k", "d_v")}
    h = base.h
    if ratio("h") != 1:
        width = widths["d_k"]
        divisors = [n for n in range(1, int(width) + 1) if width % n == 0]
        h = nearest("h", base.h * ratio("h"), divisors)
        yield "h", h
    for key, width in widths.items():
        if ratio(key) != 1:
            yield key, nearest(key, width / h)


def _values(row: Config, paper: Config, base: Config, notes: list[str]) -> tuple[Settings, bool]:
    """Return what a row sets as the paper does, and whether it goes the paper's way from base."""
    values: Settings = {"model": {}}
    comparable = True
    for table, key in (("model", "P_drop"), ("model", "positions"), ("training", "eps_ls")):
        value, theirs, ours = (getattr(getattr(one, table), key) for one in (row, paper, base))
        if value == theirs:
            continue
        values = merge(values, {table: {key: value}})
        others = ("attention_dropout", "activation_dropout")
        if key == "P_drop" and any(getattr(base.model, other) for other in others):
            notes.append(f"of dropout only P_drop changes: {' and '.join(others)} stay")
        if isinstance(value, float) and (value - theirs) * (value - ours) < 0:
            comparable = False
            notes.append(
                f"the paper comes from {key} {theirs:g}, this base from {ours:g}: the other "
                "direction, so there is nothing to compare with"
            )
    return values, comparable


def _trained(config: Config) -> str:
    """Return all that decides what is trained."""
    return config.model.model_dump_json() + config.training.model_dump_json()


def _differences(config: Config, base: Config) -> Iterator[tuple[str, Any]]:
    """Yield what differs from base, and what else a layer type goes by."""
    kinds = {config.model.encoder_layer_type, config.model.decoder_layer_type}
    by = {"restricted": "window", "convolutional": "kernel", "recurrent": "cell"}
    always = {by[kind] for kind in kinds if kind in by}
    if base.model.encoder_layer_type == config.model.encoder_layer_type:
        always = set()
    for table in ("model", "training"):
        ours, theirs = getattr(config, table).model_dump(), getattr(base, table).model_dump()
        for key, value in ours.items():
            if (value != theirs[key] or key in always) and key not in ("N", "max_positions"):
                yield key, value


def in_words(settings: Mapping[str, Any]) -> str:
    """Return settings in few words; what is the same on both sides once."""
    shown = dict(settings)
    for one, other, both in (
        ("N_encoder", "N_decoder", "N"),
        ("encoder_layer_type", "decoder_layer_type", "layer_type"),
        ("d_k", "d_v", "d_k = d_v"),
    ):
        if one in shown and shown[one] == shown.get(other):
            shown = {both if key == one else key: v for key, v in shown.items() if key != other}
    return ", ".join(
        f"{key} {str(value).lower() if isinstance(value, bool) else value}"
        for key, value in shown.items()
    )
