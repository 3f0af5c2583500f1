"""Training pairs that a model makes: distilled targets, and translations back.

Distilled: the targets of training pairs are replaced by a teacher's outputs (Kim and Rush, 2016,
"Sequence-Level Knowledge Distillation"), which a smaller model learns more easily than what people
wrote. Back: sentences of the target language, which there are more of, get sources from a model of
the other direction (Sennrich et al., 2016, "Improving NMT Models with Monolingual Data").

Each line is a JSON object that training reads as a pair (`src`, `tgt`), with its score and the
number of the line it was made from; where all of them come from stands in a file beside them.
"""

import json
from collections.abc import Callable, Sequence
from datetime import date
from pathlib import Path
from typing import Any, Literal

from transduce import __version__
from transduce.config import Settings
from transduce.data.files import fingerprint, read_lines
from transduce.data.readers import read_pairs
from transduce.decoding.outputs import Translation
from transduce.decoding.requests import Request
from transduce.errors import UsageError
from transduce.model_folder import find_model, weights_digest, write_file
from transduce.translating import (
    check_output,
    count_lines,
    dependence,
    destination,
    opened_to_translate,
    translate_file,
)

Kind = Literal["distilled", "back"]
PROVENANCE = ".provenance.json"


def augment(
    model: Path,
    kind: Kind,
    given: Sequence[str],
    out: Path,
    settings: Settings,
    say: Callable[[str], None],
) -> None:
    """Make pairs of sentences and a model's outputs; started again, it goes on where it stopped.

    Args:
        model: the teacher, or the model of the other direction.
        kind: `distilled`: training pairs are given; `back`: a file of sentences, one a line, in
            the language that the new pairs are to have as targets.
        given: one file, or two aligned ones with pairs.
        out: the file to write (JSONL).
        settings: laid over those of the model.
        say: is told what computes.

    Raises:
        TransduceError: if something cannot be read or written.
        UsageError: as `opened` does, if another file was begun at `out`, or if `out` could not be
            read as pairs or is what is given.
    """
    if out.suffix != ".jsonl":
        raise UsageError(f"--out {out}: its name must end in .jsonl, by which training knows it")
    check_output(out, given)
    count = count_lines(given[0])
    config, translator = opened_to_translate([model], settings, count, say)
    provenance = {
        "kind": kind,
        "model": str(model),
        "weights": weights_digest(find_model(model)),
        "given": {path: fingerprint(path) for path in given if path != "-"},
        "decoding": config.decoding.model_dump(),
        "transduce": __version__,
        "date": date.today().isoformat(),
    }

    def show(translation: Translation, number: int) -> str:
        return json.dumps(record(kind, translation, number), ensure_ascii=False)

    depends_on = dependence([model], kind, config.decoding)
    if kind == "back":
        lines = read_lines(given[0])
    else:
        pairs = given[0] if len(given) == 1 else list(given)
        lines = (pair.src for pair in read_pairs(pairs, config.data))
    requests = (Request(line) for line in lines)
    with destination(out, depends_on) as file:
        if file.lines:
            say(f"going on after line {file.lines:,}")
        translate_file(translator, requests, show, file, 1, count, detail="score")
    write_file(
        out.with_name(out.name + PROVENANCE),
        (json.dumps(provenance, ensure_ascii=False, indent=1) + "\n").encode(),
    )


def record(kind: Kind, translation: Translation, number: int) -> dict[str, Any]:
    """Return the pair that a translation makes."""
    output = translation.hypotheses[0]
    src, tgt = translation.source, output.text
    return {
        "src": src if kind == "distilled" else tgt,
        "tgt": tgt if kind == "distilled" else src,
        "score": round(output.score, 6),
        "log_probability": round(output.log_probability, 6),
        "line": number,
        "flags": list(translation.flags),
    }
