"""A model as CTranslate2 reads it: each function fills one of its specifications from a module.

What CTranslate2 cannot say is refused by name, never left out. It is carried like this:

- d_k and d_v: CTranslate2 knows one width per head. The narrower is filled up with zeros, which
  adds nothing to Q Kᵀ and nothing to the output; the scale 1 / √d_k is written down beside it.
- positions: a table, interleaved like ours, with as many rows as the settings of the search allow.
- biases: attention without them has none there either.
"""

import ctypes
import json
import math
import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor, nn

from transduce.config import Config, ModelConfig
from transduce.data.tokenizer import RESERVED, Tokenizer
from transduce.errors import TransduceError
from transduce.exporting import not_carried
from transduce.exporting.standalone import check_search, write_scripts
from transduce.model import DecoderLayer, Transformer
from transduce.model.layer_types import Mixer
from transduce.model.transformer import (
    EncoderLayer,
    FeedForward,
    LayerNorm,
    LearnedPositions,
    MultiHeadAttention,
    NoPositions,
    SelfAttention,
    sinusoids,
)
from transduce.model_folder import write_file

CARRIED = frozenset(
    {
        "source_vocabulary", "target_vocabulary", "joint_vocabulary", "N", "N_encoder",
        "N_decoder", "d_model", "d_ff", "h", "d_k", "d_v", "P_drop", "attention_dropout",
        "activation_dropout", "norm_place", "norm_epsilon", "activation", "attention_biases",
        "output_bias", "positions", "max_positions", "tie_embeddings", "scale_embeddings",
        "window", "kernel", "dilated", "cell",  # of layer types that are not carried
    }
)  # fmt: skip
"""The keys of [model] whose every value has its place in CTranslate2's format."""
ACTIVATIONS = {"relu": "RELU", "swish": "SWISH", "gelu": "GELU"}
QUANTIZATIONS = ("float32", "int8", "int8_float32")
SPINS = "1000"
"""Looks of a waiting thread before it falls asleep."""
SHORTLIST = "vmap.txt"
"""The file of a shortlist, in CTranslate2's folder."""


def refused(config: ModelConfig) -> list[str]:
    """Return the keys of [model] whose values CTranslate2 cannot compute, with those values."""
    return [f"model.{name} = {value}" for name, value in not_carried(config, CARRIED)]


def positions_needed(config: Config) -> int:
    """Return how many positions the search of a configuration can come to, END included."""
    return config.model.position_limit or config.decoding.longest_output


def library() -> Any:
    """Return the package ctranslate2.

    Raises:
        TransduceError: if it is not installed.
    """
    if "ctranslate2" not in sys.modules:
        load_apart()
    try:
        import ctranslate2
    except ImportError:
        raise TransduceError(
            "the package ctranslate2 is not installed: pip install ctranslate2"
        ) from None
    return ctranslate2


