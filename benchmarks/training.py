"""Training speed beside peers: the same sizes, batches, data and machine, in turns.

Work: Multi30k en-de, one joint BPE of 8,000 pieces, batches of at most 4,096 padded target tokens
of like length, one matrix for both embeddings and the output, dropout 0.1, label smoothing 0.1,
Adam (0.9, 0.98, 1e-9), the rate rising to 1e-3 in 400 updates and constant from there. Sizes:

    S   d_model 256, d_ff 1,024, 4 heads, 3 + 3 layers (preset `small`)
    B   d_model 512, d_ff 2,048, 8 heads, 6 + 6 layers (preset `base`)

Each system is a process of its own, in the interpreter given with --peer, so that peers that cannot
be installed together can be compared, and each one's peak memory is read from its process. They
take turns: a block of updates each, on the same batches. All of the first round is warm-up; of
every later block the first update is not counted, because a system gives its free memory back
while it waits. A peer that is not there is listed as skipped.

Useful arithmetic is that of the model's own matrix products on real tokens (END included), whatever
a system computes beside it. With d = d_model, V pieces, S and T the lengths of a sentence's sides:

    per source token   N (8 d² + 4 d d_ff)               encoder layers
                       + N 4 d²                          keys and values of the memory
    per target token   N (12 d² + 4 d d_ff) + 2 d V      decoder layers; output
    per sentence       N 4 d (S² + T (T + 1) / 2 + S T)  attention: scores, weighted values

times 3 for forward and backward. Its share of the machine's peak is taken against the products of
the same matrices alone (`peers/products.py`), measured in the same rounds.
"""

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import date
from pathlib import Path
from typing import Any, Literal

import numpy as np
from peers.protocol import PAD, Job

from transduce.config import Config, Settings, merge, overlay, parse
from transduce.data.batches import Batch, Epochs, collate
from transduce.data.corpus import Corpus, Encoded
from transduce.errors import TransduceError
from transduce.preparing import prepare_corpus

HERE = Path(__file__).resolve().parent
PRESETS = {"S": "small", "B": "base"}
PEAK_RATE, WARMUP_STEPS = 1e-3, 400
HELD_OUT = "held-out"


@dataclass(frozen=True)
class System:
    """Something that is measured: which worker, and how its row is called."""

    label: str
    module: str
    variant: str = ""
    kind: Literal["ours", "shipped", "tuned"] = "shipped"
    precision: Literal["float32", "bfloat16"] = "float32"


SYSTEMS = {
    "ours": System("transduce, bfloat16", "ours", "bfloat16", "ours", "bfloat16"),
    "ours-float32": System("transduce, float32", "ours", "float32", "ours"),
    "marian": System("Hugging Face Marian", "marian"),
    "marian-tuned": System(
        "Marian, bfloat16 autocast, eager attention", "marian", "tuned", "tuned", "bfloat16"
    ),
    "torch": System("torch.nn.Transformer", "torch_transformer"),
    "reference": System("attention-is-all-you-need-pytorch", "reference"),
    "x-transformers": System("x-transformers", "x_transformers"),
    "fairseq": System("fairseq", "fairseq"),
    "joeynmt": System("JoeyNMT", "joeynmt"),
    "opennmt": System("OpenNMT-py", "opennmt"),
    "eole": System("eole", "eole"),
}


class Gone(Exception):
    """A worker has ended before its time; the message says why."""


