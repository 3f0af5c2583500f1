"""The sequence-to-sequence Transformer for people with their own data and ordinary machines.

    translator = transduce.load("runs/quickstart")
    translator.translate(["transformer"])[0].text

The names below are imported when they are first used, so `import transduce` is quick.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transduce.decoding.outputs import Translation
    from transduce.decoding.requests import Request
    from transduce.decoding.translator import Translator, load
    from transduce.errors import TransduceError
    from transduce.experiment import train

__version__ = "0.1.0"
__all__ = [
    "Request",
    "TransduceError",
    "Translation",
    "Translator",
    "__version__",
    "load",
    "train",
]

_HOMES = {
    "Request": "transduce.decoding.requests",
    "Translation": "transduce.decoding.outputs",
    "Translator": "transduce.decoding.translator",
    "TransduceError": "transduce.errors",
    "load": "transduce.decoding.translator",
    "train": "transduce.experiment",
}

_PARTS = ("inspection", "model")
"""Packages that one may use without importing them by name."""


def __getattr__(name: str) -> Any:
    if name in _PARTS:
        return import_module(f"transduce.{name}")
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'transduce' has no attribute {name!r}")
