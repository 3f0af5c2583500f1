"""A model folder as Hugging Face's `MarianMTModel` and `MarianTokenizer` load it.

That is a post-norm Transformer with biases everywhere: where ours has none they are zero. What the
format cannot say is refused by its name, and what its search cannot say stands in the README.md.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from transduce.config import BOS, EOS, PAD, UNK, Config, DecodingConfig, ModelConfig
from transduce.data.marian import FIRST_IDS, exported
from transduce.data.tokenizer import Tokenizer
from transduce.errors import UsageError
from transduce.exporting import not_carried
from transduce.marian import (
    BIAS,
    EMBEDDINGS,
    SHARED,
    in_halves,
    their_name,
)
from transduce.model import Transformer
from transduce.model_folder import new_folder, weights, write_file, write_tensors

CARRIED: Final = {
    "source_vocabulary", "target_vocabulary", "joint_vocabulary", "N", "N_encoder", "N_decoder",
    "d_model", "d_ff", "h", "P_drop", "attention_dropout", "activation_dropout", "activation",
    "attention_biases", "output_bias", "max_positions", "tie_embeddings", "scale_embeddings",
    "window", "kernel", "dilated", "cell",  # of layer types that are not carried
}  # fmt: skip
"""Fields of the model's configuration that may have any value."""
ONLY: Final[dict[str, Callable[[ModelConfig], object]]] = {
    "d_k": lambda config: config.d_model / config.h,
    "d_v": lambda config: config.d_model / config.h,
    "norm_place": lambda config: "post",
    "norm_epsilon": lambda config: 1e-5,
    "positions": lambda config: "sinusoidal",
    "norm_kind": lambda config: "layer",
    "encoder_layer_type": lambda config: "self-attention",
    "decoder_layer_type": lambda config: "self-attention",
    "attention_normaliser": lambda config: "softmax",
}
"""Fields that have one value that the format can say."""

END, UNKNOWN, BEGIN, PADDING = (FIRST_IDS.index(id_) for id_ in (EOS, UNK, BOS, PAD))


def refused(config: ModelConfig) -> list[str]:
    """Return what the format cannot say about a model; a switch that is new here is refused."""
    only = {name: value(config) for name, value in ONLY.items()}
    only |= {
        name: ModelConfig.model_fields[name].default
        for name, _ in not_carried(config, CARRIED | ONLY.keys())
    }
    return [
        f"model.{name} = {getattr(config, name)} (only "
        f"{f'{value:g}' if isinstance(value, float) else value} can be said there)"
        for name, value in only.items()
        if getattr(config, name) != value
    ]


def export(
    config: Config, model: Transformer, tokenizers: tuple[Tokenizer, Tokenizer], out: Path
) -> None:
    """Write the folder, all of it or nothing.

    Raises:
        UsageError: if there is something at `out` already, or the model cannot be said there.
        TransduceError: if a vocabulary cannot, or the folder cannot be written.
    """
    if reasons := refused(config.model):
        raise UsageError(f"Hugging Face's Marian cannot be this model: {'; '.join(reasons)}")
    source, target = tokenizers
    shared = source.pieces(range(len(source))) == target.pieces(range(len(target)))
    (source_ids, source_file), (target_ids, target_file) = (
        exported(tokenizer, name) for tokenizer, name in ((source, "source"), (target, "target"))
    )
    search, notes = generation(config.decoding)
    tables: dict[str, Any] = {
        "config.json": architecture(config),
        "generation_config.json": search,
        "vocab.json": source_ids,
        "tokenizer_config.json": {
            "tokenizer_class": "MarianTokenizer",
            "model_max_length": config.decoding.max_source + 1,
            "separate_vocabs": not shared,
            "clean_up_tokenization_spaces": False,
            "unk_token": "<unk>",
            "eos_token": "</s>",
            "pad_token": "<pad>",
        },
    }
    if not shared:
        tables["target_vocab.json"] = target_ids
    with new_folder(out) as new:
        write_file(new / "source.spm", source_file)
        write_file(new / "target.spm", target_file)
        for name, table in tables.items():
            text = json.dumps(table, indent=2, ensure_ascii=False)
            write_file(new / name, f"{text}\n".encode())
        write_file(new / "README.md", readme(config, notes).encode())
        write_tensors(new / "model.safetensors", theirs(config.model, model))


def theirs(config: ModelConfig, model: Transformer) -> dict[str, Tensor]:
    """Return the weights with Marian's names, channels and ids."""
    result = {}
    for name, tensor in weights(model).items():
        tensor = in_halves(name, tensor)
        if name == "output.bias":
            result[BIAS] = with_first_ids(tensor)[None]
        elif name in EMBEDDINGS:
            joint = config.tie_embeddings and config.joint_vocabulary
            result[SHARED if joint else EMBEDDINGS[name]] = with_first_ids(tensor)
        else:
            result[their_name(name)] = tensor
    if BIAS not in result:
        result[BIAS] = torch.zeros(1, config.target_vocabulary)
    if not config.attention_biases:
        matrices = [name for name in result if name.endswith("_proj.weight")]
        for name in matrices:
            zeros = torch.zeros(config.d_model)
            result[f"{name.removesuffix('weight')}bias"] = zeros
    return {name: tensor.contiguous() for name, tensor in result.items()}


