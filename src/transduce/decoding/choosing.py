"""Which engine translates, in which precision, and why."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import torch

from transduce.config import HIGHER_IS_BETTER, Config, Settings, merge, parse
from transduce.decoding.ctranslate2 import obstacles
from transduce.errors import UsageError
from transduce.exporting.ctranslate2 import library
from transduce.model_folder import find_model, load_config, weights_digest, write_file

VERDICT = "int8.json"
"""What validation said about int8, beside the weights it holds for."""
BOUND = 0.3
"""How much worse than float32 int8 may be by the first metric, of 100."""


@dataclass(frozen=True)
class Verdict:
    """How a model scores in float32 and in int8."""

    metric: str
    float32: float
    int8: float
    sentences: int
    weights: str
    """The digest of the weights."""
    bound: float = BOUND

    @property
    def passes(self) -> bool:
        """Whether int8 is hardly worse, or better."""
        sign = 1 if HIGHER_IS_BETTER[self.metric] else -1
        return sign * (self.float32 - self.int8) <= self.bound

    def __str__(self) -> str:
        return (
            f"{self.metric} {self.int8:.2f} in int8, {self.float32:.2f} in float32, on "
            f"{self.sentences:,} validation items"
        )


def remember(folder: Path, verdict: Verdict) -> None:
    """Write a verdict beside the weights."""
    write_file(folder / VERDICT, (json.dumps(asdict(verdict), indent=1) + "\n").encode())


def remembered(folder: Path) -> Verdict | None:
    """Return the verdict on the weights that are there, if there is one."""
    try:
        verdict = Verdict(**json.loads((folder / VERDICT).read_bytes()))
    except (OSError, ValueError, TypeError):
        return None
    return verdict if verdict.weights == weights_digest(folder) else None


@dataclass(frozen=True)
class Choice:
    """An engine, its precision, and the reasons."""

    engine: Literal["torch", "ctranslate2"]
    precision: str
    reason: str

    @property
    def settings(self) -> Settings:
        """What `opened` is to be told."""
        return {"decoding": {"engine": self.engine, "precision": self.precision}}

    def __str__(self) -> str:
        return f"{self.engine}, {self.precision} ({self.reason})"


def choose(folders: Sequence[Path], settings: Settings, wishes: bool = False) -> Choice:
    """Choose what `decoding.engine` and `decoding.precision` leave open, for translating.

    Args:
        folders: the model, or the models of an ensemble.
        settings: laid over those of the (first) model.
        wishes: whether something is asked of single outputs: a prefix, words, other words not.

    Raises:
        UsageError: if an engine is asked for that cannot do what else is asked for.
    """
    folder = find_model(folders[0])
    config = parse(merge(load_config(folder).model_dump(), settings), "the settings")
    asked, precision = config.decoding.engine, config.decoding.precision
    if asked == "torch":
        if config.decoding.shortlist:
            raise UsageError("decoding.shortlist: only ctranslate2 has one, and torch is asked for")
        return Choice("torch", known_to_torch(precision), "asked for")
    against = _against(config, len(folders), wishes)
    if against and asked == "ctranslate2":
        raise UsageError(f"decoding.engine = 'ctranslate2': {against[0]}")
    if against and config.decoding.shortlist:
        raise UsageError(f"decoding.shortlist: only ctranslate2 has one, and {against[0]}")
    if against:
        return Choice("torch", known_to_torch(precision), against[0])
    reason = "asked for" if asked == "ctranslate2" else "the fastest on a CPU"
    verdict = remembered(folder)
    if precision == "auto":
        good = verdict and verdict.passes and "int8" in offered()
        precision = "int8" if good else "float32"
        reason += f"; {verdict or 'int8 was not tried in validation'}"
    elif precision == "float32" and verdict and verdict.passes:
        reason += f"; {verdict}: decoding.precision = auto takes int8"
    if config.decoding.shortlist:
        reason += "; with its shortlist"
    return Choice("ctranslate2", precision, reason)


def known_to_torch(precision: str) -> Literal["float32", "bfloat16"]:
    """Return the precision as the torch engine knows it; float32 unless something is asked for.

    Raises:
        UsageError: if it has no such precision.
    """
    if precision not in ("auto", "float32", "bfloat16"):
        raise UsageError(
            f"decoding.precision = {precision!r}: the torch engine has float32 and bfloat16; "
            "decoding.engine = 'ctranslate2' may have it"
        )
    return "bfloat16" if precision == "bfloat16" else "float32"


def _against(config: Config, models: int, wishes: bool) -> list[str]:
    """Return why CTranslate2 cannot do what is asked for, or should not."""
    if find_spec("ctranslate2") is None:
        return ["the package ctranslate2 is not installed"]
    found = obstacles(config)
    if models > 1:
        found.append("only torch knows ensembles")
    if wishes:
        found.append("only torch knows prefixes, required and forbidden text")
    if config.device != "cpu" and (config.device != "auto" or _there_is_a_gpu()):
        found.append("on a GPU torch computes")
    if config.decoding.precision not in {"auto", *offered()}:
        found.append(f"ctranslate2 has no {config.decoding.precision} here")
    return found


def offered() -> set[str]:
    """Return the precisions that CTranslate2 has on this machine's processor."""
    found: set[str] = library().get_supported_compute_types("cpu")
    return found


def _there_is_a_gpu() -> bool:
    return torch.cuda.is_available() or torch.backends.mps.is_available()
