"""A method in one line: presets, settings over them, refusals; a step in the paper's order."""

import math

import pytest
import torch

from momentum_transfer.backbones.norms.momentum_batch_norm import pair_norms
from momentum_transfer.core.errors import InputError
from momentum_transfer.pretrain.own_loop import PRESETS, build_method, train_step

SMALL = {"HEAD.HIDDEN": 16, "HEAD.OUTPUT": 8, "MOCO.QUEUE": 16}


def tiny(name: str, **settings):
    torch.manual_seed(0)
    return build_method(name, arch="resnet10", width=4, stem="small", settings={**SMALL, **settings})


def views() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    return torch.randn(8, 3, 16, 16), torch.randn(8, 3, 16, 16)


def test_an_unknown_name_lists_the_presets_and_a_wrong_setting_is_named_itself():
    with pytest.raises(InputError, match=rf"a method of {', '.join(PRESETS)}, or a config, found 'byoll'"):
        build_method("byoll")
    with pytest.raises(InputError, match=r"NORM\.TEACHRE") as refused:
        tiny("byol", **{"NORM.TEACHRE": "BN"})
    assert "expected a method of" not in str(refused.value)
    with pytest.raises(InputError, match="without labels, found supervised"):
        tiny("byol", **{"METHOD.NAME": "supervised"})


def test_a_preset_takes_a_batch_of_any_size_unless_groups_are_given():
    images = views()
    assert torch.isfinite(tiny("byol")(*(view[:3] for view in images))["loss"])
    assert tiny("byol").rule.groups == 1
    assert tiny("byol", **{"NORM.GROUP_SIZE": 4, "SOLVER.BATCH_SIZE": 8}).rule.groups == 2
    assert tiny("moco").rule.groups == 32  # ShuffleBN: 256 images, eight to a group


def test_a_config_brings_its_own_backbone():
    method = build_method("smoke/moco_eman_digits", arch="resnet50", width=64)
    assert str(method.backbone().architecture) != str(tiny("moco_eman").backbone().architecture)
    assert "resnet50" not in str(method.backbone().architecture)


@pytest.mark.parametrize("name", ["byol", "momentum2"])
def test_the_teacher_moves_before_or_after_the_optimizer_as_the_paper_says(name: str):
    method = tiny(name)
    optimizer = torch.optim.SGD(method.parameters(), lr=0.5)
    student, teacher = method.student.backbone.conv1.weight, method.teacher.backbone.conv1.weight
    with torch.no_grad():
        teacher.add_(1.0)
    begun, before = student.detach().clone(), teacher.detach().clone()
    found = train_step(method, optimizer, *views(), progress=0.25)
    followed = begun if name == "momentum2" else student
    assert not torch.equal(begun, student)
    torch.testing.assert_close(teacher, before.lerp(followed, found["momentum"]))
    assert all(parameter.grad is None for parameter in method.parameters())
    assert method.training


@pytest.mark.parametrize("progress", [-0.01, 1.01, float("nan")])
def test_progress_is_a_fraction_of_the_run(progress: float):
    method = tiny("simsiam")
    with pytest.raises(InputError, match="progress"):
        train_step(method, torch.optim.SGD(method.parameters(), lr=0.1), *views(), progress=progress)


def test_views_that_are_not_finite_move_nothing():
    method = tiny("simsiam")
    before = [parameter.detach().clone() for parameter in method.parameters()]
    with pytest.raises(InputError, match="expected finite views"):
        train_step(method, torch.optim.SGD(method.parameters(), lr=0.1), views()[0] * float("nan"), views()[1],
                   progress=1.0)  # fmt: skip
    assert all(torch.equal(one, other) for one, other in zip(before, method.parameters(), strict=True))


def test_a_batch_that_was_refused_leaves_no_statistics_behind():
    method = tiny("momentum2")
    optimizer = torch.optim.SGD(method.parameters(), lr=0.01)
    view1, view2 = views()
    train_step(method, optimizer, view1, view2, progress=0.1)
    with pytest.raises(InputError, match="expected finite views"):
        train_step(method, optimizer, view1 * float("nan"), view2, progress=0.2)
    huge = view1 * 1e30
    with pytest.raises(InputError, match="expected a finite loss"):
        train_step(method, optimizer, huge, view2, progress=0.2)
    assert all(not layer.pending_count for layer in pair_norms(method))
    for _ in range(2):
        assert math.isfinite(train_step(method, optimizer, view1, view2, progress=0.3)["loss"])
