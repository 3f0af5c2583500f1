"""A student beside its teacher: speed and BLEU, in int8 on CTranslate2, in turns.

Both translate the same test pairs as `transduce translate` would, with the threads and batches that
it chooses: greedily and with the teacher's beam; the student also with its shortlist, where
`transduce shortlist` has made one. What a row is compared with is the teacher as it is used, with
its own beam, and the teacher searched in the same way.
"""

import argparse
import json
import platform
import statistics
import time
from dataclasses import asdict, dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

import torch

from transduce.config import Settings
from transduce.decoding.translator import Translator, opened
from transduce.evaluating import items_to_score
from transduce.evaluation.metrics import evaluate
from transduce.exporting.shortlist import FILE
from transduce.model_folder import find_model, load_config
from transduce.translating import MANY, tune


@dataclass
class Way:
    """A model and how it is searched."""

    title: str
    model: Path
    beam_size: int
    shortlist: bool = False
    seconds: list[float] = field(default_factory=list)
    bleu: float = 0.0

    def opened(self) -> Translator:
        """Load it."""
        settings: Settings = {
            "device": "cpu",
            "decoding": {
                "engine": "ctranslate2",
                "precision": "int8",
                "beam_size": self.beam_size,
                "shortlist": self.shortlist,
            },
        }
        _, translator = opened([self.model], settings)
        tune(translator, MANY, print)
        return translator


def ways(teacher: Path, student: Path) -> list[Way]:
    """Return what is measured; first the teacher as it is used."""
    beam = load_config(find_model(teacher)).decoding.beam_size
    found = []
    for size in (beam, 1):
        found.append(Way("teacher", teacher, size))
    for size in (beam, 1):
        found.append(Way("student", student, size))
        if (find_model(student) / FILE).exists():
            found.append(Way("student, shortlist", student, size, shortlist=True))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("teacher", type=Path)
    parser.add_argument("student", type=Path)
    parser.add_argument("--test", nargs="+", required=True, help="test pairs: one file or two")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    config = load_config(find_model(options.teacher))
    asked = items_to_score(config, options.test)
    found = ways(options.teacher, options.student)
    translators = [way.opened() for way in found]
    for translator in translators:
        translator.translate(asked.sources, detail="text")  # memory is touched, caches filled
    for number in range(options.rounds):
        for way, translator in zip(found, translators, strict=True):
            begin = time.perf_counter()
            outputs = translator.translate(asked.sources, detail="text")
            way.seconds.append(time.perf_counter() - begin)
            if number == 0:
                texts = [one.text for one in outputs]
                tokenize = config.evaluation.bleu_tokenize
                way.bleu = evaluate(texts, asked.references, ["bleu"], tokenize)["bleu"].score
    count = len(asked.sources)
    print("| model | beam | sentences/s | × teacher as used | × teacher, same beam | BLEU |")
    print("|---|---|---|---|---|---|")
    for way in found:
        same = next(other for other in found if other.beam_size == way.beam_size)
        rates = [count / seconds for seconds in way.seconds]
        print(
            f"| {way.title} | {way.beam_size} | {statistics.median(rates):,.0f} "
            f"({min(rates):,.0f}-{max(rates):,.0f}) | {ratio(way, found[0]):.2f} "
            f"| {ratio(way, same):.2f} | {way.bleu:.2f} |"
        )
    record: dict[str, Any] = {
        "date": date.today().isoformat(),
        "machine": platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
        "sentences": count,
        "ways": [asdict(way) | {"model": way.model.name} for way in found],
    }
    if options.json:
        options.json.write_text(json.dumps(record, indent=1) + "\n")


def ratio(way: Way, other: Way) -> float:
    """Return how much faster a way is than another: the median over the rounds."""
    return statistics.median(b / a for a, b in zip(way.seconds, other.seconds, strict=True))


if __name__ == "__main__":
    main()
