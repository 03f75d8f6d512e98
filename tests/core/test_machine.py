import ctypes
import resource

import pytest
import torch

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
