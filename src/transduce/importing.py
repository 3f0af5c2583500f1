"""A Marian or OPUS-MT model in Hugging Face format becomes a model folder of ours.

Everything is carried, or refused by its name. Nothing that is read can execute: JSON, safetensors,
sentencepiece files; weights in a pickle are read by torch's own reader of tensors alone. The model
library that wrote the folder is not needed.
"""

import json
import pickle
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from transduce import marian
from transduce.config import Config, Settings, departures, parse
from transduce.data.marian import END, PADDING, UNKNOWN, Side, Vocabulary, sides
from transduce.decoding.search import NEVER
from transduce.errors import TransduceError, UsageError
from transduce.model_folder import (
    CARD,
    CONFIG,
    WEIGHTS,
    check_fetched,
    check_numbers,
    load_model,
    new_folder,
    outlined,
    read_tensors,
    write_file,
    write_tensors,
)

Say = Callable[[str], None]
Table = Mapping[str, Any]

ACTIVATIONS = {"swish": "swish", "silu": "swish", "relu": "relu", "gelu": "gelu"}
DEFAULTS: Settings = {
    "vocab_size": 58101,
    "encoder_layers": 12,
    "decoder_layers": 12,
    "encoder_ffn_dim": 4096,
    "decoder_ffn_dim": 4096,
    "encoder_attention_heads": 16,
    "decoder_attention_heads": 16,
    "d_model": 1024,
    "dropout": 0.1,
    "attention_dropout": 0.0,
    "activation_dropout": 0.0,
    "activation_function": "gelu",
    "scale_embedding": False,
    "share_encoder_decoder_embeddings": True,
    "tie_word_embeddings": True,
    "pad_token_id": 58100,
    "eos_token_id": 0,
    "decoder_start_token_id": 58100,
    "decoder_vocab_size": None,
}
"""What config.json carries of the architecture, with the format's own defaults."""
FIXED: Settings = {
    "model_type": "marian",
    "is_encoder_decoder": True,
    "is_decoder": False,
    "normalize_before": False,
    "normalize_embedding": False,
    "add_final_layer_norm": False,
    "static_position_embeddings": True,
}
"""Keys of config.json that have one value that can be carried."""
NO_MATTER = {
    "add_bias_logits", "architectures", "bos_token_id", "classif_dropout", "classifier_dropout",
    "decoder_layerdrop", "dtype", "encoder_layerdrop", "extra_pos_embeddings", "finetuning_task",
    "gradient_checkpointing", "id2label", "init_std", "label2id", "max_position_embeddings",
    "num_hidden_layers", "num_labels", "output_attentions", "output_hidden_states", "prefix",
    "problem_type", "return_dict", "task_specific_params", "tokenizer_class", "torch_dtype",
    "torchscript", "transformers_version", "unk_token_id", "use_cache", "chunk_size_feed_forward",
}  # fmt: skip
"""Keys of config.json on which no output depends (layers are only dropped in training; sinusoids
know no last position; the logits' bias is there whether or not it is announced)."""


def import_marian(folder: Path, out: Path, say: Say) -> None:
    """Write a model folder with what a Marian folder holds.

    Raises:
        UsageError: if there is something at `out` already.
        TransduceError: naming the file and what is missing, damaged or cannot be carried.
    """
    with new_folder(out) as new:
        if not folder.is_dir():
            problem = "is not a folder" if folder.exists() else "does not exist"
            raise TransduceError(f"{folder} {problem}")
        described = DEFAULTS | _read_json(folder / "config.json")
        check_architecture(described, folder / "config.json")
        generation = {
            k: v for k, v in described.items() if k in marian.SEARCH | marian.OTHER_SEARCH.keys()
        }
        if (path := folder / "generation_config.json").exists():
            generation |= _read_json(path)
        pair = read_vocabularies(folder, described, generation)
        never = [pair[1].rows[id_] for id_ in NEVER]
        decoding, notes = marian.search_settings(generation, never)
        try:
            config = parse(settings(described, pair, decoding), str(folder))
        except UsageError as error:  # not the user's, who asked for nothing but this folder
            raise TransduceError(str(error)) from None
        try:
            found = marian.with_all_names(
                read_weights(folder),
                tied=config.model.tie_embeddings,
                shared=described["share_encoder_decoder_embeddings"],
            )
            outline = outlined(config.model, found, folder)
            tensors = marian.ours(outline, found, pair)
        except marian.UnfitError as error:
            raise TransduceError(f"{folder}: {error}") from None
        for name, side in zip(("source.spm", "target.spm"), pair, strict=True):
            write_file(new / name, side.proto)
        write_file(new / CONFIG, config.to_toml().encode())
        write_file(new / CARD, card(config, folder, notes).encode())
        write_tensors(new / WEIGHTS, tensors)
        load_model(new)
    model = config.model
    say(
        f"imported {folder}: layers {model.N_encoder} + {model.N_decoder}, d_model "
        f"{model.d_model}, {model.source_vocabulary} and {model.target_vocabulary} pieces"
    )
    for note in notes:
        say(f"note: {note}")


