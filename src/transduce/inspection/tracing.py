"""A trace: all that is to be seen of one sentence on its way through a model, as one JSON object.

`trace.schema.json` says what it holds. Pages, terminal and tests read it; none of them has a number
from anywhere else.
"""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from transduce import __version__
from transduce.config import BOS, EOS, PAD, UNK
from transduce.data.batches import collate
from transduce.data.text import is_blank
from transduce.data.tokenizer import Tokenizer
from transduce.decoding.engines import StepByStep, TorchEngine
from transduce.decoding.outputs import Translation
from transduce.decoding.recording import Record, Recorder
from transduce.decoding.search import Moment, Penalty, Step
from transduce.decoding.translator import Translator
from transduce.errors import UsageError
from transduce.inspection.attention import (
    KINDS,
    Kind,
    attention_weights,
    attentive_layers,
    module_name,
    recording,
)
from transduce.inspection.badges import badges
from transduce.inspection.stations import Stations, stations
from transduce.inspection.words import pieces, words
from transduce.model import MultiHeadAttention, Transformer
from transduce.model.transformer import scores

FORMAT, VERSION = "transduce trace", 1
SPECIAL = {PAD: "PAD", UNK: "UNKNOWN", BOS: "BEGIN", EOS: "END"}


@dataclass(frozen=True)
class Choice:
    """What is followed step by step; None leaves the choice to the trace."""

    encoder_layer: int | None = None
    """From 0; the first one, unless said otherwise."""
    decoder_layer: int | None = None
    """The last but one."""
    head: int = 0


def trace(
    translator: Translator, line: str, target: str | None = None, choice: Choice = Choice()
) -> dict[str, Any]:
    """Return the trace of a sentence; its arrays are tensors (see `as_json`).

    Args:
        translator: of one model, run by the torch engine.
        line: the source.
        target: is forced; otherwise the output is searched for, and the search recorded.
        choice: of layers and head.

    Raises:
        UsageError: if there is nothing to see, or no such layer or head.
    """
    engine = translator.engine
    if not isinstance(engine, TorchEngine):
        raise UsageError("only a single model run by the torch engine can be inspected")
    ids = translator.source.encode(line) if not is_blank(line) else []
    if not ids:
        raise UsageError("there is nothing to inspect in a blank text")
    flags = ["cut"] if len(ids) > translator.max_source else []
    ids = ids[: translator.max_source]
    decodings: list[dict[str, Any]] = []
    tokens: list[int] = []
    if target is None:
        beams = sorted({translator.decoding.beam_size, 1}, reverse=True)
        for beam in beams if translator.decoding.method == "beam" else beams[:1]:
            decoding, found = _searched(translator, engine, line, beam)
            decodings.append(decoding)
            tokens = tokens or found
    else:
        tokens = [*translator.target.encode(target), EOS]
        if translator.max_positions is not None and len(tokens) > translator.max_positions:
            raise UsageError(
                f"the target has {len(tokens)} tokens, but the model has learned "
                f"{translator.max_positions} positions (model.max_positions)"
            )
    wanted = tokens if tokens[-1] == EOS else [*tokens, EOS]
    log_probs = engine.score([(ids, wanted[:-1])])[0][: len(tokens)]
    model = engine.model
    layers = _chosen(model, choice)
    weights = attention_weights(model, [(ids, wanted[:-1])])[0]
    weights["cross"] = weights["cross"][:, :, : len(tokens)]
    weights["decoder_self"] = weights["decoder_self"][:, :, : len(tokens), : len(tokens)]
    source: dict[str, Any] = {"text": line, "flags": flags}
    source |= _side(translator.source, [*ids, EOS], None if flags else line)
    aim: dict[str, Any] = {"text": translator.target.decode(tokens)}
    aim |= _side(translator.target, tokens, target)
    inputs = [named(translator.target, id) for id in [BOS, *tokens[:-1]]]
    aim |= {"given": target is not None, "inputs": inputs, "log_probabilities": log_probs}
    return {
        "format": FORMAT,
        "version": VERSION,
        "transduce": __version__,
        "rows": "tokens",
        "model": described(model),
        "source": source,
        "target": aim,
        "attention": {
            kind: {"layers": attentive_layers(model, kind), "weights": weights[kind]}
            for kind in KINDS
        },
        "badges": {kind: badges(kind, weights[kind], source, aim) for kind in KINDS},
        "stations": {
            kind: None if layer is None else _stations(model, ids, tokens, kind, layer, choice.head)
            for kind, layer in layers.items()
        },
        "cannot_show": _missing(model),
        "decodings": decodings,
    }


