import contextlib
import ctypes
import io
import os
import resource

import pytest
import torch

from momentum_transfer.core import machine
from momentum_transfer.core.machine import keep_freed_memory


def faults_of_reusing(size: int) -> int:
    for _ in range(30):  # aligned blocks: the heap needs a few rounds to find its places
        torch.ones(size)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(size)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def test_freed_memory_is_used_again_without_page_faults():
    if not keep_freed_memory():
        pytest.skip("this C library has no mallopt")
    assert faults_of_reusing(12_000_000) < 100  # 48 MB are 11,719 pages; up to 32 MB glibc learns to keep by itself


def test_a_library_without_mallopt_is_left_alone(monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    assert keep_freed_memory() is False


def meminfo(monkeypatch, available: int | None, groups: dict[str, str]) -> None:
    """Stand-ins for the kernel's files; a file that is not given is absent."""
    files = dict(groups)
    if available is not None:
        files["/proc/meminfo"] = f"MemTotal: 99 kB\nMemFree: 1 kB\nMemAvailable:   {available} kB\nBuffers: 2 kB\n"

    def opened(path):
        if path not in files:
            raise FileNotFoundError(path)
        return io.StringIO(files[path])

    monkeypatch.setattr(machine, "open", opened, raising=False)


V2, V1 = machine._GROUP_FILES


@pytest.mark.parametrize(
    ("available", "groups", "wanted"),
    [
        (1000, {}, 1_024_000),
        (None, {}, None),
        (1000, {V2[0]: "500000", V2[1]: "200000"}, 300_000),
        (1000, {V1[0]: "500000", V1[1]: "200000"}, 300_000),
        (1000, {V2[0]: "max", V2[1]: "200000"}, 1_024_000),
        (1000, {V2[0]: "500000"}, 1_024_000),
        (1000, {V2[0]: "500000", V2[1]: "700000"}, 0),
        (1000, {V2[0]: "9000000", V2[1]: "0"}, 1_024_000),
        (None, {V2[0]: "500000", V2[1]: "1"}, 499_999),
    ],
)
def test_free_memory_is_the_least_that_the_kernel_and_the_group_allow(available, groups, wanted, monkeypatch):
    meminfo(monkeypatch, available, groups)
    assert machine.available_memory() == wanted


def test_cores_are_those_that_this_process_may_use(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda who: {0, 3} if who == 0 else set(), raising=False)
    assert machine.available_cores() == 2
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 7)
    assert machine.available_cores() == 7
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert machine.available_cores() == 1


def test_a_host_answers_at_its_port_or_at_that_of_its_scheme(monkeypatch):
    asked: list[tuple[str, int]] = []

    def connect(address: tuple[str, int], timeout: float) -> contextlib.nullcontext:
        asked.append(address)
        if address[0] == "down":
            raise ConnectionRefusedError
        return contextlib.nullcontext()

    monkeypatch.setattr("urllib.request.getproxies", dict)
    monkeypatch.setattr(machine.socket, "create_connection", connect)
    assert [machine.reachable(f"{url}/a") for url in ("http://up", "https://up", "https://up:81", "http://down")] == [
        True, True, True, False
    ]  # fmt: skip
    assert asked == [("up", 80), ("up", 443), ("up", 81), ("down", 80)]
    assert not machine.reachable("http://up:99999")
    monkeypatch.setattr("urllib.request.getproxies", lambda: {"https": "proxy"})
    assert machine.reachable("http://down")


def test_the_allocator_keeps_what_it_is_given_of_both_kinds(monkeypatch):
    asked = []

    class Library:
        def __init__(self, name: None, took: dict[int, int]) -> None:
            self.mallopt = lambda option, value: asked.append((option, value)) or took[option]

    for took, kept in (({-1: 1, -3: 1}, True), ({-1: 0, -3: 1}, False), ({-1: 1, -3: 0}, False)):
        monkeypatch.setattr(ctypes, "CDLL", lambda name, took=took: Library(name, took))
        assert keep_freed_memory() is kept
    assert asked[:2] == [(-1, 2**30), (-3, 2**30)]  # M_TRIM_THRESHOLD, M_MMAP_THRESHOLD of malloc.h; a GiB
