"""Our torch engine, from lines of text to lines of text, as `transduce translate` uses it."""

import transduce
from transduce.config import DecodingConfig
from transduce.decoding.engines import TorchEngine
from translators.protocol import Ids, Job, Translate, serve


def build(variant: str, job: Job) -> Translate:
    translator = transduce.load(job.model, device="cpu")
    settings = translator.decoding.model_dump() | {"precision": variant, "batch_tokens": 10**9}
    translator.decoding = DecodingConfig.model_validate(settings)
    assert isinstance(translator.engine, TorchEngine)
    translator.engine = TorchEngine(translator.engine.model, variant)  # type: ignore[arg-type]

    def translate(numbers: list[int], beam: int) -> list[Ids]:
        found = translator.translate([job.lines[i] for i in numbers], beam_size=beam)
        return [translator.target.encode(translation.text) for translation in found]

    return translate


if __name__ == "__main__":
    serve(build, "transduce")
