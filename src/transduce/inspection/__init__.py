"""What a model does and what its parts are worth: measured, drawn, explained."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transduce.inspection.tracing import trace

__all__ = ["trace"]


def __getattr__(name: str) -> Any:
    if name == "trace":
        return import_module("transduce.inspection.tracing").trace
    raise AttributeError(f"module 'transduce.inspection' has no attribute {name!r}")
