"""A backbone's report of its keys, and tensors that are refused because no training left them so."""

from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_sample_images
from torch import nn

from momentum_transfer.backbones import source
from momentum_transfer.backbones.module_network import of_module
from momentum_transfer.backbones.network_input import NetworkInput
from momentum_transfer.backbones.resnet import Architecture, build_resnet
from momentum_transfer.backbones.source import KeyReport, SourceBackbone, is_constant, of_network, refuse_values
from momentum_transfer.core.errors import InputError


def test_a_report_groups_every_key_under_what_happened_and_why():
    report = KeyReport(
        used={"a.weight": "conv1.weight", "a.counter": "bn1.num_batches_tracked", "b.weight": "conv2.weight"},
        dropped={"fc.weight": "the head", "queue": "negatives", "fc.bias": "the head", "fc2.bias": "the head"},
        missing=["conv3.weight"], wrong_shape=[("conv4.weight", (3, 4), (5, 6))], unexpected=["x"],
        filled=["bn1.num_batches_tracked", "bn2.num_batches_tracked"],
    )  # fmt: skip
    assert report.rows() == [
        ("used", "weights and BatchNorm statistics", 2, "a.weight, b.weight"),
        ("used", "integers, kept as they are (num_batches_tracked)", 1, "a.counter"),
        ("dropped", "the head", 3, "fc.weight, fc.bias, …"),
        ("dropped", "negatives", 1, "queue"),
        ("filled with 0", "integers absent from the file", 2, "bn1.num_batches_tracked, bn2.num_batches_tracked"),
        ("missing", "", 1, "conv3.weight"),
        ("wrong shape", "", 1, "conv4.weight [3, 4] for [5, 6]"),
        ("unexpected", "", 1, "x"),
    ]
    assert [row[:3] for row in KeyReport(used={"a": "conv1.weight"}).rows()] == [
        ("used", "weights and BatchNorm statistics", 1), ("missing", "", 0), ("wrong shape", "", 0),
        ("unexpected", "", 0),
    ]  # fmt: skip


def test_a_report_is_complete_where_nothing_is_missing_or_unexplained():
    assert KeyReport(used={"a": "a"}, dropped={"b": "the head"}, filled=["c"], notes=["d"]).complete
    for lacking in ({"missing": ["a"]}, {"wrong_shape": [("a", (1,), (2,))]}, {"unexpected": ["a"]}):
        report = KeyReport(**lacking)
        assert not report.complete
        assert report.as_dict()["complete"] is False


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        ("bn1.num_batches_tracked", torch.tensor(7), ""),
        ("bn1.num_batches_tracked", torch.tensor(7.0), "an integer counter, found torch.float32"),
        ("bn1.num_batches_tracked", torch.tensor(True), "an integer counter, found torch.bool"),
        ("bn1.num_batches_tracked", torch.tensor(1j), "an integer counter, found torch.complex64"),
        ("conv1.weight", torch.arange(4).reshape(2, 2), "found integer ones"),
        ("conv1.weight", torch.ones(2, 2, dtype=torch.complex64), "found complex ones"),
        ("conv1.weight", torch.tensor([[0.0, float("nan")]]), "found NaN or Inf"),
        ("conv1.weight", torch.tensor([[0.0, float("inf")]]), "found NaN or Inf"),
        ("conv1.weight", torch.full((4, 3, 7, 7), 0.5), "found 0.5 in all 588 places of conv1.weight"),
        ("fc.weight", torch.zeros(1, 2), "found 0 in all 2 places"),
        ("fc.weight", torch.zeros(1, 1), ""),  # of one number nothing can be said
        ("fc.weight", torch.tensor([[0.0, 1e-3]]), ""),
        ("bn1.weight", torch.ones(4), ""),  # a norm begins so
        ("fc.bias", torch.zeros(2, 2), ""),
        ("bn1.running_var", torch.tensor([1.0, -0.25]), "variances of at least 0, found -0.25"),
        ("bn1.running_var", torch.tensor([1.0, 0.0]), ""),
        ("bn1.running_mean", torch.tensor([1.0, -2.0]), ""),
    ],
)
def test_tensors_that_no_training_leaves_are_refused(name: str, tensor: torch.Tensor, message: str):
    if not message:
        refuse_values({name: tensor}, Path("a.pth"))
        return
    with pytest.raises(InputError, match=message) as error:
        refuse_values({"good.weight": torch.randn(2, 2), name: tensor}, Path("a.pth"))
    assert f"{name} of a.pth" in str(error.value)


