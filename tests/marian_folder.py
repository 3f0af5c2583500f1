"""Stand-ins for OPUS-MT models: the format's own classes, tiny, with random weights."""

import io
import json
import random
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import sentencepiece
import torch
from sentencepiece.sentencepiece_model_pb2 import ModelProto

from transduce.marian import in_halves
from transduce.model.transformer import sinusoids

SOURCE = [
    "the", "house", "is", "green", "and", "the", "cat", "sits", "on", "the", "mat", "while", "rain",
    "falls", "in", "the", "garden",
]  # fmt: skip
TARGET = [
    "das", "haus", "ist", "grün", "und", "die", "katze", "sitzt", "auf", "der", "matte", "während",
    "regen", "im", "garten", "fällt",
]  # fmt: skip
RESERVED = ("<unk>", "<s>", "</s>", "<pad>")


@cache
def spm(
    words: tuple[str, ...], kind: str = "unigram", rule: str = "nmt_nfkc", **more: Any
) -> bytes:
    """Train a sentencepiece file as OPUS-MT does, on sentences of some words."""
    draw, proto = random.Random(1), io.BytesIO()
    sentences = [" ".join(draw.choices(words, k=6)) for _ in range(400)]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences), model_writer=proto, model_type=kind,
        hard_vocab_limit=False, normalization_rule_name=rule, minloglevel=2,
        **({"vocab_size": 70} | more),
    )  # fmt: skip
    return proto.getvalue()


def pieces(file: bytes) -> list[str]:
    return [e.piece for e in ModelProto.FromString(file).pieces if e.piece not in RESERVED]


def vocabulary(names: Sequence[str]) -> dict[str, int]:
    """END first, UNKNOWN next, padding last."""
    every = ["</s>", "<unk>", *dict.fromkeys(names), "<pad>"]
    return {name: id_ for id_, name in enumerate(every)}


def write_marian(
    folder: Path,
    *,
    kind: str = "unigram",
    separate: bool = False,
    codes: Sequence[str] = (),
    without: Sequence[str] = (),
    rule: str = "nmt_nfkc",
    generation: dict[str, Any] | None = None,
    spm_options: dict[str, Any] | None = None,
    **changes: Any,
) -> Any:
    """Write a folder as the hub has them, and return its model in evaluation mode.

    Args:
        folder: where.
        kind: of sentencepiece.
        separate: a vocabulary for each side.
        codes: names of languages.
        without: pieces that the vocabularies lack.
        rule: sentencepiece's normalisation.
        generation: more of generation_config.json.
        spm_options: more for sentencepiece's training.
        changes: of config.json.
    """
    from transformers import MarianConfig, MarianMTModel

    folder.mkdir(parents=True, exist_ok=True)
    files = [spm(tuple(words), kind, rule, **(spm_options or {})) for words in (SOURCE, TARGET)]
    for name, file in zip(("source.spm", "target.spm"), files, strict=True):
        (folder / name).write_bytes(file)
    names = [[p for p in pieces(file) if p not in without] for file in files]
    if not separate:
        names = [[*codes, *names[0], *names[1]]]
    tables = [vocabulary(some) for some in names]
    if separate:  # the ids of padding are one number
        short, long = sorted(tables, key=len)
        del short["<pad>"]
        short |= {f"spare{i}": len(short) + i for i in range(len(long) - len(short) - 1)}
        short["<pad>"] = len(short)
    for name, table in zip(("vocab.json", "target_vocab.json"), tables, strict=False):
        (folder / name).write_text(json.dumps(table, ensure_ascii=False), "utf-8")
    tokenizer = {"source_lang": "en", "target_lang": "de", "separate_vocabs": separate}
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    size = len(tables[0])
    settings = {
        "vocab_size": size, "decoder_vocab_size": size, "d_model": 16, "encoder_layers": 2,
        "decoder_layers": 1, "encoder_ffn_dim": 20, "decoder_ffn_dim": 20,
        "encoder_attention_heads": 2, "decoder_attention_heads": 2, "activation_function": "swish",
        "scale_embedding": True, "pad_token_id": size - 1, "eos_token_id": 0,
        "decoder_start_token_id": size - 1, "forced_eos_token_id": 0, "max_position_embeddings": 64,
        "share_encoder_decoder_embeddings": not separate, "init_std": 0.4, "dropout": 0.1,
    } | changes  # fmt: skip
    torch.manual_seed(0)
    model = MarianMTModel(MarianConfig(**settings))
    model.final_logits_bias.normal_()
    for name, parameter in model.named_parameters():
        if name.endswith("bias") or "norm" in name:  # which begin as 0 and 1
            parameter.data += 0.3 * torch.randn_like(parameter)
    model.generation_config.update(
        **({"num_beams": 1, "max_length": 40, "bad_words_ids": [[size - 1]]} | (generation or {}))
    )
    model.save_pretrained(folder)
    return model.eval()


def in_float64(theirs: Any) -> Any:
    """Also the sinusoids, which are rounded there."""
    theirs = theirs.double()
    for stack in (theirs.model.encoder, theirs.model.decoder):
        table = stack.embed_positions.weight
        table.data = in_halves("positions.weight", sinusoids(*table.shape))
    return theirs


def main() -> None:
    """Write a stand-in of the shape of OPUS-MT's models (Marian's transformer-align)."""
    import sys

    spare = [f"▁spare{i}" for i in range(58_101 - 90)]
    model = write_marian(
        Path(sys.argv[1]), codes=spare, d_model=512, encoder_layers=6, decoder_layers=6,
        encoder_ffn_dim=2048, decoder_ffn_dim=2048, encoder_attention_heads=8,
        decoder_attention_heads=8, max_position_embeddings=512, init_std=0.02,
        generation={"num_beams": 4, "max_length": 512},
    )  # fmt: skip
    print(f"{sum(parameter.numel() for parameter in model.parameters()):,} parameters")


if __name__ == "__main__":
    main()
