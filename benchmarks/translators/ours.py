"""Our engines, from lines of text to lines of text, as `transduce translate` uses them.

Variants: a precision of the torch engine, or `ctranslate2` and a precision, which then chooses
threads and batches by itself.
"""

from pathlib import Path

from transduce.config import Settings
from transduce.decoding.translator import opened
from transduce.translating import MANY, tune
from translators.protocol import Ids, Job, Translate, serve


def build(variant: str, job: Job) -> Translate:
    engine, _, precision = variant.rpartition(" ")
    settings: Settings = {
        "device": "cpu",
        "decoding": {
            "engine": engine or "torch",
            "precision": precision,
            "batch_tokens": 0 if engine else 10**9,
        },
    }
    _, translator = opened([Path(job.model)], settings)
    tune(translator, MANY, print)

    def translate(numbers: list[int], beam: int) -> list[Ids]:
        lines = [job.lines[i] for i in numbers]
        found = translator.translate(lines, beam_size=beam, detail="text")
        return translator.target.encode_lines([translation.text for translation in found])

    return translate


if __name__ == "__main__":
    serve(build, "transduce")