def check_architecture(described: Table, path: Path) -> None:
    """Refuse what the model cannot be, and what is not known here, by name.

    Raises:
        TransduceError: naming the key.
    """
    if (kind := described.get("model_type")) != "marian":
        raise TransduceError(f"{path}: model_type is {kind!r}; only 'marian' can be imported")
    for key, only in FIXED.items():
        if described.get(key, only) != only:
            raise TransduceError(
                f"{path}: {key} = {described[key]!r}; only {only!r} can be carried"
            )
    if (names := described.get("architectures", ["MarianMTModel"])) != ["MarianMTModel"]:
        raise TransduceError(
            f"{path}: architectures = {names!r}; only ['MarianMTModel'] can be carried"
        )
    for pair in ("ffn_dim", "attention_heads"):
        encoder, decoder = (described[f"{stack}_{pair}"] for stack in ("encoder", "decoder"))
        if encoder != decoder:
            raise TransduceError(
                f"{path}: encoder_{pair} is {encoder!r}, decoder_{pair} is {decoder!r}: the stacks "
                "must be alike"
            )
    if str(described["activation_function"]) not in ACTIVATIONS:
        raise TransduceError(
            f"{path}: activation_function is {described['activation_function']!r}; can be carried: "
            f"{', '.join(ACTIVATIONS)}"
        )
    known = {*DEFAULTS, *FIXED, *NO_MATTER, *marian.SEARCH, *marian.OTHER_SEARCH}
    unknown = sorted(key for key in described if key not in known and not key.startswith("_"))
    if unknown:
        raise TransduceError(f"{path}: not known here: {', '.join(unknown)}")


def read_vocabularies(folder: Path, described: Table, generation: Table) -> tuple[Side, Side]:
    """Read the sentencepiece files and vocabularies.

    Raises:
        TransduceError: naming the file that is missing or broken, or the ids that contradict.
    """
    path = folder / "tokenizer_config.json"
    tokenizer = _read_json(path) if path.exists() else {}
    for key, only in (("unk_token", UNKNOWN), ("eos_token", END), ("pad_token", PADDING)):
        token = tokenizer.get(key) or only
        if (token.get("content") if isinstance(token, dict) else token) != only:
            raise TransduceError(f"{path}: {key} = {token!r}; only {only!r} can be carried")
    if tokenizer.get("sp_model_kwargs"):
        raise TransduceError(f"{path}: sp_model_kwargs cannot be carried")
    separate = tokenizer.get("separate_vocabs", (folder / "target_vocab.json").exists())
    if separate and described["share_encoder_decoder_embeddings"]:
        raise TransduceError(
            f"{folder}: share_encoder_decoder_embeddings, but two vocabularies (separate_vocabs)"
        )
    source = _read_vocabulary(folder / "vocab.json")
    target = _read_vocabulary(folder / "target_vocab.json") if separate else source
    files = (_read_bytes(folder / "source.spm"), _read_bytes(folder / "target.spm"))
    try:
        pair = sides(files, (source, target), shared=not separate)
    except TransduceError as error:
        raise TransduceError(f"{folder}: {error}") from None
    for key, ids, piece in (
        ("pad_token_id", source, PADDING),
        ("eos_token_id", target, END),
        ("decoder_start_token_id", target, PADDING),
    ):
        for said in (described[key], generation.get(key, described[key])):
            if said != ids[piece]:
                raise TransduceError(
                    f"{folder}: {key} is {said}, but the vocabulary has {piece} at {ids[piece]}"
                )
    return pair


