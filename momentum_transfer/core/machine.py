"""What this machine has: free memory, kept between steps, and hosts that answer."""

from __future__ import annotations

import ctypes
import socket
from urllib.parse import urlsplit
from urllib.request import getproxies

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


#: Seconds that a host is given to answer.
PATIENCE = 5.0


def reachable(address: str) -> bool:
    """Whether the host of a URL takes connections; behind a proxy, which only a real request can tell, True."""
    if getproxies():
        return True
    parts = urlsplit(address)
    try:
        port = parts.port or (80 if parts.scheme == "http" else 443)
        with socket.create_connection((parts.hostname or "", port), timeout=PATIENCE):
            return True
    except (OSError, ValueError):  # ValueError: no such port
        return False
