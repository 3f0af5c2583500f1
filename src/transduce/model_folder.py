"""What a model folder and a run hold, and how they are read and written.

A model folder stands alone:

    config.toml          every resolved key
    model.safetensors    float32; tied matrices once, under the first of their names
    joint.spm, or source.spm and target.spm
    README.md            the model card

A run holds `config.toml`, `metrics.jsonl`, `samples.jsonl`, `corpus/`, `checkpoints/step-N/` and
`model/`, the model folder. Nothing that is read can execute: tensors, TOML and JSON only. Files are
written beside their place, flushed, and then renamed, so a reader finds the old or the new one,
never half; the two logs grow line by line.
"""

import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from transduce.config import Config, ModelConfig, parse, read_toml
from transduce.data.corpus import load_tokenizers, save_tokenizers
from transduce.data.files import fingerprint
from transduce.data.tokenizer import Tokenizer
from transduce.errors import TransduceError, UsageError
from transduce.model import Transformer

CONFIG, WEIGHTS, CARD = "config.toml", "model.safetensors", "README.md"
METRICS, SAMPLES = "metrics.jsonl", "samples.jsonl"
CORPUS, CHECKPOINTS, MODEL = "corpus", "checkpoints", "model"
REAL = frozenset({torch.float64, torch.float32, torch.float16, torch.bfloat16})
"""The types that weights may have."""
POINTER = b"version https://git-lfs."
"""How a file begins that Git leaves in the place of a large one."""


