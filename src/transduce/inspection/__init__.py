"""What a model does and what its parts are worth: measured, drawn, explained."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transduce.decoding.translator import Translator

__all__ = ["trace"]


def trace(translator: "Translator", line: str, target: str | None = None) -> dict[str, Any]:
    """Return the trace of a sentence as a JSON object, as `trace.schema.json` describes it.

    Args:
        translator: what `transduce.load` returns.
        line: the source.
        target: is forced; otherwise the output is searched for, and the search recorded.

    Raises:
        UsageError: if there is nothing to see.
    """
    from transduce.inspection import tracing

    return tracing.as_json(tracing.trace(translator, line, target))
