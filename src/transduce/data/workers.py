"""Several processes that do a row of jobs; results come in the order of the jobs."""

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from itertools import islice
from multiprocessing import get_context
from typing import TypeVar

from transduce.errors import TransduceError

T = TypeVar("T")
J = TypeVar("J")
_PARENT_DEATH_SIGNAL = 1  # of prctl


class Workers:
    """Runs a function on jobs in several processes; results come in the order of the jobs.

    A single job is done in this process. Workers end with the process that started them.

    Args:
        count: how many; 0 for one for each processor.
    """

    def __init__(self, count: int) -> None:
        self.count = count or processors()
        self.pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if self.pool:
            if error is not None:
                for process in list(getattr(self.pool, "_processes", {}).values()):
                    process.terminate()
            self.pool.shutdown(wait=True, cancel_futures=True)

    def ordered(self, function: Callable[[J], T], jobs: Iterator[J]) -> Iterator[T]:
        """Yield `function(job)` for each job, looking only a few jobs ahead."""
        ahead = list(islice(jobs, 2))
        if self.count == 1 or (len(ahead) < 2 and self.pool is None):
            for job in ahead:
                yield function(job)
            for job in jobs:
                yield function(job)
            return
        pending: list[Future[T]] = [self._submit(function, job) for job in ahead]
        while pending:
            pending += [
                self._submit(function, job) for job in islice(jobs, self.count + 1 - len(pending))
            ]
            yield self._result(pending.pop(0))

    def alone(self, function: Callable[[J], T], job: J) -> T:
        """Return `function(job)`, in another process if there are any."""
        return self._result(self._submit(function, job)) if self.pool else function(job)

    def _submit(self, function: Callable[[J], T], job: J) -> "Future[T]":
        if self.pool is None:
            self.pool = ProcessPoolExecutor(
                self.count, get_context("spawn"), initializer=end_with, initargs=(os.getpid(),)
            )
        try:
            with without_interrupts():
                return self.pool.submit(function, job)
        except BrokenProcessPool:
            raise _broken() from None

    def _result(self, future: "Future[T]") -> T:
        try:
            return future.result()
        except BrokenProcessPool:
            raise _broken() from None


@contextmanager
def without_interrupts() -> Iterator[None]:
    """Ignore Ctrl-C for the moment in which a worker may be started.

    An interrupt in the midst of it would leave a worker that nobody waits for or ends; and what is
    ignored now is ignored by the worker from its first moment.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def processors() -> int:
    """Return how many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _broken() -> TransduceError:
    return TransduceError(
        "a process that prepares the corpus ended by itself: is memory full? Try data.workers = 1. "
        "(A script that calls this needs `if __name__ == '__main__':` around its own start.)"
    )


def end_with(parent: int) -> None:
    """End this process when the one that started it is gone, however that happened."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's business

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    if sys.platform == "linux":  # at once, even while a library keeps all threads waiting
        ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    threading.Thread(target=watch, daemon=True).start()