def settings(described: Table, pair: tuple[Side, Side], decoding: Settings) -> Settings:
    """Return the settings of our model."""
    source, target = pair
    heads, d_model = described["encoder_attention_heads"], described["d_model"]
    if not (isinstance(heads, int) and isinstance(d_model, int) and heads > 0):
        raise TransduceError(f"config.json: d_model {d_model!r}, encoder_attention_heads {heads!r}")
    tied = described["tie_word_embeddings"]
    return {
        "data": {"normalization": "none"},  # the files of the vocabularies have their own rules
        "tokenizer": {
            "kind": source.kind,
            "vocabulary": len(source.rows),
            "joint": False,  # each side cuts text in its own way, even into shared pieces
            "byte_fallback": source.byte_fallback,
            "symbols": source.codes,
            "target": {"kind": target.kind, "vocabulary": len(target.rows)},
        },
        "model": {
            "source_vocabulary": len(source.rows),
            "target_vocabulary": len(target.rows),
            "joint_vocabulary": described["share_encoder_decoder_embeddings"],
            "N": described["encoder_layers"],
            "N_encoder": described["encoder_layers"],
            "N_decoder": described["decoder_layers"],
            "d_model": d_model,
            "d_ff": described["encoder_ffn_dim"],
            "h": heads,
            "P_drop": described["dropout"],
            "attention_dropout": described["attention_dropout"],
            "activation_dropout": described["activation_dropout"],
            "activation": ACTIVATIONS[described["activation_function"]],
            "attention_biases": True,
            "output_bias": True,
            "tie_embeddings": tied,
            "scale_embeddings": described["scale_embedding"],
        },
        "decoding": decoding,
    }


def read_weights(folder: Path) -> dict[str, Tensor]:
    """Read model.safetensors or pytorch_model.bin.

    Raises:
        TransduceError: if there is neither, or it is damaged or holds anything but numbers.
    """
    if (path := folder / "model.safetensors").exists():
        weights = read_tensors(path)
    elif (path := folder / "pytorch_model.bin").exists():
        weights = read_pickle(path)
    else:
        raise TransduceError(f"{folder} holds neither model.safetensors nor pytorch_model.bin")
    check_numbers(weights, path)
    return weights


def read_pickle(path: Path) -> dict[str, Tensor]:
    """Read a pickle of tensors with the reader that knows them alone.

    Raises:
        TransduceError: if it is damaged or holds anything else.
    """
    check_fetched(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of unusual pickles; what is wrong is raised
            weights: Any = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged pickle may stumble over anything
        reason = (str(error) or type(error).__name__).splitlines()[0]
        if isinstance(error, pickle.UnpicklingError) or "weights_only" in reason:
            reason = "it holds code, or is no file of weights"
            raise TransduceError(f"{path} is refused: {reason}") from None
        raise TransduceError(f"{path} is damaged: {reason}") from None
    if not isinstance(weights, dict) or not all(isinstance(t, Tensor) for t in weights.values()):
        raise TransduceError(f"{path} holds something else than named tensors")
    return weights


def card(config: Config, origin: Path, notes: list[str]) -> str:
    """Return the README.md of an imported model."""
    model = config.model
    said = "".join(f"- {note}\n" for note in notes)
    departed = "".join(f"- {line}\n" for line in departures(config))
    return f"""# {origin.resolve().name}, imported

A Marian model (`{origin.resolve().name}`), its weights, pieces and rules for text unchanged.
The licence of the original holds.

- layers {model.N_encoder} + {model.N_decoder}, d_model {model.d_model}, d_ff {model.d_ff}, \
h {model.h}
- vocabularies: {model.source_vocabulary} source, {model.target_vocabulary} target\
{" (joint)" if model.joint_vocabulary else ""}

What is not as it was:

{said}- text is brought into form by the vocabularies' own rules, as it was, but before them \
control characters (U+0080 to
  U+009F included) and byte-order marks are removed, tabs and no-break spaces become spaces, and \
▁ (U+2581) an underscore
- `</s>`, `<unk>` and `<pad>` in a text are letters like all others
- names of languages (`>>de<<`) are found anywhere in a text, not only at its start; those that \
the vocabulary lacks are letters
- pieces of a target that the vocabulary lacks are cut into smaller ones, not unknown: that \
matters in scoring and training

Departures from "Attention Is All You Need":

{departed}
Use it: `transduce translate FOLDER`, or start from it with `fine_tuning.init_from`.
"""


def _read_json(path: Path) -> Settings:
    check_fetched(path)
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise TransduceError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise TransduceError(f"{path} is not valid JSON") from None
    if not isinstance(table, dict):
        raise TransduceError(f"{path} is not a JSON object")
    return table


def _read_vocabulary(path: Path) -> Vocabulary:
    table = _read_json(path)
    if not all(isinstance(id_, int) for id_ in table.values()):
        raise TransduceError(f"{path}: not every piece has a number")
    return table


def _read_bytes(path: Path) -> bytes:
    check_fetched(path)
    try:
        return path.read_bytes()
    except OSError as error:
        raise TransduceError(f"cannot read {path}: {error.strerror}") from None
