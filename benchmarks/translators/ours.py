"""Our engines, from lines of text to lines of text, as `transduce translate` uses them.

Variants: a precision of the torch engine, or `ctranslate2` and a precision, which then chooses
threads and batches by itself; behind it `shortlist`, if the model's is to be used.
"""

from pathlib import Path

from transduce.config import Settings, merge
from transduce.decoding.translator import opened
from transduce.translating import MANY, tune
from translators.protocol import BEAMS, Job, Translate, serve


def build(variant: str, job: Job) -> Translate:
    shortlist = variant.endswith(" shortlist")
    engine, _, precision = variant.removesuffix(" shortlist").rpartition(" ")
    settings: Settings = {
        "device": "cpu",
        "decoding": {
            "engine": engine or "torch",
            "precision": precision,
            "shortlist": shortlist,
            "batch_tokens": 0 if engine else 10**9,
        },
    }
    translators = {}
    for beam in BEAMS:
        of_beam: Settings = {"decoding": {"beam_size": beam}}
        _, translators[beam] = opened([Path(job.model)], merge(settings, of_beam))
        tune(translators[beam], MANY, print)

    def translate(numbers: list[int], beam: int) -> list[str]:
        lines = [job.lines[i] for i in numbers]
        return [one.text for one in translators[beam].translate(lines, detail="text")]

    return translate


if __name__ == "__main__":
    serve(build, "transduce")