def described(model: Transformer) -> dict[str, Any]:
    """Return what of a model's configuration a reader of the trace must know."""
    config = model.config
    names = (
        "N_encoder", "N_decoder", "d_model", "d_ff", "h", "d_k", "d_v", "norm_place", "norm_kind",
        "norm_epsilon", "positions", "attention_normaliser", "activation", "encoder_layer_type",
        "decoder_layer_type", "tie_embeddings", "scale_embeddings",
    )  # fmt: skip
    return {name: getattr(config, name) for name in names}


def named(tokenizer: Tokenizer, id: int) -> dict[str, Any]:
    """Return a token with its text; a reserved one by its name, never to be taken for text."""
    special = SPECIAL.get(id)
    text = special or tokenizer.pieces([id])[0]
    return {"id": id, "text": text, "special": special is not None}


def _side(tokenizer: Tokenizer, ids: Sequence[int], text: str | None) -> dict[str, Any]:
    """Return the tokens of one side, END included, and which of them make words or pieces."""
    own = [id for id in ids if id != EOS]
    units = {"words": words(tokenizer, own, text), "pieces": pieces(tokenizer, own)}
    return {"tokens": [named(tokenizer, id) for id in ids]} | {
        name: [{"text": unit.text, "pieces": list(unit.pieces)} for unit in found]
        for name, found in units.items()
    }


def _chosen(model: Transformer, choice: Choice) -> dict[Kind, int | None]:
    """Return the layer of each kind that is followed; None where there is none.

    Raises:
        UsageError: if there is no such layer or head.
    """
    if not 0 <= choice.head < model.config.h:
        raise UsageError(f"head {choice.head + 1}: the model has {model.config.h}, from 1 on")
    found: dict[Kind, int | None] = {}
    for kind in KINDS:
        side = "encoder" if kind == "encoder_self" else "decoder"
        there = attentive_layers(model, kind)
        asked = choice.encoder_layer if side == "encoder" else choice.decoder_layer
        count = model.config.N_encoder if side == "encoder" else model.config.N_decoder
        if asked is not None and not 0 <= asked < count:
            raise UsageError(f"layer {asked + 1}: the {side} has {count}, from 1 on")
        usual = 0 if side == "encoder" else max(0, count - 2)
        layer = usual if asked is None else asked
        found[kind] = layer if layer in there else None
    return found


def _missing(model: Transformer) -> list[str]:
    """Say in words what the layers of a model do not have."""
    config = model.config
    return [
        f"the {side}'s self-attention: its layers are {kind}"
        for side, kind in (
            ("encoder", config.encoder_layer_type),
            ("decoder", config.decoder_layer_type),
        )
        if kind in ("recurrent", "convolutional")
    ]


def _stations(
    model: Transformer, ids: list[int], tokens: list[int], kind: Kind, layer: int, head: int
) -> Stations:
    batch = collate([(ids, tokens[:-1])]).to(model.source_embedding.weight.device)
    return stations(model, batch.src, batch.tgt_in, kind, layer, head)


# Decoding ---------------------------------------------------------------------------------------


class _Watched(StepByStep):
    """An engine whose searches are watched."""

    def __init__(self, engine: TorchEngine, watch: Callable[[Moment], None]) -> None:
        self.engine, self.watch = engine, watch

    def start(self, sources: Sequence[Sequence[int]], coverage: bool = False) -> Step:
        return self.engine.start(sources, coverage)