def test_a_constant_is_one_value_of_several():
    assert is_constant("a.weight", torch.zeros(2, 1))
    assert not is_constant("a.weight", torch.zeros(2))
    assert not is_constant("a.weight", torch.tensor([[0.0], [1.0]]))


def network(seed: int = 0):
    torch.manual_seed(seed)
    return build_resnet(Architecture("resnet10", 4, "small"))


def test_a_network_in_memory_is_known_by_its_tensors():
    first, same, other = of_network(network()), of_network(network()), of_network(network(1))
    assert first.sha256 == same.sha256 != other.sha256
    assert len(first.sha256) == 64
    assert first.metadata["source"] == "resnet10?width=4&stem=small"
    assert first.report.complete
    assert set(first.report.used) == set(first.state)
    halved = network().half()
    assert of_network(halved).sha256 != first.sha256
    built = first.build()
    assert not built.training
    assert all(torch.equal(built.state_dict()[name], tensor) for name, tensor in first.state.items())


class Pools(nn.Module):
    def __init__(self, kind: type[nn.Module] = nn.AdaptiveAvgPool2d, side: int = 2, pool=None) -> None:
        super().__init__()
        self.conv, self.kind, self.side, self.pool = nn.Conv2d(3, 4, 3), kind(side), side, pool

    def forward(self, images):
        return self.kind(self.conv(images))


class Doubles(Pools):
    def forward(self, images):
        return 2 * super().forward(images)


def test_a_users_module_is_known_by_what_it_computes_too():
    def sha256(module: nn.Module, name: str = "mine") -> str:
        module.load_state_dict({"conv.weight": torch.arange(108.0).view(4, 3, 3, 3), "conv.bias": torch.zeros(4)})
        return of_network(of_module(module, name, NetworkInput(16)).build()).sha256

    known = sha256(Pools())
    assert known == sha256(Pools().train()) == sha256(Pools().eval(), "other")
    others = [Pools(nn.AdaptiveMaxPool2d), Pools(side=1), Doubles()]
    others += [Pools(pool=torch.amax), Pools(pool=torch.Tensor.amin)]
    for factor in (  # classes without a source of their own, as a notebook's are
        lambda self, images: 3 * self.conv(images),
        lambda self, images: 4 * self.conv(images),
    ):
        others.append(type("Pools", (Pools,), {"__module__": "notebook", "forward": factor})())
    assert len({known, *map(sha256, others)}) == 8


def test_a_network_without_weights_is_refused():
    with torch.device("meta"):
        empty = build_resnet(Architecture("resnet10", 4))
    with pytest.raises(InputError, match=r"expected the weights of resnet10\?width=4, found none in conv1.weight"):
        of_network(empty)
    broken = network()
    broken.layer1[0].conv1.weight.data.zero_()
    with pytest.raises(InputError, match=r"found 0 in all 144 places of layer1.0.conv1.weight"):
        of_network(broken)


def test_records_name_the_method_where_it_is_known():
    def checkpoint(**metadata: str) -> dict[str, str]:
        backbone = SourceBackbone({}, Architecture(), "ours", "teacher", Path("a"), "ab", metadata, KeyReport(), "mine")
        return backbone.checkpoint

    assert checkpoint() == {"name": "mine", "sha256": "ab"}
    assert checkpoint(method="byol", random_seed="", network="x") == {"name": "mine", "sha256": "ab", "method": "byol"}


@pytest.mark.parametrize("size", [32, 427, 448])
def test_random_networks_see_crops_of_the_sample_images(size: int):
    """Each crop without its normalisation is a piece of its image (shrunk or enlarged to ``size`` where it is not)."""
    spec = NetworkInput(size, mean=(0.5, 0.4, 0.3), std=(0.2, 0.25, 0.5))
    crops = source._sample_crops(spec)
    assert crops.shape == (32, 3, size, size)
    mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in (spec.mean, spec.std))
    pixels = 255 * (crops * std + mean)
    assert float(pixels.min()) > -0.01
    assert float(pixels.max()) < 255.01
    if size != 32:
        return
    for number in range(4):
        image = load_sample_images().images[number % 2]
        wanted = pixels[number].permute(1, 2, 0).numpy().round().astype(np.uint8)
        windows = np.lib.stride_tricks.sliding_window_view(image, (size, size, 3))[:, :, 0]
        rows, columns = np.nonzero((image[: 427 - size + 1, : 640 - size + 1] == wanted[0, 0]).all(-1))
        assert any(np.array_equal(windows[row, column], wanted) for row, column in zip(rows, columns, strict=True))
