"""What a person sees while a model trains: a bar on a terminal, plain lines elsewhere."""

import sys
import time
from collections.abc import Mapping
from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)


class Display:
    """Shows the run on stderr; stdout is for data.

    Args:
        steps: number of updates of the whole run.
        done: number of updates done before.
        quiet_seconds: where no terminal is, at most one line of progress in so many seconds.
        silent: show nothing: another process does.
    """

    def __init__(
        self, steps: int, done: int = 0, quiet_seconds: float = 15.0, silent: bool = False
    ) -> None:
        self.console = Console(stderr=True, highlight=False, emoji=False, quiet=silent)
        self.steps = steps
        self.quiet_seconds = quiet_seconds
        self.last_line = time.monotonic()
        self.latest_score = ""
        self.bar = Progress(
            TextColumn("training"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[numbers]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self.console,
            disable=silent or not sys.stderr.isatty(),
        )
        self.task = self.bar.add_task("training", total=steps, completed=done, numbers="")

    def __enter__(self) -> "Display":
        self.bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.bar.stop()

    def update(self, step: int, metrics: Mapping[str, float | int]) -> None:
        """Show the newest numbers of training."""
        numbers = (
            f"{self.latest_score}loss {metrics['loss']:.3f}  rate {metrics['learning_rate']:.2e}  "
            f"{metrics['target_tokens_per_second']:,.0f} tokens/s"
        )
        self.bar.update(self.task, completed=step, numbers=numbers)
        if self.bar.disable and time.monotonic() - self.last_line >= self.quiet_seconds:
            self.last_line = time.monotonic()
            self.say(f"update {step:,} of {self.steps:,}  {numbers}")

    def show_score(self, metric: str, score: float) -> None:
        """Show the newest validation score beside the numbers of training."""
        self.latest_score = f"{metric} {score:.2f}  "

    def say(self, line: str) -> None:
        """Print a line above the bar."""
        self.console.print(line, markup=False, soft_wrap=True)