def recorded(
    translator: Translator, line: str, beam_size: int
) -> tuple[Translation, Record, list[Float[Tensor, "beam S"]]]:
    """Translate a line as usual, and record the search.

    Returns:
        The translation, the record and, for each step, the cross-attention of the hypotheses that
        were live (mean over the heads of the last but one layer).
    """
    engine, decoding = translator.engine, translator.decoding
    assert isinstance(engine, TorchEngine)
    limit = translator.limit(len(translator.source.encode(line)[: translator.max_source]))
    penalty = Penalty(decoding.penalty, decoding.alpha, decoding.beta)
    recorder = Recorder(penalty, limit, beam_size, decoding.method)
    name = module_name("cross", max(0, engine.model.config.N_decoder - 2))
    attended: list[Tensor] = []
    # Queries and keys are listened to, not weights: so the search computes what it always does.
    heard = (f"{name}.W_Q", f"{name}.W_K")
    with recording(engine.model, lambda module, _: module in heard) as passed:

        def watch(moment: Moment) -> None:
            recorder(moment)
            module = engine.model.get_submodule(name)
            assert isinstance(module, MultiHeadAttention)
            Q, K = (module.split(passed[one].output) for one in heard)
            attended.append(module.normalise(scores(Q, K), None)[0].mean(dim=0).cpu())

        watched = Translator(
            _Watched(engine, watch),
            (translator.source, translator.target),
            decoding,
            translator.max_positions,
        )
        translation = watched.translate([line], beam_size=beam_size)[0]
    return translation, recorder.record, attended


def _searched(
    translator: Translator, engine: TorchEngine, line: str, beam: int
) -> tuple[dict[str, Any], list[int]]:
    """Return the record of a search with names for tokens, and its best output."""
    translation, record, attended = recorded(translator, line, beam)

    def token(id: int) -> dict[str, Any]:
        return named(translator.target, id)

    steps = []
    for step, weights in zip(record.steps, attended, strict=True):
        live = [
            {
                "id": hopes.id,
                "tokens": [token(id) for id in hopes.tokens],
                "log_probabilities": hopes.log_probabilities,
                "attention": weights[i],
            }
            for i, hopes in enumerate(step.live)
        ]
        candidates = [vars(one) | {"token": token(one.token)} for one in step.candidates]
        steps.append({"live": live, "candidates": candidates})
    outputs = [
        {
            "id": id,
            "text": output.text,
            "n": len(output.tokens),
            "log_probability": output.log_probability,
            "divisor": record.penalty(len(output.tokens)),
            "score": output.score,
            "finished": output.finished,
        }
        for id, output in zip(record.output_ids, translation.hypotheses, strict=True)
    ]
    decoding = {
        "method": record.method,
        "beam_size": record.beam_size,
        "penalty": vars(record.penalty),
        "limit": record.limit,
        "attention_layer": max(0, engine.model.config.N_decoder - 2),
        "steps": steps,
        "end": record.end and vars(record.end),
        "outputs": outputs,
    }
    return decoding, list(record.outputs[0].tokens)


# JSON -------------------------------------------------------------------------------------------


def as_json(value: Any, array: Callable[[Tensor], Any] | None = None) -> Any:
    """Return a trace with its arrays as JSON has them.

    Args:
        value: a trace, or a part of it.
        array: makes something of a tensor; nested lists unless given.
    """
    array = array or nested
    if isinstance(value, Tensor):
        return array(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return {field.name: as_json(getattr(value, field.name), array) for field in fields}
    if isinstance(value, dict):
        return {key: as_json(item, array) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(item, array) for item in value]
    return value


def nested(x: Tensor) -> Any:
    """Return a tensor as nested lists, with as many digits as tell float32 numbers apart."""
    if not x.is_floating_point():
        return x.tolist()
    texts = x.detach().to(torch.float32).numpy().astype(np.str_)
    return texts.astype(np.float64).tolist()
