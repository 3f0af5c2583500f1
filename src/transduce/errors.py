"""What the program says when something is wrong: one message, never a traceback.

Raise `TransduceError` with a sentence that says what is wrong, where (file and line), and what to
do about it. The command prints it on stderr and exits with its `status`.
"""

from collections.abc import Iterable
from difflib import get_close_matches


class TransduceError(Exception):
    """A failure whose cause the user can see to: a broken file, a full disk, no convergence."""

    status = 1


class UsageError(TransduceError):
    """The request itself is wrong: an unknown key, a value out of range, options that conflict."""

    status = 2


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return `"; did you mean 'x'?"` for the known name nearest to `name`, or an empty string."""
    known = list(known)
    longer = [other for other in known if name and other.startswith(f"{name}_")]
    nearest = longer or get_close_matches(name, known, n=1, cutoff=0.5)
    return f"; did you mean '{nearest[0]}'?" if nearest else ""
