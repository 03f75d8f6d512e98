import shutil

import pytest
import torch
from torch import nn

from momentum_transfer.core.errors import InputError
from momentum_transfer.pretrain.run import compile_errors, compile_networks


def test_a_missing_compiler_is_named_before_any_step(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(InputError, match=r"expected a C\+\+ compiler .* RUN\.COMPILE False"):
        compile_networks(nn.Module(), torch.device("cpu"))


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("x.cpp:1: fatal error: omp.h: no such file\n", "omp.h"),
        ("warning: overflow", "ended from outside"),
    ],
)
def test_a_failing_compiler_is_one_line_with_its_cause(text, cause):
    from torch._inductor.exc import CppCompileError

    error = CppCompileError(["g++"], text)
    with pytest.raises(InputError, match=rf"expected the networks to compile.*{cause}") as raised, compile_errors():
        raise error
    assert "\n" not in str(raised.value)


def test_other_errors_pass():
    with pytest.raises(RuntimeError, match="out of memory"), compile_errors():
        raise RuntimeError("out of memory")
