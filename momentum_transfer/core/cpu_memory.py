"""The CPU's memory: how much is free, and keeping what a step has freed for the next one."""

from __future__ import annotations

import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # names of malloc.h
_LARGE = 1 << 30
#: Limit and use of a container's control group, of version 2 and of version 1.
_GROUP_FILES = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)


def keep_freed_memory() -> bool:
    """Has glibc keep what this process frees, instead of giving it back to the kernel between two steps.

    Every page given back is faulted in and zeroed anew by the next step's activations: 5 to 10 % of a step's time. The
    process stays at its peak size, which it reaches in every step anyway.

    Returns:
        Whether the C library could be told; others (musl, macOS) go on as they are.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    return bool(mallopt(_TRIM_THRESHOLD, _LARGE)) and bool(mallopt(_MMAP_THRESHOLD, _LARGE))


def available_memory() -> int | None:
    """Bytes that new work may take without swapping, as the kernel and the control group see it; None if unknown."""
    try:
        with open("/proc/meminfo") as lines:
            found = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable")]
    except OSError:
        found = []
    for limit, used in _GROUP_FILES:
        try:
            with open(limit) as most, open(used) as now:
                found.append(max(int(most.read()) - int(now.read()), 0))
        except (OSError, ValueError):  # no such control group, or "max"
            continue
    return min(found, default=None)
