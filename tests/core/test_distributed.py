"""Two gloo processes against one."""

from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch import nn

from momentum_transfer.core import distributed
from momentum_transfer.core.checkpoints import CheckpointFolder, load
from momentum_transfer.core.settings import load_config
from momentum_transfer.pretrain.config import get_cfg
from momentum_transfer.pretrain.train import train
from tests.pretrain.two_processes import GROUPED, save_what_is_seen, two_pairs
from tests.two_processes import in_two_processes

SETTINGS = {
    "METHOD.NAME": "momentum2",
    "DATA.NAME": "digits",
    "DATA.VIEWS": "digits",
    "DATA.IMAGE_SIZE": 48,
    "DATA.WORKERS": 0,
    "MODEL.ARCH": "resnet10",
    "MODEL.WIDTH": 4,
    "HEAD.HIDDEN": 16,
    "HEAD.OUTPUT": 8,
    "SOLVER.BATCH_SIZE": 8,
    "SOLVER.BASE_BATCH_SIZE": 8,
    "SOLVER.STEPS": 4,
    "SOLVER.WARMUP_EPOCHS": 0.0,
    "RUN.DEVICE": "cpu",
}


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """What both processes saw, and the folder of their runs."""
    out = tmp_path_factory.mktemp("two")
    in_two_processes(save_what_is_seen, out, SETTINGS)
    return [torch.load(out / f"rank{rank}.pt") for rank in range(2)], out


def joint_batch():
    return torch.randn(8, 3, 4, 4, generator=torch.Generator().manual_seed(0)) * 3 + 1


def test_sync_batch_norm_equals_batch_norm_on_the_joined_batch(two):
    seen, _ = two
    layer, x = nn.BatchNorm2d(3), joint_batch().requires_grad_()
    (layer(x) ** 3).sum().backward()
    torch.testing.assert_close(torch.cat([s["sync"]["gradient"] for s in seen]), x.grad, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(torch.cat([s["sync"]["output"] for s in seen]), layer.eval()(x).detach())
    for process in seen:
        torch.testing.assert_close(process["sync"]["var"], layer.running_var)


def test_sync_batch_norm_keeps_a_small_variance_far_from_zero(two):
    seen, _ = two
    layer, x = nn.BatchNorm2d(3).double(), (100 + 0.01 * joint_batch()).double()
    layer(x)
    for process in seen:
        torch.testing.assert_close(process["far"]["var"].double(), layer.running_var, rtol=1e-5, atol=0)


def test_shuffle_bn_normalises_with_the_exchanged_images_and_restores_their_order(two):
    seen, _ = two
    expected = {}
    for process in seen:  # what each process's network saw, normalised by a naive loop
        images = process["shuffled"]["seen"]
        mean = images.mean((0, 2, 3), keepdim=True)
        var = ((images - mean) ** 2).mean((0, 2, 3), keepdim=True)
        for image, output in zip(images, (images - mean) / (var + 1e-5).sqrt(), strict=True):
            expected[float(image.sum())] = output.flatten()
    outputs = torch.cat([process["shuffled"]["output"] for process in seen])
    assert len(expected) == 8
    for image, output in zip(joint_batch(), outputs, strict=True):
        torch.testing.assert_close(output, expected[float(image.sum())], rtol=1e-4, atol=1e-5)
    assert {float(image.sum()) for image in seen[0]["shuffled"]["seen"]} != {
        float(image.sum()) for image in joint_batch()[:4]
    }


def test_momentum_bn_policies(two):
    seen, _ = two
    halves = [0.5 * half.mean((0, 2, 3)) for half in joint_batch().split(4)]
    for rank, process in enumerate(seen):
        torch.testing.assert_close(process["local"], halves[rank])
        torch.testing.assert_close(process["broadcast"], halves[0])
        torch.testing.assert_close(process["reduce"], (halves[0] + halves[1]) / 2)


@pytest.mark.parametrize("name", GROUPED)
def test_virtual_processes_equal_two_real_ones_bit_for_bit_in_float64(two, name):
    seen, _ = two
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as in both processes
    try:
        virtual = two_pairs(SETTINGS, name, 0, 1, group=4)
    finally:
        torch.set_num_threads(threads)
    for key, value in virtual.items():
        if key.startswith(("teacher ", "student ")):
            real = torch.stack([process["pairs"][name][key] for process in seen], 1).flatten(0, 1)
        else:  # statistics: the first process's are kept
            real = seen[0]["pairs"][name][key]
        assert torch.equal(real, value), key


def test_gathers_are_in_rank_order_and_keys_of_all_processes_enter_the_queue(two):
    seen, _ = two
    for process in seen:
        assert process["gathered"].tolist() == [0, 1]
        assert process["queue"].tolist() == [1, 2, 11, 12]


def test_two_processes_with_sync_bn_train_what_one_does_on_the_joined_batch(two, tmp_path):
    _, out = two
    alone = {**SETTINGS, "METHOD.NAME": "byol", "NORM.STUDENT": "SyncBN", "NORM.TEACHER": "SyncBN", "SOLVER.STEPS": 2}
    train(
        load_config(get_cfg(), None, [str(w) for pair in alone.items() for w in pair] + ["OUTPUT_DIR", str(tmp_path)])
    )
    one = load(CheckpointFolder(tmp_path / "checkpoints").last())["model"]
    joined = load(CheckpointFolder(out / "joined/checkpoints").last())["model"]
    for name, tensor in one.items():
        torch.testing.assert_close(joined[name], tensor, rtol=2e-3, atol=2e-4, msg=lambda text, n=name: f"{n}: {text}")


@pytest.mark.parametrize("name", ["local", "broadcast", "reduce", "ShuffleBN", "SyncBN", "EMAN", "TeacherPN"])
def test_two_processes_resume_bit_for_bit_each_with_its_own_history(two, name):
    _, out = two
    whole, parts = (load(CheckpointFolder(out / f"{kind}_{name}/checkpoints").last()) for kind in ("whole", "parts"))
    assert all(torch.equal(parts["model"][key], tensor) for key, tensor in whole["model"].items())
    for a, b in zip(whole["processes"], parts["processes"], strict=True):
        assert all(torch.equal(a["buffers"][key], b["buffers"][key]) for key in a["buffers"])
    history = [process["buffers"]["teacher.backbone.bn1.running_mean"] for process in whole["processes"]]
    assert torch.equal(*history) == (name in ("broadcast", "reduce", "SyncBN"))


def test_everything_is_inert_in_one_process():
    x = torch.randn(3, 2)
    assert not distributed.is_distributed()
    assert (distributed.rank(), distributed.world_size(), distributed.is_main()) == (0, 1, True)
    for function in (distributed.all_gather_tensor, distributed.all_reduce_mean, distributed.broadcast):
        assert function(x) is x
    assert distributed.any_rank(True, x.device) is True
    distributed.barrier()


def test_processes_wait_for_each_other_as_long_as_the_first_may_score_alone(monkeypatch):
    joined = {}
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(dist, "rendezvous", lambda _: iter([(dist.HashStore(), 0, 2)]))
    monkeypatch.setattr(dist, "init_process_group", lambda backend, **given: joined.update(given, backend=backend))
    monkeypatch.setattr(dist, "destroy_process_group", joined.clear)
    for device, backend in (("cpu", "gloo"), ("cuda", "nccl")):
        with distributed.process_group(torch.device(device)):
            assert joined["backend"] == backend
            assert joined["timeout"] >= timedelta(days=1)
        assert not joined
