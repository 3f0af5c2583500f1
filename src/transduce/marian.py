"""What Marian's Hugging Face folders say of weights and search, in our words.

Marian's sinusoids stand in halves (all sines, then all cosines), the paper's and ours alternate.
No switch of the model is needed for that: nothing in a Transformer but the positions knows one
channel of the residual stream from another, LayerNorm included. So the d_model channels of
everything that reads or writes the stream change their order, and the model is one of ours.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
from jaxtyping import Int
from torch import Tensor

from transduce.config import Settings
from transduce.data.marian import Side
from transduce.errors import TransduceError
from transduce.model import Transformer
from transduce.model.transformer import sinusoids

SUBLAYERS: Final = {
    "self_attention": "self_attn",
    "cross_attention": "encoder_attn",
    "self_attention_norm": "self_attn_layer_norm",
    "cross_attention_norm": "encoder_attn_layer_norm",
    "feed_forward_norm": "final_layer_norm",
}
MATRICES: Final = {
    "W_Q": "q_proj", "W_K": "k_proj", "W_V": "v_proj", "W_O": "out_proj",
    "W_1": "fc1", "W_2": "fc2",
}  # fmt: skip
"""Our names of the parts of a layer, and Marian's."""
EMBEDDINGS: Final = {
    "source_embedding.weight": "model.encoder.embed_tokens.weight",
    "target_embedding.weight": "model.decoder.embed_tokens.weight",
    "output.weight": "lm_head.weight",
}
SHARED: Final = "model.shared.weight"
"""Marian's name of a matrix that all three are."""
BIAS: Final = "final_logits_bias"
"""Marian's name of our output.bias; a row of its own there."""
POSITIONS: Final = ("model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight")
"""Marian's tables of sinusoids, which may stand in its files."""
NO_SHARE: Final = -100.0
"""Added to the logit of a class that must take no part of the softmax: e^-100 of its share.

Not −∞: label smoothing asks for the logarithm of every class.
"""


def their_name(name: str) -> str:
    """Return Marian's name of a parameter of ours that belongs to a layer.

    >>> their_name("decoder.layers.3.cross_attention.W_O.bias")
    'model.decoder.layers.3.encoder_attn.out_proj.bias'
    >>> their_name("encoder.layers.0.feed_forward.W_1.weight")
    'model.encoder.layers.0.fc1.weight'
    """
    stack, layers, number, sublayer, *rest = name.split(".")
    theirs = [MATRICES.get(part, part) for part in rest]
    if sublayer != "feed_forward":
        theirs.insert(0, SUBLAYERS[sublayer])
    return ".".join(["model", stack, layers, number, *theirs])


def channel_axis(name: str) -> int | None:
    """Return the axis of a parameter along which the channels of the residual stream lie.

    >>> [channel_axis(f"encoder.layers.0.self_attention.{n}") for n in ("W_Q.weight", "W_O.weight")]
    [1, 0]
    """
    part, kind = name.split(".")[-2:]
    if part in ("W_O", "W_2") or part.endswith("_norm"):
        return 0
    return 1 if kind == "weight" else None