def load_apart() -> None:
    """Load CTranslate2's code so that it calls its own OpenMP, where it brings one (Linux).

    torch, loaded before it, offers its OpenMP to all: their threads would be counted together, and
    threads that are more than the processors fall asleep at once when they wait. For the short
    steps of a translation that is several times slower. To wait awake for long is no better where
    the processors have other work: SPINS is measured (docs/results.md). Where another allocator
    stands in for the C library's, nothing is done: memory must be freed by whoever gave it.
    """
    package = find_spec("ctranslate2")
    if package is None or not hasattr(os, "RTLD_DEEPBIND"):
        return
    at = [ctypes.cast(ctypes.CDLL(it).malloc, ctypes.c_void_p) for it in (None, "libc.so.6")]
    if at[0].value != at[1].value:
        return
    said = {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"} & set(os.environ)  # read when OpenMP is loaded
    if not said:
        os.environ["GOMP_SPINCOUNT"] = SPINS
    try:
        for folder in package.submodule_search_locations or ():
            for code in Path(folder).glob("_ext.*.so"):
                ctypes.CDLL(str(code), mode=os.RTLD_LOCAL | os.RTLD_DEEPBIND)
    finally:
        if not said:
            del os.environ["GOMP_SPINCOUNT"]


def export(
    config: Config,
    model: Transformer,
    tokenizers: tuple[Tokenizer, Tokenizer],
    out: Path,
    quantization: str = "float32",
) -> None:
    """Write a folder that CTranslate2 loads, and that translates text without this package.

    Args:
        config: of the model.
        model: ours.
        tokenizers: the source's and the target's.
        out: an empty folder.
        quantization: the type that matrices are stored in, and computed in.

    Raises:
        UsageError: if a setting of [decoding] is not carried.
        TransduceError: naming what else is not, or if ctranslate2 is not installed.
    """
    check_search(config.decoding)
    convert(model, tokenizers, positions_needed(config), out, quantization)
    settings = write_scripts(out, "ctranslate2", quantization, config, model.config, tokenizers)
    write_file(out / "README.md", readme(settings).encode())


def readme(settings: dict[str, Any]) -> str:
    """Return what a person who finds the folder should know."""
    search, model = settings["decoding"], settings["model"]
    return f"""\
# An encoder-decoder Transformer for CTranslate2

{model["N_encoder"]} encoder and {model["N_decoder"]} decoder layers, d_model {model["d_model"]},
{settings["precision"]}; exported by transduce. `parity.json` says how it compares with the model it
was made from.

    python translate.py < lines.txt > translations.txt

needs `ctranslate2` and, where there are .spm files, `sentencepiece`; `--beam-size 1` is greedy
search. From Python, in this folder:

    from pathlib import Path
    from translate import Translator

    translator = Translator(Path("."))
    print(translator.translate(["one line", "and another"]))

or with CTranslate2 alone, on pieces (`text.py` makes them of text):

    import ctranslate2

    model = ctranslate2.Translator(".", compute_type="{settings["precision"]}")
    model.translate_batch([pieces], beam_size={search["beam_size"]}, max_input_length=0,
                          max_decoding_length=len(pieces) + 1 + {search["max_extra"]})

END is put behind the source by CTranslate2. Its own defaults are not those of the model: its beam
is 2, its length penalty a power of the length, it cuts sources at 1,024 pieces, outputs at 256.
`translate.py` uses what stands in `transduce.json`: a beam of {search["beam_size"]}, the penalty
"{search["penalty"]}" with alpha {search["alpha"]}, outputs of at most the source's length (END
included) + {search["max_extra"]} tokens, sources of at most {search["max_source"]} pieces.
"""


def convert(
    model: Transformer,
    tokenizers: tuple[Tokenizer, Tokenizer],
    positions: int,
    out: Path,
    quantization: str = "float32",
) -> None:
    """Write a model into a folder that CTranslate2 loads.

    Args:
        model: ours, on any device.
        tokenizers: the source's and the target's.
        positions: rows of the tables of sinusoids.
        out: an empty folder.
        quantization: the type that matrices are stored in.

    Raises:
        TransduceError: naming what cannot be carried, or if ctranslate2 is not installed.
    """
    if reasons := refused(model.config):
        raise TransduceError(f"CTranslate2 has no {' and no '.join(reasons)}")
    spec = specification(model, positions)
    for register, tokenizer in zip(
        (spec.register_source_vocabulary, spec.register_target_vocabulary), tokenizers, strict=True
    ):
        register(tokenizer.pieces(range(len(tokenizer))))
    spec.validate()
    spec.optimize(quantization=None if quantization == "float32" else quantization)
    spec.save(str(out))
    _, unk, bos, eos = RESERVED
    said = json.loads((out / "config.json").read_text(encoding="utf-8"))
    assert (said["unk_token"], said["decoder_start_token"], said["eos_token"]) == (unk, bos, eos)


def specification(model: Transformer, positions: int) -> Any:
    """Return CTranslate2's `TransformerSpec` of a model."""
    ctranslate2 = library()
    config = model.config
    common = {
        "num_heads": config.h,
        "head_dim": width(config),
        "pre_norm": config.norm_place == "pre",
        "activation": getattr(ctranslate2.specs.Activation, ACTIVATIONS[config.activation]),
    }
    spec = ctranslate2.specs.TransformerSpec(
        ctranslate2.specs.TransformerEncoderSpec(config.N_encoder, **common),
        ctranslate2.specs.TransformerDecoderSpec(config.N_decoder, **common),
    )
    _, unk, bos, eos = RESERVED
    spec.config.unk_token, spec.config.bos_token, spec.config.eos_token = unk, bos, eos
    spec.config.decoder_start_token = bos
    spec.config.add_source_eos = True
    spec.config.layer_norm_epsilon = config.norm_epsilon
    for side, embedding, place in (
        (spec.encoder, model.source_embedding, model.source_positions),
        (spec.decoder, model.target_embedding, model.target_positions),
    ):
        table = side.embeddings[0] if isinstance(side.embeddings, list) else side.embeddings
        table.weight = numbers(embedding.weight)
        side.scale_embeddings = config.scale_embeddings
        rows = sinusoids(positions, config.d_model)
        if isinstance(place, LearnedPositions):
            rows = place.weight
        elif isinstance(place, NoPositions):
            rows = rows.zero_()
        side.position_encodings.encodings = numbers(rows)
    for layer, theirs in zip(model.encoder.layers, spec.encoder.layer, strict=True):
        encoder_layer(theirs, layer, config)
    for layer, theirs in zip(model.decoder.layers, spec.decoder.layer, strict=True):
        decoder_layer(theirs, layer, config)
    for theirs, norm in (
        (spec.encoder, model.encoder.norm),
        (spec.decoder, model.decoder.norm),
    ):
        if norm is not None:
            layer_norm(theirs.layer_norm, norm)
    linear(spec.decoder.projection, model.output)
    return spec


def encoder_layer(spec: Any, layer: nn.Module, config: ModelConfig) -> None:
    """Fill in an encoder layer."""
    assert isinstance(layer, EncoderLayer)
    self_attention(spec.self_attention, layer.self_attention, config)
    layer_norm(spec.self_attention.layer_norm, layer.self_attention_norm)
    feed_forward(spec.ffn, layer.feed_forward)
    layer_norm(spec.ffn.layer_norm, layer.feed_forward_norm)


def decoder_layer(spec: Any, layer: nn.Module, config: ModelConfig) -> None:
    """Fill in a decoder layer."""
    assert isinstance(layer, DecoderLayer)
    self_attention(spec.self_attention, layer.self_attention, config)
    layer_norm(spec.self_attention.layer_norm, layer.self_attention_norm)
    cross_attention(spec.attention, layer.cross_attention, config)
    layer_norm(spec.attention.layer_norm, layer.cross_attention_norm)
    feed_forward(spec.ffn, layer.feed_forward)
    layer_norm(spec.ffn.layer_norm, layer.feed_forward_norm)


def self_attention(spec: Any, mixer: Mixer, config: ModelConfig) -> None:
    """Fill in attention whose three projections are one product there."""
    assert isinstance(mixer, SelfAttention)
    joined(spec.linear[0], [mixer.W_Q, mixer.W_K, mixer.W_V], config)
    heads_joined(spec.linear[1], mixer, config)
    scale(spec, config)


def cross_attention(spec: Any, mixer: MultiHeadAttention, config: ModelConfig) -> None:
    """Fill in attention to the memory, whose keys and values are one product there."""
    joined(spec.linear[0], [mixer.W_Q], config)
    joined(spec.linear[1], [mixer.W_K, mixer.W_V], config)
    heads_joined(spec.linear[2], mixer, config)
    scale(spec, config)


def scale(spec: Any, config: ModelConfig) -> None:
    """Write down 1 / √d_k, which CTranslate2 would take from the width it sees."""
    spec.queries_scale = np.float32(1 / math.sqrt(config.d_k))


def width(config: ModelConfig) -> int:
    """Return the width of a head there."""
    return max(config.d_k, config.d_v)


def joined(spec: Any, layers: list[nn.Linear], config: ModelConfig) -> None:
    """Fill in several projections as one, each head filled up to the common width."""

    def wide(rows: Tensor) -> npt.NDArray[np.float32]:
        heads = numbers(rows.unflatten(0, (config.h, -1)))
        more = [(0, 0), (0, width(config) - heads.shape[1])] + [(0, 0)] * (heads.ndim - 2)
        return np.pad(heads, more).reshape(-1, *heads.shape[2:])

    spec.weight = np.concatenate([wide(layer.weight) for layer in layers])
    if config.attention_biases:
        spec.bias = np.concatenate([wide(layer.bias) for layer in layers])


def heads_joined(spec: Any, mixer: MultiHeadAttention, config: ModelConfig) -> None:
    """Fill in W_O, with columns of zeros for what the heads were filled up with."""
    heads = numbers(mixer.W_O.weight.unflatten(1, (config.h, -1)))  # d_model h d_v
    more = [(0, 0), (0, 0), (0, width(config) - config.d_v)]
    spec.weight = np.pad(heads, more).reshape(len(heads), -1)
    if config.attention_biases:
        spec.bias = numbers(mixer.W_O.bias)


def feed_forward(spec: Any, network: FeedForward) -> None:
    """Fill in a feed-forward network."""
    linear(spec.linear_0, network.W_1)
    linear(spec.linear_1, network.W_2)


def linear(spec: Any, layer: nn.Linear) -> None:
    """Fill in a matrix and, if there is one, its bias."""
    spec.weight = numbers(layer.weight)
    if layer.bias is not None:
        spec.bias = numbers(layer.bias)


def layer_norm(spec: Any, norm: nn.Module) -> None:
    """Fill in gain and bias."""
    assert isinstance(norm, LayerNorm)
    spec.gamma, spec.beta = numbers(norm.weight), numbers(norm.bias)


def numbers(tensor: Tensor) -> npt.NDArray[np.float32]:
    """Return a tensor's numbers, in float32."""
    array: npt.NDArray[np.float32] = tensor.detach().cpu().float().contiguous().numpy()
    return array
