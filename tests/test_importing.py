"""Import: what the format's own library computes with a folder, the imported model does, too."""

import json
import pickle
import shutil
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sentencepiece.sentencepiece_model_pb2 import ModelProto
from torch import Tensor

import transduce
from tests.marian_folder import SOURCE, TARGET, pieces, spm, write_marian
from transduce import cli
from transduce.config import BOS, EOS, PAD, UNK, parse
from transduce.data.batches import collate
from transduce.data.tokenizer import Tokenizer
from transduce.errors import TransduceError, UsageError
from transduce.experiment import train
from transduce.importing import import_marian
from transduce.marian import POSITIONS, in_halves, interleaved
from transduce.model import Transformer
from transduce.model.transformer import sinusoids
from transduce.model_folder import load_config, load_model, weights

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")

NAMED = {PAD: "<pad>", UNK: "<unk>", BOS: "<pad>", EOS: "</s>"}
SENTENCES = ["the green house", "the cat sits on the mat while rain falls", "xyz", "in the garden"]
ANSWERS = ["das grüne haus", "die katze", "regen im garten", "haus"]
TRICKY = [
    "", " ", "the", " the  cat ", "the\tcat", "The ﬁne ①house…", "thé", "thé", "a\u200bb\u200c\u200dc",
    "½ ﾊﾝｶｸ ～ ￥", "xyz xyz", "ß", "größe ß", "кот", "the кот sits", "日本 the 日", "🙂 the🙂",
    "\u3000the\u2009cat", "the\u00adcat", "the\u00a0cat", "THE CAT", "grün", "gru\u0308n", "<0x41>",
    "ä ö", "1234567", "....", "the.cat,on;mat", "\u0301a", "ﷺ", "thecatsits" * 5,
]  # fmt: skip


def silent(line: str) -> None:
    """Say nothing."""


def imported(
    folder: Path, out: Path
) -> tuple[Transformer, tuple[Tokenizer, Tokenizer], tuple[list[int], list[int]]]:
    """Import a folder; return model and tokenizers, and the other library's id of each piece."""
    import_marian(folder, out, silent)
    _, model, tokenizers = load_model(out)
    tables = [json.loads((folder / "vocab.json").read_text("utf-8"))]
    if (folder / "target_vocab.json").exists():
        tables.append(json.loads((folder / "target_vocab.json").read_text("utf-8")))
    sides = []
    for tokenizer, table in zip(tokenizers, (tables[0], tables[-1]), strict=True):
        names = [NAMED.get(i, p) for i, p in enumerate(tokenizer.pieces(range(len(tokenizer))))]
        sides.append([table.get(name, table["<unk>"]) for name in names])
    return model, tokenizers, (sides[0], sides[1])


def marian_tokenizer(folder: Path) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return transformers.MarianTokenizer.from_pretrained(folder)


def in_float64(theirs: Any) -> Any:
    """Also the sinusoids, which are rounded there."""
    theirs = theirs.double()
    for stack in (theirs.model.encoder, theirs.model.decoder):
        table = stack.embed_positions.weight
        table.data = in_halves("positions.weight", sinusoids(*table.shape))
    return theirs


def both_logits(
    theirs: Any, ours: Transformer, ids: tuple[Sequence[int], Sequence[int]]
) -> tuple[Tensor, Tensor]:
    """Return the logits of both for two pairs of different lengths, in our order of classes."""
    source, target = (torch.tensor(side) for side in ids)
    draw = torch.Generator().manual_seed(3)
    pairs = [
        (
            torch.randint(EOS + 1, len(source), (n,), generator=draw).tolist(),
            torch.randint(EOS + 1, len(target), (m,), generator=draw).tolist(),
        )
        for n, m in ((5, 7), (9, 3))
    ]
    batch = collate(pairs)
    with torch.no_grad():
        said = theirs(
            input_ids=source[batch.src],
            attention_mask=(batch.src != PAD).long(),
            decoder_input_ids=target[batch.tgt_in],
        ).logits[..., target]
        mine = ours(batch.src, batch.tgt_in)
    real = batch.tgt_out != PAD
    return mine[real], said[real]


ARCHITECTURES: dict[str, dict[str, Any]] = {
    "as OPUS-MT has it": {},
    "relu": {"activation_function": "relu"},
    "gelu": {"activation_function": "gelu", "encoder_layers": 1, "decoder_layers": 3},
    "silu": {"activation_function": "silu", "scale_embedding": False},
    "separate vocabularies": {"separate": True},
    "no ties": {"separate": True, "tie_word_embeddings": False},
    "separate matrices": {"share_encoder_decoder_embeddings": False},
    "an odd width": {"d_model": 15, "encoder_attention_heads": 3, "decoder_attention_heads": 3},
    "a smaller vocabulary": {"without": ["▁the", "e", "s"], "codes": [">>de<<", ">>fr<<"]},
}


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_logits_are_the_same(name: str, tmp_path: Path) -> None:
    theirs = write_marian(tmp_path / "marian", **ARCHITECTURES[name])
    model, _, ids = imported(tmp_path / "marian", tmp_path / "model")
    last = first_copy(ids[1])
    for ours, said in (
        both_logits(theirs, model, ids),
        both_logits(in_float64(theirs), model.double(), ids),
    ):
        exact = {torch.float32: 1e-5, torch.float64: 1e-10}[ours.dtype]
        known = list(range(UNK, last))
        assert torch.allclose(ours[:, known], said[:, known], atol=exact * 10, rtol=exact)
        # As probabilities, too: what has no class there has none here.
        assert torch.allclose(
            ours.softmax(-1)[:, known], said[:, known].softmax(-1), atol=exact, rtol=0
        )
        copies = ours.softmax(-1)[:, [PAD, *range(last, len(ids[1]))]]
        assert float(copies.max()) < 1e-30
    assert (last < len(ids[1])) == ("without" in ARCHITECTURES[name])


def first_copy(rows: Sequence[int]) -> int:
    """Return the first id at the end that is unknown to the other side."""
    last = len(rows)
    while rows[last - 1] == rows[UNK]:
        last -= 1
    return last
