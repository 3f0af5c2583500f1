"""A model as a folder that runs on onnxruntime alone: graphs, weights, tokenizers, a script.

    encoder.onnx    source ids -> what the decoder needs of them
    decoder.onnx    one step of decoding, with cached keys and values
    greedy.onnx     greedy search as a whole, a loop in the graph
    weights.bin     the numbers, once for all three
    transduce.json  ids, limits, settings of the search, tokenizers
    translate.py    lines in, lines out, with text.py; imports neither torch nor this package

and the tokenizers' files and a README.md. The graphs are written node by node (onnx_model.py).
"""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from transduce.config import BOS, EOS, PAD, UNK, Config, ModelConfig
from transduce.data.tokenizer import Tokenizer
from transduce.errors import TransduceError, UsageError
from transduce.exporting import not_carried
from transduce.exporting.standalone import check_search, write_scripts
from transduce.model import Transformer
from transduce.model_folder import new_folder, write_file

ENCODER, DECODER, GREEDY = "encoder.onnx", "decoder.onnx", "greedy.onnx"
NUMBERS, README = "weights.bin", "README.md"

CARRIED: dict[str, tuple[str, ...] | None] = {
    "source_vocabulary": None,
    "target_vocabulary": None,
    "joint_vocabulary": None,
    "N": None,
    "N_encoder": None,
    "N_decoder": None,
    "d_model": None,
    "d_ff": None,
    "h": None,
    "d_k": None,
    "d_v": None,
    "P_drop": None,  # dropout means nothing once a model is trained
    "attention_dropout": None,
    "activation_dropout": None,
    "norm_place": ("post", "pre"),
    "norm_epsilon": None,
    "activation": ("relu", "swish", "gelu"),
    "attention_biases": None,
    "output_bias": None,
    "positions": ("sinusoidal", "learned"),
    "max_positions": None,
    "tie_embeddings": None,
    "scale_embeddings": None,
    "window": None,  # like the next three, of layer types that are not carried
    "kernel": None,
    "dilated": None,
    "cell": None,
}
"""The settings of a model that the graphs obey: with these values, or with any."""
NOT_CARRIED = frozenset(
    {"norm_kind", "encoder_layer_type", "decoder_layer_type", "attention_normaliser"}
)
"""Those that they know nothing of: only their defaults can be exported."""


def refused(config: ModelConfig) -> list[str]:
    """Return the names of the settings with which a model cannot be exported."""
    unlike = [
        name
        for name, values in CARRIED.items()
        if values is not None and getattr(config, name) not in values
    ]
    return [*(name for name, _ in not_carried(config, CARRIED)), *unlike]


def export(
    config: Config, model: Transformer, tokenizers: tuple[Tokenizer, Tokenizer], out: Path
) -> None:
    """Write the folder `out`; it appears complete or not at all.

    The graphs compute in float32, whatever `decoding.precision` is.

    Raises:
        UsageError: if `out` is there and not empty, or a setting of the model or of [decoding] is
            not carried.
        TransduceError: if the package onnx is missing, the model has parameters that are not
            carried, or the folder cannot be written.
    """
    _check(config, model.config)
    if find_spec("onnx") is None:
        raise TransduceError(
            "exporting to ONNX needs the package onnx: pip install 'transduce[onnx]'"
        )
    with new_folder(out) as folder:
        _write(folder, config, model, tokenizers)


def _check(config: Config, model: ModelConfig) -> None:
    for name in refused(model):
        raise UsageError(f"model.{name} = {getattr(model, name)!r} cannot be exported to ONNX")
    check_search(config.decoding)


