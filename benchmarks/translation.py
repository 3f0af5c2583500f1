"""Translation speed beside peers: one trained model, the same sentences and machine, in turns.

Work: the 1,000 sentences of Multi30k's test 2016, en-de, with a model of size S (d_model 256, d_ff
1,024, 4 heads, 3 + 3 layers, joint BPE of 8,000), trained by

    transduce train benchmarks/translation.toml --out RUN

Each system is a process of its own, in the interpreter given with --peer, with the weights of that
model. OpenNMT-py, eole (pre-norm) and the reference port (norms of its own) cannot take them: they
have random ones of the same sizes, and their outputs end where ours end (all those of a batch at
their mean length). All translate batches of sentences of like length, of the size that was the
fastest for each in a first round, and then take turns; the first 100 sentences are also translated
one by one. Ours and plain CTranslate2 read and write text, the others get and give pieces.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import torch
from translators.protocol import BEAMS

import transduce
from transduce.data.files import read_lines
from transduce.decoding.translator import Translator
from transduce.evaluation.metrics import evaluate
from transduce.model_folder import find_model, load_model, weights

HERE = Path(__file__).resolve().parent
SIZES = (16, 32, 64, 128, 256)


@dataclass
class System:
    """Something that is measured: which worker, and what came out."""

    title: str
    worker: str
    variant: str
    interpreter: str = "ours"
    sentences: int = 1000
    sizes: tuple[int, ...] = SIZES
    size: dict[int, int] = field(default_factory=dict)
    seconds: dict[int, list[float]] = field(default_factory=dict)
    milliseconds: dict[int, list[float]] = field(default_factory=dict)
    outputs: dict[int, list[list[int] | str]] = field(default_factory=dict, repr=False)
    bleu: dict[int, float | None] = field(default_factory=dict)
    peak_mib: float = 0.0
    versions: dict[str, str] = field(default_factory=dict)
    skipped: str = ""


SYSTEMS = [
    System("ours, ctranslate2 in int8, set by itself", "ours", "ctranslate2 int8", sizes=(1000,)),
    System(
        "ours, ctranslate2 in float32, set by itself", "ours", "ctranslate2 float32", sizes=(1000,)
    ),
    System(
        "the same in int8 with a shortlist", "ours", "ctranslate2 int8 shortlist", sizes=(1000,)
    ),
    System("CTranslate2, int8, default use", "ctranslate2", "default", sizes=(64,)),
    System("CTranslate2, int8, 2 × 1 thread", "ctranslate2", "int8 2 1"),
    System("CTranslate2, int8, 1 × 2 threads", "ctranslate2", "int8 1 2"),
    System("CTranslate2, float32, 2 × 1 thread", "ctranslate2", "float32 2 1"),
    System("CTranslate2, float32, 1 × 2 threads", "ctranslate2", "float32 1 2"),
    System("ours, bfloat16", "ours", "bfloat16"),
    System("ours, float32", "ours", "float32"),
    System("Hugging Face generate, float32", "marian", "float32"),
    System("Hugging Face generate, bfloat16", "marian", "bfloat16"),
    System("JoeyNMT, float32", "joeynmt", "float32", "joeynmt", 200, (64,)),
    System("OpenNMT-py, float32", "opennmt", "float32", "opennmt"),
    System("eole, float32", "eole", "float32", "eole"),
    System("the reference port, float32", "reference", "float32", "ours", 100, (16,)),
]


class Worker:
    """A system's process."""

    def __init__(self, system: System, interpreter: str, job: Path) -> None:
        command = [interpreter, "-m", f"translators.{system.worker}", system.variant, str(job)]
        self.process = subprocess.Popen(
            command, cwd=HERE, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def ask(self, line: str = "") -> dict[str, Any]:
        """Send a line, if any, and return the answer to it."""
        assert self.process.stdin and self.process.stdout
        if line:
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
        said = self.process.stdout.readline()
        if not said:
            return {"skipped": f"ended with status {self.process.wait()}"}
        found: dict[str, Any] = json.loads(said)
        return found

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait()


def write_job(translator: Translator, folder: Path, lines: list[str], options: Any) -> Path:
    """Write what the workers need."""
    _, model, _ = load_model(options.model)
    arrays = {name: tensor.numpy() for name, tensor in weights(model).items()}
    np.savez(folder / "weights.npz", **arrays)  # type: ignore[arg-type] # its stub is confused
    outputs = translator.translate(lines, beam_size=1)
    config = model.config
    job = {
        "model": str(find_model(options.model).resolve()),
        "weights": str(folder / "weights.npz"),
        "sources": translator.source.encode_lines(lines),
        "lines": lines,
        "lengths": [len(translation.hypotheses[0].tokens) for translation in outputs],
        "vocabulary": config.target_vocabulary,
        "N": config.N_encoder,
        "d_model": config.d_model,
        "d_ff": config.d_ff,
        "h": config.h,
        "alpha": translator.decoding.alpha,
        "max_extra": translator.decoding.max_extra,
        "reference": options.reference,
    }
    (folder / "job.json").write_text(json.dumps(job))
    return folder / "job.json"


def compare(options: Any, folder: Path) -> list[System]:
    """Measure every system, in turns."""
    data = Path(os.environ["TRANSDUCE_DATA"]) / "multi30k"
    lines = list(read_lines(data / "test_2016_flickr.en.gz"))
    references = [[line] for line in read_lines(data / "test_2016_flickr.de.gz")]
    translator = transduce.load(options.model, device="cpu")
    job = write_job(translator, folder, lines, options)
    peers = {"ours": sys.executable, **dict(peer.split("=", 1) for peer in options.peer)}
    workers: dict[str, Worker] = {}
    for system in SYSTEMS:
        if system.interpreter not in peers:
            system.skipped = f"no interpreter given (--peer {system.interpreter}=PYTHON)"
            continue
        worker = Worker(system, peers[system.interpreter], job)
        said = worker.ask()
        system.skipped, system.versions = said.get("skipped", ""), said.get("versions", {})
        if system.skipped:
            worker.close()
        else:
            workers[system.title] = worker
    active = [system for system in SYSTEMS if system.title in workers]
    for system in active:
        tune(system, workers[system.title])
    for number in range(options.rounds):
        for beam in BEAMS:
            for system in active:
                said = workers[system.title].ask(
                    f"batches {system.size[beam]} {beam} {system.sentences}"
                )
                system.seconds.setdefault(beam, []).append(said["seconds"])
                system.outputs[beam], system.peak_mib = said["outputs"], said["peak_mib"]
                rate = system.sentences / said["seconds"]
                print(f"round {number + 1}: {system.title}, beam {beam}: {rate:.0f}/s", flush=True)
            for system in active:
                said = workers[system.title].ask(f"alone {options.alone} {beam}")
                system.milliseconds.setdefault(beam, []).extend(said["milliseconds"])
    for beam in BEAMS:
        for system in active:
            texts = [
                one if isinstance(one, str) else translator.target.decode(one)
                for one in system.outputs[beam]
            ]
            same_model = system.worker in ("ours", "ctranslate2", "marian", "joeynmt")
            right = references[: len(texts)]
            scores = evaluate(texts, right, ["bleu"]) if same_model else {}
            system.bleu[beam] = scores["bleu"].score if scores else None
    for worker in workers.values():
        worker.close()
    return SYSTEMS


def tune(system: System, worker: Worker) -> None:
    """Find the batch size that is the fastest for each beam, on the first 400 sentences."""
    for beam in BEAMS:
        count = min(400, system.sentences)
        worker.ask(f"batches {system.sizes[0]} {beam} {min(64, count)}")  # warm-up
        if len(system.sizes) == 1:
            system.size[beam] = system.sizes[0]
            continue
        times = {s: worker.ask(f"batches {s} {beam} {count}")["seconds"] for s in system.sizes}
        system.size[beam] = min(times, key=lambda s: times[s])


def table(systems: Sequence[System]) -> list[str]:
    """Return the lines of a table, speeds also as ratios to Hugging Face's as shipped."""
    rows = [
        "| system | greedy, sentences/s | beam 4 | × | BLEU | one sentence, p50 / p95 ms | beam 4 "
        "| MiB |",
        "|---|---|---|---|---|---|---|---|",
    ]
    shipped = [s for s in systems if (s.worker, s.variant) == ("marian", "float32")]
    usual = shipped[0] if shipped else systems[0]
    for system in systems:
        if system.skipped:
            rows.append(f"| {system.title} | skipped: {system.skipped} |")
            continue
        cells = []
        for beam in BEAMS:
            rates = [system.sentences / seconds for seconds in system.seconds[beam]]
            middle = statistics.median(rates)
            cells.append(f"{middle:,.0f} ({min(rates):,.0f}-{max(rates):,.0f})")
        ratios = " / ".join(f"{ratio(system, usual, beam):.2f}" for beam in BEAMS)
        bleu = " / ".join("-" if b is None else f"{b:.2f}" for b in system.bleu.values())
        alone = []
        for beam in BEAMS:
            times = sorted(system.milliseconds[beam])
            p95 = times[min(len(times) - 1, round(0.95 * len(times)))]
            alone.append(f"{statistics.median(times):.1f} / {p95:.1f}")
        rows.append(
            f"| {system.title} | {cells[0]} | {cells[1]} | {ratios} | {bleu} | {alone[0]} "
            f"| {alone[1]} | {system.peak_mib:,.0f} |"
        )
    return rows


def ratio(system: System, other: System, beam: int) -> float:
    """Return how much faster a system is than another: the median over the rounds."""
    if other.skipped:
        return float("nan")
    pairs = zip(system.seconds[beam], other.seconds[beam], strict=True)
    share = system.sentences / other.sentences
    return statistics.median(share * theirs / ours for ours, theirs in pairs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, help="the run of benchmarks/translation.toml")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--alone", type=int, default=100, help="sentences translated one by one")
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=PYTHON")
    parser.add_argument("--reference", default="", help="checkout of the reference port")
    parser.add_argument("--only", nargs="+", help="workers to measure")
    parser.add_argument("--without", nargs="+", default=[], help="texts in titles of others")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if not os.environ.get("TRANSDUCE_DATA"):
        sys.exit("set TRANSDUCE_DATA to the folder of the data sets")
    SYSTEMS[:] = [
        system
        for system in SYSTEMS
        if (not options.only or system.worker in options.only)
        and not any(text in system.title for text in options.without)
    ]
    record: dict[str, Any] = {
        "date": date.today().isoformat(),
        "machine": platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }
    with tempfile.TemporaryDirectory() as name:
        systems = compare(options, Path(name))
    print("\n".join(table(systems)))
    for system in systems:
        system.outputs = {}
    record["systems"] = [asdict(system) for system in systems]
    if options.json:
        options.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
