"""What this machine offers: free memory, cores, memory kept between steps, and hosts that answer."""

import ctypes
import os
import socket
from collections.abc import Mapping
from urllib.parse import urlsplit

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # names of malloc.h
_LARGE = 1 << 30
#: Limit and use of a container's control group, of version 2 and of version 1.
_GROUP_FILES = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)


def visible_gpus(environment: Mapping[str, str]) -> list[str]:
    """The GPUs, by number or name, to which ``CUDA_VISIBLE_DEVICES`` restricts a process; empty where it does not."""
    return [name for name in environment.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]


def keep_freed_memory() -> bool:
    """Have glibc keep what this process frees; whether the C library took the setting (musl and macOS do not).

    Every page given back is faulted in and zeroed anew by the next step's activations: 5 to 10 % of a step's time. The
    process stays at its peak size, which it reaches in every step anyway.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    return bool(mallopt(_TRIM_THRESHOLD, _LARGE)) and bool(mallopt(_MMAP_THRESHOLD, _LARGE))


def available_memory() -> int | None:
    """Bytes that new work may take without swapping, by the kernel and the control group; None if unknown."""
    try:
        with open("/proc/meminfo") as lines:
            limits = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable")]
    except OSError:
        limits = []
    for limit, used in _GROUP_FILES:
        try:
            with open(limit) as most, open(used) as now:
                limits.append(max(int(most.read()) - int(now.read()), 0))
        except (OSError, ValueError):  # no such control group, or "max"
            continue
    return min(limits, default=None)


def available_cores() -> int:
    """Processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def reachable(address: str) -> bool:
    """Whether the host of a URL takes connections; behind a proxy, which only a real request can test, True."""
    from urllib.request import getproxies  # here, because it takes 20 ms

    if getproxies():
        return True
    parts = urlsplit(address)
    try:
        port = parts.port or (80 if parts.scheme == "http" else 443)
        with socket.create_connection((parts.hostname or "", port), timeout=5.0):
            return True
    except (OSError, ValueError):  # ValueError: no such port
        return False