def _write(
    folder: Path, config: Config, model: Transformer, tokenizers: tuple[Tokenizer, Tokenizer]
) -> None:
    from transduce.exporting import onnx_graphs as graphs
    from transduce.exporting.onnx_nodes import Weights

    weights = Weights(model, NUMBERS)
    weights.write(folder)
    for name, graph in (
        (ENCODER, graphs.encoder_graph),
        (DECODER, graphs.decoder_graph),
        (GREEDY, graphs.greedy_graph),
    ):
        write_file(folder / name, graph(weights).SerializeToString())
    if unused := weights.tensors.keys() - weights.used:
        raise TransduceError(
            f"the model has parameters that the ONNX graphs know nothing of: {sorted(unused)}"
        )
    settings = write_scripts(folder, "onnx", "float32", config, model.config, tokenizers)
    write_file(folder / README, readme(settings).encode())


def readme(settings: dict[str, Any]) -> str:
    """Return what a person who finds the folder should know."""
    search, model = settings["decoding"], settings["model"]
    most = search["max_output"]
    limit = "" if most is None else f", and at most {most}: the model has no more positions"
    form = settings["source"]["normalization"]
    return f"""\
# An encoder-decoder Transformer in ONNX

{model["N_encoder"]} encoder and {model["N_decoder"]} decoder layers, d_model {model["d_model"]},
float32, opset 17; exported by transduce.

    python translate.py < lines.txt > translations.txt

needs `onnxruntime`, `numpy` and, where there are .spm files, `sentencepiece`. It searches with a
beam of {search["beam_size"]}; `--beam-size 1` is greedy search. Its classes `Translator`,
`Tokenizer` and `Model` can be imported.

## Ids

- Source: the ids of the text's pieces, at most {search["max_source"]}, and END ({EOS}). In a
  batch, shorter ones are filled up with PAD ({PAD}).
- Output: what comes after BEGIN ({BOS}), up to END. It has at most as many tokens as the source,
  END included, and {search["max_extra"]} more{limit}.
- PAD, UNKNOWN ({UNK}) and BEGIN are never generated.
- Text: control characters are removed, then it is brought into the Unicode form {form}. A space
  is put before it if there is a .spm file, symbols are cut out as `transduce.json` lists them, and
  sentencepiece cuts the rest. Without a .spm file each byte of UTF-8 is an id: its value and
  {EOS + 1} more.

## Graphs

All of them read `weights.bin`, which must lie beside them.

`greedy.onnx` searches by itself, for callers in any language.

| | name | type | shape | |
|---|---|---|---|---|
| in | `src` | int64 | [B, S] | sources |
| in | `limits` | int64 | [B] | the most tokens of each output |
| out | `tokens` | int64 | [B, T] | END included, PAD after it |
| out | `log_probability` | float32 | [B] | of the output: the sum over its tokens |

`encoder.onnx` and `decoder.onnx` are for a search of one's own.

| | name | type | shape | |
|---|---|---|---|---|
| encoder in | `src` | int64 | [B, S] | sources |
| encoder out, decoder in | `src_mask` | bool | [B, 1, 1, S] | true: no padding |
| | `memory_K.0`, `memory_V.0`, ... | float32 | [B, h, S, d] | keys and values of the source |
| | `K.0`, `V.0`, ... | float32 | [rows, h, past, d] | of the tokens so far: at first none |
| decoder in | `tokens` | int64 | [B, beam] | last tokens: at first BEGIN, with a beam of 1 |
| | `origin` | int64 | [B, beam] | the row each had one step before: at first 0, 1, 2, ... |
| | `k` | int64 | [1] | how many best tokens are asked for |
| decoder out | `log_probs` | float32 | [B, beam, vocabulary] | of all next tokens |
| | `best_log_probs` | float32 | [B, beam, k] | of the best that may be generated |
| | `best_tokens` | int64 | [B, beam, k] | these |
| | `attention` | float32 | [B, beam, S] | to the source: last layer, mean of its heads |
| | `next_K.0`, `next_V.0`, ... | float32 | | the next step's `K.0`, `V.0`, ... |

Rows are numbered sentence by sentence: sentence · beam + hypothesis. The decoder reorders the
beams by `origin`. Where sentences leave the batch, the caller drops their rows of `src_mask`,
`memory_K` and `memory_V`; no other of these tensors need ever be touched.
"""
