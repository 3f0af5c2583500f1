"""What a person sees while a corpus is prepared: a bar on a terminal, else a line now and then."""

import sys
import time
from datetime import timedelta

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


class Counting:
    """Counts something on stderr while it is done.

    Args:
        what: what is done, e.g. "reading the train pairs".
        unit: what is counted.
        total: how many there will be, if that is known.
        before: how many of them were done before.
        quiet_seconds: where no terminal is, one line in so many seconds.
        silent: show nothing.
    """

    def __init__(
        self,
        what: str,
        unit: str,
        total: int | None = None,
        before: int = 0,
        quiet_seconds: float = 15.0,
        silent: bool = False,
    ) -> None:
        self.what, self.unit, self.total, self.quiet_seconds = what, unit, total, quiet_seconds
        self.done = self.before = before
        self.started = self.last_line = time.monotonic()
        self.console = Console(stderr=True, highlight=False, emoji=False, quiet=silent)
        columns = [TextColumn(what), BarColumn(bar_width=24), TextColumn("{task.fields[numbers]}")]
        ends = [
            TimeElapsedColumn(),
            *([TextColumn("left"), TimeRemainingColumn()] if total else []),
        ]
        self.bar = Progress(
            *columns,
            *ends,
            console=self.console,
            disable=silent or not sys.stderr.isatty(),
            transient=True,
        )
        self.task = self.bar.add_task(what, total=total, completed=before, numbers="")

    def __enter__(self) -> "Counting":
        self.bar.start()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.bar.stop()

    def advance(self, count: int) -> None:
        """Count so many more."""
        self.done += count
        rate = (self.done - self.before) / max(1e-9, time.monotonic() - self.started)
        of = f" of {self.total:,}" if self.total else ""
        numbers = f"{self.done:,}{of} {self.unit}, {rate:,.0f}/s"
        self.bar.update(self.task, completed=self.done, numbers=numbers)
        if self.bar.disable and time.monotonic() - self.last_line >= self.quiet_seconds:
            self.last_line = time.monotonic()
            left = f", {self._left(rate)} left" if self.total else ""
            self.console.print(f"{self.what}: {numbers}{left}", markup=False, soft_wrap=True)

    def _left(self, rate: float) -> timedelta:
        left = (self.total or 0) - self.done
        return timedelta(seconds=round(left / max(1e-9, rate)))