def halves(d_model: int) -> Int[Tensor, " d_model"]:
    """Return for each of our channels the one it is in Marian: 0, d/2, 1, d/2 + 1, ..."""
    sines = (d_model + 1) // 2
    return torch.tensor([i // 2 + sines * (i % 2) for i in range(d_model)])


def interleaved(name: str, theirs: Tensor) -> Tensor:
    """Return a parameter of Marian's, in the order of our channels. `name` is ours."""
    axis = channel_axis(name)
    return theirs if axis is None else theirs.index_select(axis, halves(theirs.size(axis)))


def in_halves(name: str, ours: Tensor) -> Tensor:
    """Return a parameter of ours, in the order of Marian's channels: undoes `interleaved`."""
    axis = channel_axis(name)
    return ours if axis is None else ours.index_select(axis, halves(ours.size(axis)).argsort())


class UnfitError(TransduceError):
    """Weights that are not those of the model which is described."""


def with_all_names(theirs: Mapping[str, Tensor], tied: bool, shared: bool) -> dict[str, Tensor]:
    """Give each embedding, the output and its bias the tensor it has, where a file leaves some out.

    Tables of positions are taken out: they are computed here.

    Args:
        theirs: the tensors of a file.
        tied: whether the output is the target embedding's matrix, or that of all three.
        shared: whether the embeddings are one.

    Raises:
        UnfitError: if tensors differ that should be one, or positions are no sinusoids.
    """
    found = dict(theirs)
    for name in POSITIONS:
        if (table := found.pop(name, None)) is not None:
            check_sinusoids(name, table)
    source, target, output = EMBEDDINGS.values()
    groups = [[SHARED, source, target, output]]
    if not tied:
        groups = [[SHARED, source], [SHARED, target]]
    elif not shared:
        groups = [[source], [target, output]]
    for group in groups:
        there = [name for name in group if name in found]
        for name in there:
            if tied and not torch.equal(found[name], found[there[0]]):
                raise UnfitError(f"{name} and {there[0]} differ, but config.json says they are one")
        found |= {name: found[there[0]] for name in group if there and name not in found}
    if BIAS not in found and output in found:
        found[BIAS] = found[output].new_zeros(1, len(found[output]))
    return found


def check_sinusoids(name: str, table: Tensor) -> None:
    """Refuse a table of positions that holds anything else; half precision will do.

    Raises:
        UnfitError: if it does.
    """
    if table.dim() == 2:
        expected = in_halves("positions.weight", sinusoids(*table.shape))
        if torch.allclose(table.double(), expected, atol=5e-3, rtol=0):
            return
    raise UnfitError(f"{name} holds no sinusoids, which cannot be carried")


def ours(
    outline: Transformer, theirs: Mapping[str, Tensor], sides: tuple[Side, Side]
) -> dict[str, Tensor]:
    """Return weights with our names, channels and ids.

    Args:
        outline: the model, of which only names and shapes are looked at.
        theirs: what `with_all_names` returns.
        sides: the vocabularies.

    Raises:
        UnfitError: listing what is missing, superfluous or of another shape.
    """
    source, target = sides
    side_of = {"source_embedding": source, "target_embedding": target, "output": target}
    result: dict[str, Tensor] = {}
    problems: list[str] = []
    used = {*EMBEDDINGS.values(), BIAS, SHARED}
    for name, parameter in outline.named_parameters():
        side, shape, for_pieces = side_of.get(name.split(".")[0]), list(parameter.shape), ""
        if side is not None:
            shape[0], for_pieces = side.size, " for the vocabulary"
        if name == "output.bias":
            key, shape = BIAS, [1, *shape]
        else:
            key = EMBEDDINGS.get(name) or their_name(name)
        used.add(key)
        tensor = theirs.get(key)
        if tensor is None:
            problems.append(f"missing: {key}")
        elif list(tensor.shape) != shape:
            problems.append(f"{key} is {list(tensor.shape)}, expected {shape}{for_pieces}")
        else:
            tensor = tensor[0] if key == BIAS else tensor
            tensor = tensor if side is None else tensor[torch.tensor(side.rows)]
            result[name] = interleaved(name, tensor).to(torch.float32).contiguous()
    problems += [f"not known here: {key}" for key in sorted(theirs.keys() - used)]
    if problems:
        more = f" and {len(problems) - 5} more" if len(problems) > 5 else ""
        raise UnfitError(f"{'; '.join(problems[:5])}{more}")
    result["output.bias"][target.copies] += NO_SHARE
    return result


# Search -------------------------------------------------------------------------------------------


SEARCH = {
    "num_beams", "length_penalty", "max_length", "max_new_tokens", "bad_words_ids", "min_length",
    "no_repeat_ngram_size", "do_sample", "temperature", "top_k", "top_p", "early_stopping",
    "forced_eos_token_id", "renormalize_logits",
}  # fmt: skip
"""Keys of the search; older folders have them in config.json."""
NUMBERS = {
    "num_beams", "length_penalty", "max_length", "max_new_tokens", "min_length", "top_k", "top_p",
    "no_repeat_ngram_size", "temperature",
}  # fmt: skip
"""Those of them that are numbers."""
NO_SEARCH = {
    "_from_model_config", "bos_token_id", "decoder_start_token_id", "eos_token_id", "pad_token_id",
    "output_attentions", "output_hidden_states", "transformers_version", "use_cache",
}  # fmt: skip
"""Keys of generation_config.json that are none of the search."""
OTHER_SEARCH: Settings = {
    "num_beam_groups": 1, "diversity_penalty": 0.0, "repetition_penalty": 1.0, "typical_p": 1.0,
    "encoder_no_repeat_ngram_size": 0, "forced_bos_token_id": None, "num_return_sequences": 1,
    "exponential_decay_length_penalty": None, "suppress_tokens": None, "epsilon_cutoff": 0.0,
    "begin_suppress_tokens": None, "remove_invalid_values": False, "sequence_bias": None,
    "eta_cutoff": 0.0, "min_new_tokens": None, "penalty_alpha": None, "min_p": None,
    "force_words_ids": None, "guidance_scale": None, "constraints": None, "top_h": None,
    "output_scores": False, "return_dict_in_generate": False,
}  # fmt: skip
"""Keys of the search that we have nothing for, and the values that mean nothing."""
LONGEST = 50
"""How much longer than its source an output may be (`decoding.max_extra`)."""


def search_settings(
    generation: Mapping[str, Any], never: Sequence[int]
) -> tuple[Settings, list[str]]:
    """Return the settings of our search that are nearest, and what is not the same.

    Args:
        generation: what stands in generation_config.json, or in an older config.json.
        never: Marian's ids of what we never generate.

    Raises:
        TransduceError: if a setting is of a wrong type.
    """
    for key in sorted(generation.keys() & NUMBERS):
        number = generation[key]
        if isinstance(number, bool) or not isinstance(number, int | float | None):
            raise TransduceError(f"the search's {key} is no number: {number!r}")
    beams = generation.get("num_beams") or 1
    power = 1.0 if (said := generation.get("length_penalty")) is None else float(said)
    decoding: Settings = {"beam_size": beams, "max_extra": LONGEST}
    notes = []
    if power <= 0:
        decoding["penalty"] = "none"
        if power < 0:
            notes.append(f"length_penalty {power:g} is carried as decoding.penalty = none")
    elif power == 1:
        decoding["penalty"] = "average"
    else:
        decoding |= {"penalty": "gnmt", "alpha": power}
        notes.append(
            f"length_penalty {power:g}, a division by n^{power:g}, is carried as the nearest there "
            f"is: by ((5 + n) / 6)^{power:g} (decoding.penalty = gnmt)"
        )
    longest = generation.get("max_new_tokens") or (generation.get("max_length") or 20) - 1
    decoding["max_extra"] = max(0, min(LONGEST, longest))
    notes.append(
        f"outputs have at most {decoding['max_extra']} tokens more than their source "
        f"(decoding.max_extra); there they had at most {longest}"
    )
    for theirs, key in (("min_length", "min_length"), ("no_repeat_ngram_size", "no_repeat")):
        if value := generation.get(theirs):
            decoding[key] = value
    if generation.get("do_sample"):
        decoding |= {"method": "sample", "top_k": generation.get("top_k", 50) or 0}
        for key in ("temperature", "top_p"):
            decoding[key] = float(generation.get(key) or 1.0)
    bad = generation.get("bad_words_ids") or []
    if not isinstance(bad, list):
        raise TransduceError(f"the search's bad_words_ids are no list: {bad!r}")
    if others := [words for words in bad if words not in [[id_] for id_ in never]]:
        notes.append(f"not carried: bad_words_ids of {len(others)} words (--forbid takes letters)")
    if [id_ for id_ in never if [id_] not in bad]:
        notes.append("PAD, BEGIN and UNKNOWN are never generated, whatever was allowed there")
    for key in sorted(generation.keys() - SEARCH - NO_SEARCH):
        value = generation[key]
        if value and value != OTHER_SEARCH.get(key):
            notes.append(f"not carried: {key} = {value!r}")
    return decoding, notes
