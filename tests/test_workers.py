"""Workers: results in the order of the jobs, few jobs ahead, and no process that stays behind."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from transduce.data.workers import Workers, processors
from transduce.errors import TransduceError, UsageError

PID = "__import__('os').getpid()"


def counted(jobs: list[str], taken: list[str]) -> Iterator[str]:
    for job in jobs:
        taken.append(job)
        yield job


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("jobs", [0, 1, 2, 3, 10])
def test_results_come_in_order(count: int, jobs: int) -> None:
    """Also where the first take longest."""
    slow = [f"__import__('time').sleep({0.02 * (jobs - i)}) or {i}" for i in range(jobs)]
    taken: list[str] = []
    with Workers(count) as workers:
        for done, result in enumerate(workers.ordered(eval, counted(slow, taken))):
            assert result == done
            assert len(taken) - done <= count + 1
    assert taken == slow


def test_a_single_job_starts_no_process() -> None:
    with Workers(4) as workers:
        assert list(workers.ordered(eval, iter([PID]))) == [os.getpid()]
        assert workers.alone(eval, PID) == os.getpid()
        assert workers.pool is None


def test_one_worker_is_this_process() -> None:
    with Workers(1) as workers:
        assert set(workers.ordered(eval, iter([PID] * 3))) == {os.getpid()}


def test_several_workers_are_others_and_end() -> None:
    with Workers(2) as workers:
        pids = set(workers.ordered(eval, iter([PID] * 4)))
        assert os.getpid() not in pids and len(pids) <= 2
        assert workers.alone(eval, PID) not in (os.getpid(), None)
        again = set(workers.ordered(eval, iter([PID])))
        assert os.getpid() not in again
    assert not any(running(pid) for pid in pids | again)


def test_as_many_as_processors() -> None:
    assert Workers(0).count == processors() >= 1


def test_processors_where_affinity_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 5)
    assert processors() == 5
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert processors() == 1


def failing(good: int) -> Iterator[str]:
    for i in range(good):
        yield str(i)
    raise UsageError("no more of these")


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("good", [0, 1, 2, 5])
def test_an_error_of_the_jobs_passes(count: int, good: int) -> None:
    with pytest.raises(UsageError, match="no more of these"), Workers(count) as workers:
        list(workers.ordered(eval, failing(good)))


@pytest.mark.parametrize("count", [1, 2])
def test_an_error_in_a_job_passes(count: int) -> None:
    jobs = ["1", "2", "int('x')", "4"]
    with pytest.raises(ValueError, match="invalid literal"), Workers(count) as workers:
        list(workers.ordered(eval, iter(jobs)))


def test_errors_of_ours_keep_kind_and_words() -> None:
    job = "exec('from transduce.errors import UsageError; raise UsageError(\"wrong, so wrong\")')"
    with pytest.raises(UsageError, match="wrong, so wrong"), Workers(2) as workers:
        list(workers.ordered(eval, iter([job, job])))


def test_a_worker_that_vanishes() -> None:
    """As the system ends it where memory is full."""
    with pytest.raises(TransduceError, match=r"memory.*data.workers = 1"), Workers(2) as workers:
        list(workers.ordered(os._exit, iter([9] * 20)))


def test_an_error_ends_workers_at_once() -> None:
    started = time.monotonic()
    with pytest.raises(RuntimeError), Workers(2) as workers:
        results = workers.ordered(eval, iter(["1", *["__import__('time').sleep(60)"] * 3]))
        assert next(results) == 1
        raise RuntimeError
    assert time.monotonic() - started < 20


# --- the parent's end ----------------------------------------------------------------------------

SCRIPT = """
import signal, sys, time
from transduce.data.workers import Workers
if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores it
    with Workers(2) as workers:
        jobs = ["__import__('os').getpid()"] * 2 + [sys.argv[1]] * 4
        for result in workers.ordered(eval, iter(jobs)):
            print(result, flush=True)
"""
SLEEP = "__import__('time').sleep(60)"
# sentencepiece at work keeps all other threads of its process waiting.
BUSY = "__import__('ctypes').PyDLL(None).sleep(60)"


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def children(pid: int) -> set[int]:
    """Return all processes that a process started, and those that these did."""
    found: set[int] = set()
    try:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            found |= {int(child) for child in (thread / "children").read_text().split()}
    except (FileNotFoundError, ProcessLookupError):
        return found
    return found.union(*(children(child) for child in found))


def start(tmp_path: Path, job: str) -> tuple["subprocess.Popen[str]", set[int]]:
    """Start a process whose workers have begun a job; return it and all its children."""
    (tmp_path / "script.py").write_text(SCRIPT)
    process = subprocess.Popen(
        [sys.executable, tmp_path / "script.py", job],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout
    pids = {int(process.stdout.readline()) for _ in range(2)}
    time.sleep(0.3)
    found = children(process.pid)
    assert pids <= found
    return process, found


def all_end(pids: set[int], seconds: float = 5) -> bool:
    deadline = time.monotonic() + seconds
    while any(running(pid) for pid in pids):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


needs_proc = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")


@needs_proc
@pytest.mark.parametrize("job", [SLEEP, BUSY])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_workers_end_with_a_parent_that_is_killed(
    tmp_path: Path, job: str, number: signal.Signals
) -> None:
    process, pids = start(tmp_path, job)
    process.send_signal(number)
    process.communicate(timeout=10)
    assert all_end(pids)


@needs_proc
def test_control_c_shows_nothing_from_workers(tmp_path: Path) -> None:
    """The terminal sends it to all of them; one traceback at most is the parent's own."""
    process, pids = start(tmp_path, SLEEP)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=20)
    assert all_end(pids)
    assert errors.count("Traceback") == errors.count("KeyboardInterrupt") == 1
    assert "Process Spawn" not in errors


def test_a_script_without_a_guard_is_told(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from transduce.data.workers import Workers\n"
        "from transduce.errors import TransduceError\n"
        "try:\n"
        "    with Workers(2) as workers:\n"
        "        list(workers.ordered(str, iter('abcd')))\n"
        "except TransduceError as error:\n"
        "    print('SAID', error)\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60)
    assert "SAID" in done.stdout and "__main__" in done.stdout
