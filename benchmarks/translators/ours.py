"""Our torch engine, from lines of text to lines of text, as `transduce translate` uses it."""

from pathlib import Path

from transduce.decoding.translator import opened
from translators.protocol import Ids, Job, Translate, serve


def build(variant: str, job: Job) -> Translate:
    settings = {"device": "cpu", "decoding": {"precision": variant, "batch_tokens": 10**9}}
    _, translator = opened([Path(job.model)], settings)

    def translate(numbers: list[int], beam: int) -> list[Ids]:
        found = translator.translate([job.lines[i] for i in numbers], beam_size=beam)
        return [translator.target.encode(translation.text) for translation in found]

    return translate


if __name__ == "__main__":
    serve(build, "transduce")