def with_first_ids(ours: Tensor) -> Tensor:
    """Return rows in the order of FIRST_IDS."""
    return torch.cat([ours[list(FIRST_IDS)], ours[len(FIRST_IDS) :]])


def architecture(config: Config) -> dict[str, Any]:
    """Return config.json."""
    model = config.model
    stacks = {"encoder": model.N_encoder, "decoder": model.N_decoder}
    alike = {"ffn_dim": model.d_ff, "attention_heads": model.h, "layerdrop": 0.0}
    return {
        "architectures": ["MarianMTModel"],
        "model_type": "marian",
        "is_encoder_decoder": True,
        "d_model": model.d_model,
        **{f"{stack}_layers": N for stack, N in stacks.items()},
        **{f"{stack}_{key}": value for stack in stacks for key, value in alike.items()},
        "vocab_size": model.source_vocabulary,
        "decoder_vocab_size": model.target_vocabulary,
        "share_encoder_decoder_embeddings": model.tie_embeddings and model.joint_vocabulary,
        "tie_word_embeddings": model.tie_embeddings,
        "scale_embedding": model.scale_embeddings,
        "activation_function": model.activation,
        "dropout": model.P_drop,
        "attention_dropout": model.attention_dropout,
        "activation_dropout": model.activation_dropout,
        "normalize_before": False,
        "normalize_embedding": False,
        "add_final_layer_norm": False,
        "static_position_embeddings": True,
        "max_position_embeddings": config.decoding.longest_output,
        "eos_token_id": END,
        "forced_eos_token_id": END,
        "pad_token_id": BEGIN,
        "decoder_start_token_id": BEGIN,
        "bos_token_id": None,
        "dtype": "float32",
    }


def generation(decoding: DecodingConfig) -> tuple[dict[str, Any], list[str]]:
    """Return generation_config.json, and what it cannot say."""
    powers = {"none": 0.0, "average": 1.0, "gnmt": decoding.alpha}
    search: dict[str, Any] = {
        "num_beams": decoding.beam_size,
        "length_penalty": powers[decoding.penalty],
        "max_length": decoding.longest_output,
        "bad_words_ids": [[UNKNOWN], [BEGIN], [PADDING]],
        "decoder_start_token_id": BEGIN,
        "eos_token_id": END,
        "forced_eos_token_id": END,
        "pad_token_id": BEGIN,
    }
    if decoding.min_length:
        search["min_length"] = decoding.min_length
    if decoding.no_repeat:
        search["no_repeat_ngram_size"] = decoding.no_repeat
    notes = [
        f"outputs end after {decoding.longest_output} tokens; here they may be "
        f"{decoding.max_extra} tokens longer than their source (`max_new_tokens`)",
        "the search for the best output of a beam ends by other rules",
    ]
    if decoding.method == "sample":
        search |= {
            "do_sample": True,
            "num_beams": 1,
            "temperature": decoding.temperature,
            "top_k": decoding.top_k,
            "top_p": decoding.top_p,
        }
    if decoding.penalty == "gnmt" and decoding.beam_size > 1:
        alpha = f"{decoding.alpha:g}"
        notes.append(
            f"scores are divided by n^{alpha} (`length_penalty`), here by ((5 + n) / 6)^{alpha}"
        )
    if decoding.beta:
        notes.append(f"there is no penalty for what is not covered; here beta = {decoding.beta:g}")
    if decoding.placeholders:
        notes.append("placeholders are not copied to the output")
    return search, notes


def readme(config: Config, notes: list[str]) -> str:
    """Return the README.md."""
    model, form = config.model, config.data.normalization
    notes = [
        "`</s>`, `<unk>` and `<pad>` in a text are no text; no-break spaces and control characters "
        "are characters like all others",
        *notes,
        "sources are not cut unless the tokenizer is told to: `truncation=True`",
    ]
    if form != "none":
        notes.insert(0, f"text must be brought into {form} before (`unicodedata.normalize`)")
    said = "".join(f"- {note}\n" for note in notes)
    return f"""---
library_name: transformers
pipeline_tag: translation
---

# A sequence-to-sequence Transformer

Trained with `transduce`, and written in the form of Marian models.

- layers {model.N_encoder} + {model.N_decoder}, d_model {model.d_model}, d_ff {model.d_ff}, \
h {model.h}
- vocabularies: {model.source_vocabulary} source, {model.target_vocabulary} target

```python
from transformers import MarianMTModel, MarianTokenizer

tokenizer = MarianTokenizer.from_pretrained("FOLDER")
model = MarianMTModel.from_pretrained("FOLDER")
batch = tokenizer(["..."], return_tensors="pt", padding=True)
print(tokenizer.batch_decode(model.generate(**batch), skip_special_tokens=True))
```

The logits are the same. What is not the same as with `transduce translate`:

{said}"""
