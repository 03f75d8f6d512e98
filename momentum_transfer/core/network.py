"""Whether a host answers: asked before a library that would try for minutes, or without end, where nothing does."""

import socket
from urllib.parse import urlsplit
from urllib.request import getproxies

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
