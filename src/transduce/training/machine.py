"""What training makes of the machine: its memory, its threads, its fastest number type."""

import ctypes
import os
import platform
import time
from pathlib import Path
from typing import Literal

import torch
from torch.nn import functional

# What is compiled for each shape of a product is kept in two places, oneDNN's own and that of its
# wrapper in torch, 1,024 times in each, which is gigabytes after a while (and compiling takes 0.2
# ms). Read at the first product of a process, hence set here.
os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "64")
os.environ.setdefault("LRU_CACHE_CAPACITY", "64")

LEAST_TOKENS = 256
"""A part of a batch smaller than this costs more in the calling than in the computing."""
CONTAINER_LIMITS = [
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
]
MOST_WORKERS = 8
"""More threads than this wait for the interpreter's lock too often."""


def keep_pages() -> None:
    """Have glibc keep freed memory instead of unmapping it: each update needs the same again."""
    if platform.system() == "Linux" and platform.libc_ver()[0] == "glibc":
        M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8
        libc = ctypes.CDLL(None)
        libc.mallopt(M_MMAP_THRESHOLD, 32 << 20)  # the largest that glibc takes
        libc.mallopt(M_TRIM_THRESHOLD, (1 << 31) - 1)
        libc.mallopt(M_ARENA_MAX, 1)


def only_deterministic() -> None:
    """Have GPUs compute only in ways that give the same bits again (on CPUs all of ours do)."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)


def pick_workers(device: torch.device, tokens: int) -> int:
    """Return into how many parts a batch of `tokens` tokens is divided, a thread for each.

    As many as there are threads, as long as the parts stay large enough; else a divisor.
    """
    if device.type != "cpu":
        return 1
    threads = torch.get_num_threads()
    most = max(1, min(threads, MOST_WORKERS, tokens // LEAST_TOKENS))
    return max(count for count in range(1, most + 1) if threads % count == 0)


def pick_precision(
    precision: str, device: torch.device, width: int
) -> Literal["float32", "bfloat16"]:
    """Return what `auto` means: bfloat16 where it multiplies clearly faster.

    Args:
        precision: what was asked for.
        device: where training will be.
        width: d_model: the size of the products that are tried.
    """
    if precision != "auto":
        return "bfloat16" if precision == "bfloat16" else "float32"
    if device.type == "cuda":
        fast = torch.cuda.is_bf16_supported(including_emulation=False)
    elif device.type == "cpu" and bfloat16_instructions():
        fast = speed(torch.bfloat16, width) > 1.2 * speed(torch.float32, width)
    else:
        fast = False
    return "bfloat16" if fast else "float32"


def bfloat16_instructions() -> bool:
    """Say whether the processor has instructions for bfloat16."""
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


def speed(kind: torch.dtype, width: int, rows: int = 1024) -> float:
    """Return the operations per second of a product such as a feed-forward layer's: the best try.

    The best of several tries is what the machine can do; the others tell what else it was doing.
    """
    width = min(width, 1024)
    x, W = torch.ones(rows, width, dtype=kind), torch.ones(4 * width, width, dtype=kind)
    best = float("inf")
    for _ in range(20):
        before = time.perf_counter()
        functional.linear(x, W)
        best = min(best, time.perf_counter() - before)
    return 2 * rows * 4 * width * width / best


def memory_of(device: torch.device) -> int:
    """Return the bytes of memory that the device has in all, or that a container may use of it."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in CONTAINER_LIMITS:
        try:
            memory = min(memory, int(path.read_text(encoding="ascii")))
        except (OSError, ValueError):  # no such file, or "max"
            continue
    return memory


def processor() -> str:
    """Return what this machine's processor calls itself."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
