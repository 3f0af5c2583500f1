"""What a model is in the paper's terms: figure 1 with shapes, parameters, operations, memory."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import nn

from transduce.config import (
    Config,
    Settings,
    departures,
    from_assignments,
    merge,
    overlay,
    parse,
)
from transduce.fitting import BYTES, polynomial, terms
from transduce.inspection.layer_costs import operations, operations_of_layer
from transduce.inspection.study import Section, Study, Table
from transduce.model import Transformer
from transduce.model_folder import CONFIG, MODEL, load_config
from transduce.preparing import settings_of
from transduce.training.loss import CHUNK

LENGTH = 32
"""Positions of the sentences whose operations and memory are given."""


def study(settings: Settings, name: str, tell: Callable[[str], None] = lambda line: None) -> Study:
    """Explain the model of a recipe, or one that is there.

    Args:
        settings: of the recipe, or of a model folder. What a recipe leaves to be chosen from its
            corpus is as the paper has it; vocabularies are as large as is asked for.
        name: of what is explained.
        tell: is told what is measured.

    Raises:
        UsageError: if the settings are wrong.
    """
    config = with_vocabularies(settings)
    with torch.device("meta"):
        model = Transformer(config.model)
    tell("memory")
    sections = [
        Section(
            "Figure 1",
            [
                "From below: B sentences of S source and T target positions. Every sub-layer has "
                + (
                    "LayerNorm(x + Sublayer(x)) around it."
                    if config.model.norm_place == "post"
                    else "x + Sublayer(LayerNorm(x)) around it."
                )
            ],
            [Table(["part", "shape of what comes out", "computed as"], list(figure_1(config)))],
        ),
        parameters(config, model),
        products(config),
        memory(config),
        departed(config),
    ]
    return Study(
        f"{name} in the paper's terms",
        "What figure 1 is with the sizes of this model, and what it takes.",
        sections,
        f"{config.model.N_encoder} + {config.model.N_decoder} layers, "
        f"d_model {config.model.d_model}, {count(model):,} parameters",
        {"parameters": count(model), "departures": departures(config)},
    )


def with_vocabularies(settings: Settings) -> Config:
    """Return the configuration with vocabularies as large as the tokenizers are asked to be."""
    config = parse(settings, "the recipe")
    if "source_vocabulary" in settings.get("model", {}):
        return config
    tokenizer = config.tokenizer
    sizes = {
        f"{side}_vocabulary": getattr(tokenizer, side).vocabulary or tokenizer.vocabulary
        for side in ("source", "target")
    }
    known: Settings = {"model": sizes | {"joint_vocabulary": tokenizer.joint}}
    return parse(merge(settings, known), "the recipe")


def count(model: nn.Module) -> int:
    """Return the number of parameters, tied ones once."""
    return sum(parameter.numel() for parameter in model.parameters())


def figure_1(config: Config) -> Iterator[list[str]]:
    """Yield what the model does, from below, with the shape of each result."""
    m = config.model
    scale = " · √d_model" if m.scale_embeddings else ""
    added = {"sinusoidal": " + sinusoids", "learned": " + learned positions", "none": ""}
    for side, n, stack, rows, kind, layers in (
        ("source", "S", "encoder", m.source_vocabulary, m.encoder_layer_type, m.N_encoder),
        ("target", "T", "decoder", m.target_vocabulary, m.decoder_layer_type, m.N_decoder),
    ):
        inner = f"B {n} {m.d_model}"
        yield [
            f"{side} embedding", inner,
            f"row of [{rows:,}, {m.d_model}]{scale}{added[m.positions]}",
        ]  # fmt: skip
        masked = "masked " if side == "target" else ""
        name = "self-attention" if kind == "self-attention" else f"{kind} layer"
        yield [f"{stack}, {layers} × {masked}{name}", inner, mixer_of(config, kind, n)]
        if side == "target":
            yield [
                f"{stack}, {layers} × attention to the memory", inner,
                f"the same with Q of the target, K and V of the memory: B {m.h} T S",
            ]  # fmt: skip
        yield [
            f"{stack}, {layers} × feed-forward", inner,
            f"{m.activation}(x W_1 [{m.d_model}, {m.d_ff}] + b_1) W_2 [{m.d_ff}, {m.d_model}] "
            "+ b_2",
        ]  # fmt: skip
    yield [
        "output", f"B T {m.target_vocabulary}",
        f"x Wᵀ [{m.d_model}, {m.target_vocabulary:,}]"
        + (" + b" if m.output_bias else "")
        + (", the embedding's matrix" if m.tie_embeddings else ""),
    ]  # fmt: skip


def mixer_of(config: Config, kind: str, n: str) -> str:
    """Return what a mixer computes."""
    m = config.model
    match kind:
        case "recurrent":
            return f"{m.cell.upper()} from position to position" + (
                ", both ways" if n == "S" else ""
            )
        case "convolutional":
            apart = ", further apart in each layer" if m.dilated else ""
            return f"gated convolution over {m.kernel} inputs{apart}"
    heads = f"{m.h} heads of d_k {m.d_k}, d_v {m.d_v}"
    weights = f"{m.attention_normaliser}(Q Kᵀ / √{m.d_k}) V, weights B {m.h} {n} {n}"
    near = f", no further than {m.window} positions" if kind == "restricted" else ""
    return f"{heads}: {weights}{near}"


def parameters(config: Config, model: Transformer) -> Section:
    """Return how many parameters each part has."""
    parts: dict[str, int] = {}
    for name, parameter in model.named_parameters():
        words = name.split(".")
        part = words[0].replace("_", " ")
        if words[1] == "layers":
            part = f"{part}: {words[3].replace('_', ' ')}".replace(" norm", "")
            if "norm" in words[3]:
                part = f"{words[0]}: norms"
        elif words[0] in ("encoder", "decoder"):
            part = f"{words[0]}: norms"
        parts[part] = parts.get(part, 0) + parameter.numel()
    whole = count(model)
    rows = [[part, f"{n:,}", f"{n / whole:.1%}"] for part, n in parts.items()]
    m, said = config.model, []
    if m.tie_embeddings:
        shared = "Both embeddings and the output" if m.joint_vocabulary else (
            "The target embedding and the output"
        )  # fmt: skip
        said.append(f"{shared} share one matrix, which is counted once (§3.4).")
    return Section("Parameters", said, [Table(["part", "parameters", "share"], rows)])


def products(config: Config) -> Section:
    """Return how many multiplications a token takes."""
    m, n = config.model, LENGTH
    with torch.device("meta"):
        encoder = m.N_encoder * operations_of_layer(m.encoder_layer_type, n, m)
        decoder = m.N_decoder * operations_of_layer(m.decoder_layer_type, n, m)
        queries = 2 * n * m.d_model * m.h * (m.d_k + m.d_v)  # W_Q, W_K, W_V, W_O of n positions
        cross = m.N_decoder * (queries + operations("self-attention", n, m))
    output = n * m.d_model * m.target_vocabulary
    rows = [
        [part, f"{whole // n:,}"]
        for part, whole in (
            ("encoder, a source token", encoder),
            ("decoder's own layers, a target token", decoder),
            ("attention to the memory, a target token", cross),
            ("output, a target token", output),
        )
    ]
    whole = (encoder + decoder + cross + output) // n
    said = [
        f"Multiplications, each with an addition, for sentences of {n} positions on either side: "
        f"{whole:,} for a source and a target token together; training takes three times as many, "
        f"{6 * whole:,} floating-point operations.",
    ]
    if m.decoder_layer_type != "self-attention":
        said.append("A layer that looks at the past alone is counted as one that looks both ways.")
    return Section("Operations", said, [Table(["part", "products"], rows)])


def memory(config: Config) -> Section:
    """Return what training holds in memory."""
    with torch.device("meta"):
        model = Transformer(config.model.model_copy(update={"positions": "sinusoidal"}))
    weights = count(model)
    model.to_empty(device="cpu").tie()
    for parameter in model.parameters():
        torch.nn.init.zeros_(parameter)
    tokens = config.training.tokens
    rows = max(1, tokens // LENGTH)
    shape = np.array([[rows, LENGTH, LENGTH]]).T
    kept = float((terms(*shape) @ polynomial(model.train(), config.training)).sum())
    logits = 8.0 * CHUNK * config.model.target_vocabulary
    table = [
        ["weights, gradients and Adam's two moments", mib(BYTES * weights)],
        [f"kept for the backward pass, {rows:,} sentences of {LENGTH} positions", mib(kept)],
        ["logits, as many as there are at a time", mib(logits)],
    ]
    return Section(
        "Memory in training",
        [
            f"For updates of {tokens:,} target tokens, in one batch. `transduce train --dry-run` "
            "measures the same for the sentences of a corpus, and how long training takes.",
        ],
        [Table(["what", "MiB"], table)],
    )


def mib(size: int | float) -> str:
    """Return bytes in MiB."""
    return f"{size / 2**20:,.1f}"


def departed(config: Config) -> Section:
    """Return where the settings are not the paper's."""
    found = departures(config)
    return Section("Departures from the paper", found or ["None."])


def settings_to_explain(path: Path, assignments: Sequence[str]) -> Settings:
    """Return the settings of a recipe, of a run or of a model folder, with changes laid over them.

    Raises:
        UsageError: if a change is wrong.
        TransduceError: if nothing of that kind is there.
    """
    for folder in (path, path / MODEL):
        if (folder / CONFIG).is_file():
            return merge(load_config(folder).model_dump(), from_assignments(assignments))
    return overlay(settings_of(path), assignments)
