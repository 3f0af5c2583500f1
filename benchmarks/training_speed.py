"""Training speed beside Hugging Face Marian: the same sizes, batches, data and machine.

Work: Multi30k en-de, one joint BPE of 8,000 pieces, batches of at most 4,096 padded target tokens
of like length, dropout 0.1, label smoothing 0.1, Adam. The systems take turns, a block of updates
each, on the same batches; the first block of each is warm-up and not counted.
"""

import argparse
import itertools
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from datetime import date
from pathlib import Path
from typing import Any

import torch
import transformers
from torch.nn import functional

from transduce.config import PAD, Config, Settings, merge, overlay, parse
from transduce.data.batches import Batch, Epochs, collate
from transduce.data.corpus import Corpus
from transduce.experiment import assemble
from transduce.preparing import prepare_corpus

TOKENS = 4096


def recipe(data: Path, preset: str) -> Settings:
    files = {
        part: [str(data / "multi30k" / f"{name}.{side}.gz") for side in ("en", "de")]
        for part, name in (("train", "train"), ("valid", "val"))
    }
    return overlay(
        {
            "preset": preset,
            "data": files,
            "tokenizer": {"kind": "bpe", "vocabulary": 8000, "joint": True},
            "model": {"P_drop": 0.1},
            "training": {"tokens": TOKENS, "warmup_steps": 4000},
        }
    )


def ours(config: Config, corpus: Corpus, folder: Path, precision: str) -> Callable[[Batch], None]:
    sizes = {
        "source_vocabulary": corpus.manifest["source_vocabulary"],
        "target_vocabulary": corpus.manifest["target_vocabulary"],
    }
    changes = {"model": sizes, "training": {"precision": precision}}
    trainer, _ = assemble(parse(merge(config.model_dump(), changes), "benchmark"), corpus, folder)
    trainer.model.train()
    return lambda batch: (trainer.update([batch]), None)[1]


def marian(config: Config, corpus: Corpus, bfloat16: bool) -> Callable[[Batch], None]:
    c = config.model
    settings: dict[str, Any] = {
        "vocab_size": corpus.manifest["target_vocabulary"],
        "d_model": c.d_model,
        "encoder_layers": c.N_encoder,
        "decoder_layers": c.N_decoder,
        "encoder_attention_heads": c.h,
        "decoder_attention_heads": c.h,
        "encoder_ffn_dim": c.d_ff,
        "decoder_ffn_dim": c.d_ff,
        "activation_function": "relu",
        "dropout": 0.1,
        "scale_embedding": True,
        "pad_token_id": PAD,
        "bos_token_id": 2,
        "eos_token_id": 3,
        "decoder_start_token_id": 2,
        "forced_eos_token_id": None,
        "max_position_embeddings": 512,
        "attn_implementation": "eager" if bfloat16 else "sdpa",
    }
    model = transformers.MarianMTModel(transformers.MarianConfig(**settings)).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-9)

    def update(batch: Batch) -> None:
        context = torch.autocast("cpu", torch.bfloat16) if bfloat16 else nullcontext()
        with context:
            logits = model(
                input_ids=batch.src,
                attention_mask=(batch.src != PAD).long(),
                decoder_input_ids=batch.tgt_in,
                use_cache=False,
            ).logits
        loss = functional.cross_entropy(
            logits.flatten(0, 1).float(),
            batch.tgt_out.flatten(),
            ignore_index=PAD,
            label_smoothing=0.1,
        )
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return update


def stream(corpus: Corpus) -> Iterator[Batch]:
    epochs = Epochs(corpus.train, TOKENS, seed=1)
    for epoch in itertools.count():
        for group in epochs.groups(epoch):
            yield collate(group.batches[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--preset", default="small")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--updates", type=int, default=6, help="updates of a system per round")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if "TRANSDUCE_DATA" not in os.environ:
        sys.exit("set TRANSDUCE_DATA to the folder of the data sets")
    settings = recipe(Path(os.environ["TRANSDUCE_DATA"]), options.preset)
    config = parse(settings, "benchmark")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        corpus = prepare_corpus(settings, folder / "corpus", print)
        systems = {
            "transduce, bfloat16": ours(config, corpus, folder / "b", "bfloat16"),
            "transduce, float32": ours(config, corpus, folder / "f", "float32"),
            "Marian, bfloat16 autocast, eager attention": marian(config, corpus, True),
            "Marian, float32": marian(config, corpus, False),
        }
        source = stream(corpus)
        speeds: dict[str, list[float]] = {system: [] for system in systems}
        for number in range(options.rounds + 1):
            block = [next(source) for _ in range(options.updates)]
            tokens = sum(int((batch.tgt_out != PAD).sum()) for batch in block)
            for system, update in systems.items():
                before = time.perf_counter()
                for batch in block:
                    update(batch)
                if number:
                    speeds[system].append(tokens / (time.perf_counter() - before))
    first = statistics.median(speeds["Marian, float32"])
    print(f"| system | target tokens/s (median of {options.rounds}) | range | against Marian |")
    print("|---|---|---|---|")
    for system, values in speeds.items():
        median = statistics.median(values)
        print(
            f"| {system} | {median:,.0f} | {min(values):,.0f}-{max(values):,.0f} "
            f"| {median / first:.2f} |"
        )
    if options.json:
        record = {
            "date": date.today().isoformat(),
            "preset": options.preset,
            "threads": torch.get_num_threads(),
            "processor": platform.processor() or platform.machine(),
            "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
            "tokens_per_second": speeds,
        }
        options.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
