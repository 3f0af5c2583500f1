"""A model handed to another engine, with proof that it is the same model.

An export is written beside its place, loaded again from there, compared with the torch engine in
float32, and put in its place only if it keeps what it promises. The report goes with it.
"""

import json
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from transduce.config import Config, Settings, merge, parse
from transduce.data.tokenizer import Tokenizer
from transduce.decoding.ctranslate2 import CTranslate2Engine
from transduce.decoding.engines import Engine, TorchEngine
from transduce.decoding.onnx_engine import OnnxEngine
from transduce.decoding.translator import Translator, translator_of
from transduce.errors import TransduceError, UsageError
from transduce.evaluating import Items
from transduce.evaluation.parity import Parity, compare_engines
from transduce.exporting import ctranslate2, huggingface, onnx
from transduce.importing import import_marian
from transduce.model_folder import load_model, new_folder, write_file

Format = Literal["ctranslate2", "onnx", "huggingface"]
REPORT = "parity.json"
"""How the export compares with the model that it was made from."""
QUANTIZATIONS: dict[str, tuple[str, ...]] = {
    "ctranslate2": ctranslate2.QUANTIZATIONS,
    "onnx": ("float32",),
    "huggingface": ("float32",),
}


def export(
    model: Path,
    to: Format,
    out: Path,
    quantization: str = "float32",
    asked: Items | None = None,
    settings: Settings | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> Parity:
    """Write a model as another engine reads it, and prove it.

    Args:
        model: a model folder or a run.
        to: the engine or format.
        out: the folder to write; must not be there, or be empty.
        quantization: the type that matrices are stored in.
        asked: sentences to translate with both; without any, given pairs alone are compared.
        settings: of the search and of scores, laid over the model's.
        say: is told the report, line by line.

    Raises:
        UsageError: if `out` is taken, or there is no such quantization.
        TransduceError: naming what cannot be carried, or which bound of the comparison does not
            hold; nothing is left then.
    """
    if asked is not None and not asked.sources:
        raise TransduceError("nothing to compare: the file has no sentences")
    if quantization not in QUANTIZATIONS[to]:
        raise UsageError(f"--quantization {quantization}: {to} has {', '.join(QUANTIZATIONS[to])}")
    config, exact, tokenizers = load_model(model)
    config = parse(merge(config.model_dump(), settings or {}), "the settings")
    exactly = config.decoding.model_copy(update={"precision": "float32"})
    ours = translator_of(exact, tokenizers, exactly)
    with new_folder(out) as folder:
        if to == "ctranslate2":
            ctranslate2.export(config, exact, tokenizers, folder, quantization)
        else:
            (onnx if to == "onnx" else huggingface).export(config, exact, tokenizers, folder)
        with TemporaryDirectory() as scratch:
            theirs = Translator(
                loaded(to, folder, config, tokenizers, quantization, Path(scratch)),
                tokenizers,
                ours.decoding,
                ours.max_positions,
            )
            items = asked or Items([], [])
            found = compare_engines(
                to,
                quantization,
                ours,
                theirs,
                items.sources,
                items.references,
                config.evaluation.metrics,
                config.evaluation.bleu_tokenize,
                exactly=lambda: TorchEngine(deepcopy(exact).double()),
            )
        for line in [*found.lines(), *differing(found)]:
            say(line)
        say(f"size: {size_of(folder) / 2**20:,.1f} MiB")
        if problems := found.problems():
            raise TransduceError(f"the export is not the same model: {'; '.join(problems)}")
        report = asdict(found) | {"bytes": size_of(folder)}
        text = json.dumps(report, ensure_ascii=False, indent=1) + "\n"
        write_file(folder / REPORT, text.encode())
    return found


def loaded(
    to: Format,
    folder: Path,
    config: Config,
    tokenizers: tuple[Tokenizer, Tokenizer],
    quantization: str,
    scratch: Path,
) -> Engine:
    """Return the engine that computes with an export, read again from its folder."""
    if to == "ctranslate2":
        positions = ctranslate2.positions_needed(config)
        return CTranslate2Engine(folder, tokenizers, quantization, positions)
    if to == "onnx":
        return OnnxEngine(folder)
    import_marian(folder, scratch / "again", lambda line: None)
    _, again, _ = load_model(scratch / "again")
    return TorchEngine(again)


def differing(found: Parity, most: int = 5) -> Sequence[str]:
    """Return lines for outputs that differ, with both scores by the exact model."""
    return [
        f"beam {one.beam_size}: {one.source}\n"
        f"    torch  {one.score:.5f}  {one.ours}\n"
        f"    {found.name}  {one.score_of_theirs:.5f}  {one.theirs}"
        for one in found.differences[:most]
    ] + ([f"... and {len(found.differences) - most:,} more, see {REPORT}"]
         if len(found.differences) > most else [])  # fmt: skip


def size_of(folder: Path) -> int:
    """Return the bytes of all files of a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
