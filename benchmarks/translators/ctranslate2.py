"""CTranslate2 by itself over our converted model, set by hand; sentencepiece makes its pieces.

Outputs may be as long as ours of the longest source: left alone, it lets those that do not end go
on to 256 pieces. Variants: `PRECISION WORKERS THREADS`, or `default`: its translator as the
documentation shows it, over a model that was stored in int8.
"""

from pathlib import Path
from tempfile import mkdtemp

import ctranslate2
import sentencepiece

from transduce.exporting.ctranslate2 import convert
from transduce.model_folder import load_model
from translators.protocol import InBatches, Job, serve


def build(variant: str, job: Job) -> InBatches:
    _, model, tokenizers = load_model(Path(job.model))
    folder = Path(mkdtemp())
    convert(model, tokenizers, 1051, folder, "int8" if variant == "default" else "float32")
    if variant == "default":
        translator = ctranslate2.Translator(str(folder))
    else:
        precision, workers, threads = variant.split()
        translator = ctranslate2.Translator(
            str(folder),
            compute_type=precision,
            inter_threads=int(workers),
            intra_threads=int(threads),
        )
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(Path(job.model) / "joint.spm"))

    def translate(numbers: list[int], beam: int, size: int) -> list[str]:
        sources = pieces.encode([job.lines[i] for i in numbers], out_type=str)
        found = translator.translate_batch(
            sources,
            max_batch_size=size,
            max_decoding_length=max(map(len, sources)) + 1 + job.max_extra,
            beam_size=beam,
            length_penalty=job.alpha,
        )
        texts: list[str] = pieces.decode([one.hypotheses[0] for one in found])
        return texts

    return InBatches(translate)


if __name__ == "__main__":
    serve(build, "ctranslate2")