def write_file(path: Path, content: bytes) -> None:
    """Put `content` at `path` in one go: written beside it, flushed to disk, then renamed.

    Raises:
        TransduceError: if the disk is full or the folder not writable; what was there stays.
    """
    beside = path.with_name(f".{path.name}.part")
    try:
        with open(beside, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise TransduceError(f"cannot write {path}: {error.strerror}") from None


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Give a folder to write into that becomes `path` in one go, or vanishes if something fails.

    Raises:
        UsageError: if there is something at `path` already.
        TransduceError: if it cannot be written.
    """
    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        raise UsageError(f"{path} is there already: give another --out")
    beside = (whole := path.resolve()).with_name(f".{whole.name}.part")
    try:
        shutil.rmtree(beside, ignore_errors=True)
        beside.mkdir(parents=True)
        yield beside
        os.replace(beside, whole)
    except OSError as error:
        raise TransduceError(f"cannot write {path}: {error.strerror}") from None
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def weights(model: nn.Module) -> dict[str, Tensor]:
    """Return the parameters by name, float32 on the CPU; tied ones once."""
    return {
        name: parameter.detach().to("cpu", torch.float32).contiguous()
        for name, parameter in model.named_parameters()
    }


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors as safetensors, in one go."""
    write_file(path, safetensors.torch.save(dict(tensors)))


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read a safetensors file.

    Raises:
        TransduceError: if it is missing, cut short or something else.
    """
    check_fetched(path)
    try:
        return safetensors.torch.load_file(path)
    except (safetensors.SafetensorError, OSError, ValueError, KeyError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise TransduceError(f"cannot read {path}: {reason}") from None


def check_fetched(path: Path) -> None:
    """Refuse the pointer that a repository has in the place of a file, until that is fetched.

    Raises:
        TransduceError: saying how to fetch it.
    """
    if path.is_file():
        with open(path, "rb") as file:
            if file.read(len(POINTER)) == POINTER:
                raise TransduceError(f"{path} is a pointer, not the file itself: `git lfs pull`")


def check_numbers(tensors: Mapping[str, Tensor], origin: Path) -> None:
    """Refuse tensors that are not dense, not of real numbers, or not finite.

    Raises:
        TransduceError: naming the first.
    """
    for name, tensor in tensors.items():
        dense = tensor.layout is torch.strided and not (tensor.is_nested or tensor.is_meta)
        if not dense or tensor.dtype not in REAL:
            raise TransduceError(f"{origin}: {name} holds no plain numbers, but {tensor.dtype}")
        if not tensor.isfinite().all():
            raise TransduceError(
                f"{origin}: not all numbers of {name} are finite; is the file damaged, or did the "
                "training diverge?"
            )


def outlined(config: ModelConfig, tensors: Mapping[str, Tensor], origin: Path) -> Transformer:
    """Return a model that takes no memory yet, for tensors that are to be its weights.

    Raises:
        TransduceError: if it is described far larger than they are.
    """
    if max(config.N_encoder, config.N_decoder) > len(tensors):
        raise TransduceError(f"{origin}: {len(tensors)} tensors are too few for so many layers")
    try:
        with torch.device("meta"):
            return Transformer(config)
    except RuntimeError:
        raise TransduceError(f"{origin}: no weights are as large as [model] says") from None


def weights_digest(folder: Path) -> str:
    """Return the SHA-256 of a model folder's weights; an unchanged file is read once."""
    path = folder / WEIGHTS
    there = path.stat()
    return _digest(str(path), there.st_size, there.st_mtime_ns, there.st_ino)


@cache
def _digest(path: str, *identity: int) -> str:
    return fingerprint(path)


def check_fit(model: nn.Module, tensors: Mapping[str, Tensor], origin: Path) -> None:
    """Refuse tensors that have not exactly the names and shapes of a model's parameters.

    Raises:
        TransduceError: listing what is missing, superfluous or of another shape.
    """
    parameters = dict(model.named_parameters())
    problems = [f"missing: {name}" for name in parameters.keys() - tensors.keys()]
    problems += [f"unknown: {name}" for name in tensors.keys() - parameters.keys()]
    problems += [
        f"{name} is {list(tensors[name].shape)}, expected {list(parameters[name].shape)}"
        for name in parameters.keys() & tensors.keys()
        if tensors[name].shape != parameters[name].shape
    ]
    if problems:
        more = f" and {len(problems) - 5} more" if len(problems) > 5 else ""
        raise TransduceError(
            f"{origin} does not fit its config.toml: {'; '.join(sorted(problems)[:5])}{more}"
        )


def set_weights(model: nn.Module, tensors: Mapping[str, Tensor], origin: Path) -> None:
    """Copy tensors into a model.

    Raises:
        TransduceError: if they do not fit, or are not finite.
    """
    check_fit(model, tensors, origin)
    check_numbers(tensors, origin)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(tensors[name])


def average(tensors: Iterable[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Return the mean of several sets of weights (§6.1), summed in float64.

    Raises:
        TransduceError: if their names or shapes differ.
    """
    total: dict[str, Tensor] = {}
    count = 0
    for one in tensors:
        if count and {k: v.shape for k, v in one.items()} != {k: v.shape for k, v in total.items()}:
            raise TransduceError("these checkpoints are not of one model: names or shapes differ")
        for name, tensor in one.items():
            wide = tensor.to(torch.float64)
            total[name] = total[name] + wide if count else wide
        count += 1
    return {name: (tensor / count).to(torch.float32) for name, tensor in total.items()}


def find_model(path: Path) -> Path:
    """Return the model folder that `path` means: itself, or a run's `model/`.

    Raises:
        TransduceError: if neither holds a model.
    """
    for folder in (path, path / MODEL):
        if (folder / WEIGHTS).is_file():
            return folder
    if not path.exists():
        raise TransduceError(f"{path} does not exist")
    raise TransduceError(
        f"{path} is no model folder: neither it nor {path / MODEL} holds {WEIGHTS}"
    )


def save_model(
    folder: Path,
    config: Config,
    tensors: Mapping[str, Tensor],
    tokenizers: tuple[Tokenizer, Tokenizer],
    card: str,
) -> None:
    """Write a complete model folder, or replace the one that is there (the weights last)."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        save_tokenizers(folder, *tokenizers)
    except OSError as error:
        raise TransduceError(f"cannot write {folder}: {error.strerror}") from None
    write_file(folder / CONFIG, config.to_toml().encode())
    write_file(folder / CARD, card.encode())
    write_tensors(folder / WEIGHTS, tensors)


def load_config(folder: Path) -> Config:
    """Read the `config.toml` of a model folder or a run."""
    return parse(read_toml(folder / CONFIG), str(folder / CONFIG))


def load_settings(path: Path) -> tuple[Config, tuple[Tokenizer, Tokenizer]]:
    """Read what a model folder holds beside the weights: its configuration and tokenizers.

    Raises:
        TransduceError: naming the file that is missing, broken or does not fit the others.
    """
    folder = find_model(path)
    config = load_config(folder)
    tokenizers = load_tokenizers(folder, config.tokenizer, config.data.normalization)
    sizes = (config.model.source_vocabulary, config.model.target_vocabulary)
    if (len(tokenizers[0]), len(tokenizers[1])) != sizes:
        raise TransduceError(
            f"{folder}: the tokenizers have {len(tokenizers[0])} and {len(tokenizers[1])} pieces, "
            f"but {CONFIG} says {sizes[0]} and {sizes[1]}"
        )
    return config, tokenizers


def load_model(path: Path) -> tuple[Config, Transformer, tuple[Tokenizer, Tokenizer]]:
    """Read a model folder: its configuration, the model (in evaluation mode) and tokenizers.

    Raises:
        TransduceError: naming the file that is missing, broken or does not fit the others.
    """
    folder = find_model(path)
    config, tokenizers = load_settings(folder)
    tensors = read_tensors(folder / WEIGHTS)
    model = outlined(config.model, tensors, folder / WEIGHTS)
    check_fit(model, tensors, folder / WEIGHTS)  # before memory is taken
    model.to_empty(device="cpu").tie()
    set_weights(model, tensors, folder / WEIGHTS)
    return config, model.eval(), tokenizers