class Worker:
    """A process that trains one system, a block whenever it is asked."""

    def __init__(self, name: str, module: str, python: str, job: Job, folder: Path) -> None:
        self.errors = folder / f"{name}.txt"
        with open(self.errors, "wb") as errors:
            self.process = subprocess.Popen(
                [python, "-m", f"peers.{module}"],
                cwd=HERE,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        self.about = self.ask(json.dumps(asdict(job)))

    def ask(self, line: str) -> dict[str, Any]:
        """Send a line, wait for the answer."""
        assert self.process.stdin and self.process.stdout
        try:
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            answer = ""
        else:
            answer = self.process.stdout.readline()
        if not answer:
            code = self.process.wait()
            said = self.errors.read_text(encoding="utf-8", errors="replace").strip()
            raise Gone(said.split("\n")[-1] if said and code >= 0 else f"ended by signal {-code}")
        found: dict[str, Any] = json.loads(answer)
        if "skipped" in found:
            self.process.wait()
            raise Gone(found["skipped"])
        return found

    def end(self) -> None:
        """Let the process end: its input is over."""
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait()


@dataclass
class Measured:
    """What was found out about one system."""

    about: dict[str, Any]
    blocks: list[dict[str, Any]] = field(default_factory=list)
    held_out: float = float("nan")

    def rates(self, amounts: Sequence[float]) -> list[float]:
        """Divide the amounts of each counted block by the time of its counted updates."""
        return [
            amount / sum(block["seconds"][1:])
            for amount, block in zip(amounts, self.blocks[1:], strict=True)
        ]


# Data -------------------------------------------------------------------------------------------


def recipe(data: Path, preset: str, tokens: int) -> Settings:
    files = {
        part: [str(data / "multi30k" / f"{name}.{side}.gz") for side in ("en", "de")]
        for part, name in (("train", "train"), ("valid", "val"))
    }
    return overlay(
        {
            "preset": preset,
            "device": "cpu",
            "data": files,
            "tokenizer": {"kind": "bpe", "vocabulary": 8000, "joint": True},
            "model": {"P_drop": 0.1},
            "training": {
                "tokens": tokens,
                "schedule": "linear",
                "learning_rate": PEAK_RATE,
                "warmup_steps": WARMUP_STEPS,
                "steps": 10**9,  # so that the rate stays at its peak
            },
        }
    )


def stream(pairs: Encoded, tokens: int) -> Iterator[Batch]:
    epochs = Epochs(pairs, tokens, seed=1)
    for epoch in itertools.count():
        for group in epochs.groups(epoch):
            yield collate(group.batches[0])


def write(blocks: dict[str, list[Batch]], path: Path) -> None:
    arrays = {
        f"{name}/{number}/{part}": getattr(batch, part).numpy()
        for name, batches in blocks.items()
        for number, batch in enumerate(batches)
        for part in ("src", "tgt_in", "tgt_out")
    }
    np.savez(path, **arrays)


def target_tokens(batches: Sequence[Batch]) -> int:
    return sum(int((batch.tgt_out != PAD).sum()) for batch in batches)


def useful_flops(batches: Sequence[Batch], config: Config) -> float:
    """Return the arithmetic of these batches, as the module's docstring defines it."""
    c = config.model
    N, d, d_ff = c.N, c.d_model, c.d_ff
    total = 0.0
    for batch in batches:
        S = (batch.src != PAD).sum(1).double()
        T = (batch.tgt_out != PAD).sum(1).double()
        per_source = N * (8 * d**2 + 4 * d * d_ff) + N * 4 * d**2
        per_target = N * (12 * d**2 + 4 * d * d_ff) + 2 * d * c.target_vocabulary
        attention = N * 4 * d * (S**2 + T * (T + 1) / 2 + S * T)
        total += float((per_source * S + per_target * T + attention).sum())
    return 3 * total


# Measuring --------------------------------------------------------------------------------------


def measure(size: str, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Train all systems of one size in turns; return everything that was found."""
    settings = recipe(Path(os.environ["TRANSDUCE_DATA"]), PRESETS[size], options.tokens)
    corpus = prepare_corpus(settings, folder / "corpus", say)
    vocabulary = corpus.manifest["target_vocabulary"]
    sizes = {"source_vocabulary": vocabulary, "target_vocabulary": vocabulary}
    config = parse(merge(settings, {"model": sizes}), "the benchmark")
    (folder / "config.toml").write_text(config.to_toml(), encoding="utf-8")
    blocks = blocks_of(corpus, options)
    write(blocks, folder / "batches.npz")

    def job(variant: str) -> Job:
        return Job(
            variant=variant,
            vocabulary=vocabulary,
            N=config.model.N,
            d_model=config.model.d_model,
            d_ff=config.model.d_ff,
            h=config.model.h,
            dropout=config.model.P_drop,
            eps_ls=config.training.eps_ls,
            peak_rate=PEAK_RATE,
            warmup_steps=WARMUP_STEPS,
            batches=str(folder / "batches.npz"),
            corpus=str(corpus.folder),
            config=str(folder / "config.toml"),
            reference=options.reference,
        )

    workers: dict[str, Worker] = {}
    measured: dict[str, Measured] = {}
    skipped: dict[str, str] = {}
    peaks: list[dict[str, float]] = []
    products = Worker("products", "products", sys.executable, job(""), folder)
    try:
        for name in options.systems:
            system, python = SYSTEMS[name], options.peer.get(name, sys.executable)
            try:
                worker = Worker(name, system.module, python, job(system.variant), folder)
            except (Gone, OSError) as error:
                skipped[name] = str(error)
                say(f"{system.label}: skipped: {error}")
            else:
                workers[name], measured[name] = worker, Measured(worker.about)
        for line in [*(f"block {number}" for number in range(options.rounds + 1)), HELD_OUT]:
            if line != HELD_OUT:
                peaks.append(products.ask(line))
            for name, worker in list(workers.items()):
                try:
                    answer = worker.ask(line)
                except Gone as error:
                    skipped[name] = f"failed at {line}: {error}"
                    say(f"{SYSTEMS[name].label}: {skipped[name]}")
                    del workers[name], measured[name]
                    continue
                if line == HELD_OUT:
                    measured[name].held_out = answer["loss"]
                else:
                    measured[name].blocks.append(answer)
                    say(f"{line}: {SYSTEMS[name].label}: {sum(answer['seconds']):.1f} s")
    finally:
        for worker in (products, *workers.values()):
            worker.end()
    counted = [blocks[str(number)][1:] for number in range(1, options.rounds + 1)]
    return {
        "size": size,
        "model": config.model.model_dump(),
        "tokens": [target_tokens(batches) for batches in counted],
        "useful_flops": [useful_flops(batches, config) for batches in counted],
        "peaks": peaks[1:],
        "systems": measured,
        "skipped": skipped,
    }


def blocks_of(corpus: Corpus, options: argparse.Namespace) -> dict[str, list[Batch]]:
    """Return the batches of each round, warm-up included, and those for the last loss."""
    train = stream(corpus.train, options.tokens)
    blocks = {
        str(number): list(itertools.islice(train, options.updates + 1))
        for number in range(options.rounds + 1)
    }
    blocks[HELD_OUT] = list(itertools.islice(stream(corpus.valid, options.tokens), 2))
    return blocks


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


# Reporting --------------------------------------------------------------------------------------


def report(found: dict[str, Any], rounds: int) -> None:
    """Print the table of one size."""
    systems: dict[str, Measured] = found["systems"]
    speeds = {name: system.rates(found["tokens"]) for name, system in systems.items()}
    shipped = [name for name in systems if SYSTEMS[name].kind == "shipped"]
    best = max(shipped, key=lambda name: statistics.median(speeds[name]), default=None)
    tuned = "marian-tuned" if "marian-tuned" in systems else None
    c = found["model"]
    print(
        f"\nSize {found['size']}: d_model {c['d_model']}, d_ff {c['d_ff']}, h {c['h']}, "
        f"N {c['N']}, {c['target_vocabulary']:,} pieces. Median of {rounds} rounds (least-most). "
        "Products alone: "
        + ", ".join(
            f"{statistics.median(peak[dtype] for peak in found['peaks']):.0f} GFLOP/s in {dtype}"
            for dtype in ("float32", "bfloat16")
        )
    )
    print(
        "\n| system | target tokens/s | against the best as shipped | against Marian tuned by hand "
        "| peak RSS, MiB | useful GFLOP/s | of the float32 peak | of the bfloat16 peak "
        "| loss, held out |\n|---|---|---|---|---|---|---|---|---|"
    )
    for name, system in systems.items():
        flops = system.rates([flops / 1e9 for flops in found["useful_flops"]])
        shares = {
            dtype: per_round(flops, [peak[dtype] for peak in found["peaks"]], "{:.0%}")
            for dtype in ("float32", "bfloat16")
        }
        if SYSTEMS[name].precision == "bfloat16":
            shares["float32"] = "-"
        cells = [
            SYSTEMS[name].label + (" (the best as shipped)" if name == best else ""),
            spread(speeds[name], "{:,.0f}"),
            per_round(speeds[name], speeds[best], "{:.2f}") if best else "-",
            per_round(speeds[name], speeds[tuned], "{:.2f}") if tuned else "-",
            f"{system.blocks[-1]['peak_mib']:,.0f}",
            f"{statistics.median(flops):.0f}",
            shares["float32"],
            shares["bfloat16"],
            f"{system.held_out:.3f}",
        ]
        print("| " + " | ".join(cells) + " |")
    for name, reason in found["skipped"].items():
        print(f"| {SYSTEMS[name].label} | skipped: {reason} |" + " |" * 7)


def per_round(values: Sequence[float], others: Sequence[float], form: str) -> str:
    return spread([a / b for a, b in zip(values, others, strict=True)], form)


def spread(values: Sequence[float], form: str) -> str:
    median, least, most = statistics.median(values), min(values), max(values)
    return f"{form.format(median)} ({form.format(least)}-{form.format(most)})"


def processor() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n"):
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return "unknown"


def interpreters(pairs: Sequence[str], parser: argparse.ArgumentParser) -> dict[str, str]:
    """Return the interpreter of each peer from `NAME=PYTHON`."""
    found = {}
    for pair in pairs:
        name, equals, python = pair.partition("=")
        if not equals or name not in SYSTEMS:
            parser.error(f"--peer {pair}: expected NAME=PYTHON, NAME one of {', '.join(SYSTEMS)}")
        found[name] = os.path.abspath(python)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", nargs="+", choices=list(PRESETS), default=["S"])
    parser.add_argument("--rounds", type=int, default=5, help="after one round of warm-up")
    parser.add_argument("--updates", type=int, default=6, help="counted updates of a block")
    parser.add_argument("--tokens", type=int, default=4096, help="padded target tokens of a batch")
    parser.add_argument("--systems", nargs="+", choices=list(SYSTEMS), default=list(SYSTEMS))
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=PYTHON")
    parser.add_argument("--reference", default="", help="checkout of the reference port")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    options.peer = interpreters(options.peer, parser)
    options.reference = os.path.abspath(options.reference) if options.reference else ""
    if options.rounds < 1 or options.updates < 1:
        parser.error("--rounds and --updates must be at least 1")
    if not os.environ.get("TRANSDUCE_DATA"):
        sys.exit("set TRANSDUCE_DATA to the folder of the data sets")
    results = []
    for size in options.size:
        try:
            with tempfile.TemporaryDirectory() as name:
                found = measure(size, options, Path(name))
        except TransduceError as error:
            sys.exit(str(error))
        report(found, options.rounds)
        found["systems"] = {name: asdict(system) for name, system in found["systems"].items()}
        results.append(found)
    if options.json:
        threads = {
            system["about"]["threads"] for found in results for system in found["systems"].values()
        }
        record = {
            "date": date.today().isoformat(),
            "processor": processor(),
            "threads": sorted(threads),
            "rounds": options.rounds,
            "updates": options.updates,
            "tokens": options.tokens,
            "sizes": results,
        }
        options.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
