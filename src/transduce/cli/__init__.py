"""The command: each verb reads its arguments, calls one function, and prints.

Data goes to stdout, everything else to stderr. torch is imported only when a verb needs it.
"""

import os
import sys

from cyclopts import CycloptsError

from transduce.cli import data, studies, training, using
from transduce.cli.arguments import INTERRUPTED, app, command_name, say, with_standard_input
from transduce.errors import TransduceError, UsageError

__all__ = ["app", "command_name", "main", "with_standard_input"]
VERBS = (data, training, using, studies)
"""Their modules tell `app` of them."""


def main() -> None:
    """Run the command and exit: 0 on success, 2 on wrong usage, 1 on any other failure."""
    try:
        status = app(
            with_standard_input(sys.argv[1:]),
            exit_on_error=False,
            print_error=False,
            result_action="return_value",
        )
        sys.stdout.flush()
    except CycloptsError as error:
        say(f"transduce: {error}")
        status = UsageError.status
    except TransduceError as error:
        say(f"transduce: {error}")
        status = error.status
    except KeyboardInterrupt:
        say("transduce: interrupted")
        status = INTERRUPTED
    except UnicodeEncodeError as error:
        say(f"transduce: {error.object[error.start :][:1]!r} is no UTF-8: rename what is called so")
        status = 1
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the reader left; nothing to report
        status = 1
    except OSError as error:
        say(f"transduce: {error.filename or ''} {error.strerror or error}".replace("  ", " "))
        status = 1
    except (MemoryError, RuntimeError) as error:
        from transduce.training.gradients import is_out_of_memory

        if not is_out_of_memory(error):
            raise
        say("transduce: not enough memory: smaller batches, beams or limits need less")
        status = 1
    sys.exit(status or 0)
