"""What an export needs beside the model to translate without this package.

`text.py` and one of the scripts are modules of ours that are copied into the export: tested and
typed here, they import nothing of ours there.
"""

import json
from pathlib import Path
from typing import Any

from sentencepiece.sentencepiece_model_pb2 import ModelProto

from transduce.config import BOS, EOS, PAD, UNK, Config, DecodingConfig, ModelConfig
from transduce.data.corpus import save_tokenizers
from transduce.data.tokenizer import SentencePieceTokenizer, Tokenizer
from transduce.errors import UsageError
from transduce.model_folder import write_file

SETTINGS, SCRIPT, TEXT = "transduce.json", "translate.py", "text.py"
SEARCH = {
    "beam_size", "penalty", "alpha", "max_extra", "max_source", "batch_tokens", "precision",
    "engine", "temperature", "top_k", "top_p", "seed",
}  # fmt: skip
"""The settings of [decoding] that the scripts obey, or that mean nothing to them."""


def check_search(decoding: DecodingConfig) -> None:
    """Refuse settings of the search that the scripts do not know.

    Raises:
        UsageError: naming the setting.
    """
    for name, field in DecodingConfig.model_fields.items():
        default = field.get_default(call_default_factory=True)
        if name not in SEARCH and (value := getattr(decoding, name)) != default:
            raise UsageError(
                f"decoding.{name} = {value!r} cannot be exported: the exported search does not "
                f"know it; set it to {default!r} for the export"
            )


def write_scripts(
    folder: Path,
    engine: str,
    precision: str,
    config: Config,
    model: ModelConfig,
    tokenizers: tuple[Tokenizer, Tokenizer],
) -> dict[str, Any]:
    """Write tokenizers, settings and scripts beside an exported model; return the settings."""
    save_tokenizers(folder, *tokenizers)
    settings = settings_for_others(config, model, tokenizers) | {"precision": precision}
    text = json.dumps(settings, ensure_ascii=False, indent=2) + "\n"
    write_file(folder / SETTINGS, text.encode())
    for side in (settings["source"], settings["target"]):
        if side["file"] and not side["rules"]:
            _without_prefix(folder / side["file"])
    here = Path(__file__).parent
    write_file(folder / TEXT, (here / TEXT).read_bytes())
    script = (here / f"{engine}.py").read_text(encoding="utf-8")
    script = script.replace("from transduce.exporting.standalone.text import", "from text import")
    write_file(folder / SCRIPT, script.encode())
    return settings


def _without_prefix(path: Path) -> None:
    """Have sentencepiece put no space before a text: that is done before symbols are cut out."""
    proto = ModelProto.FromString(path.read_bytes())
    if proto.normalizer_spec.add_dummy_prefix:
        proto.normalizer_spec.add_dummy_prefix = False
        path.write_bytes(proto.SerializeToString())


def settings_for_others(
    config: Config, model: ModelConfig, tokenizers: tuple[Tokenizer, Tokenizer]
) -> dict[str, Any]:
    """Return what whoever decodes has to know, beside the model."""
    search, most = config.decoding, model.position_limit
    source, target = tokenizers
    names = ("joint.spm",) * 2 if source is target else ("source.spm", "target.spm")

    def side(tokenizer: Tokenizer, name: str) -> dict[str, Any]:
        learnt = isinstance(tokenizer, SentencePieceTokenizer)
        return {
            "file": name if learnt else None,
            "normalization": tokenizer.normalization,
            "symbols": tokenizer.symbols,
            "rules": isinstance(tokenizer, SentencePieceTokenizer) and tokenizer.has_rules,
        }

    return {
        "format": 1,
        "precision": "float32",
        "ids": {"pad": PAD, "unk": UNK, "bos": BOS, "eos": EOS},
        "decoding": {
            "beam_size": search.beam_size,
            "penalty": search.penalty,
            "alpha": search.alpha,
            "max_extra": search.max_extra,
            "max_source": min(search.max_source, (most or search.max_source + 1) - 1),
            "max_output": most,
            "batch_tokens": search.batch_tokens or 1024,
        },
        "source": {"kind": config.tokenizer.source.kind or config.tokenizer.kind}
        | side(source, names[0]),
        "target": {"kind": config.tokenizer.target.kind or config.tokenizer.kind}
        | side(target, names[1]),
        "model": model.model_dump(),
    }
