"""A custom module as a backbone: the stage of each map, the range of its images, and what is refused."""

import sys

import pytest
import torch
from torch import Tensor, nn

from momentum_transfer.backbones.module_network import ModuleArchitecture, ModuleBackbone, input_of, of_module, of_text
from momentum_transfer.backbones.network_input import NetworkInput
from momentum_transfer.core.errors import InputError


class Gives(nn.Module):
    """Gives the means of its images over cells of some sides, name -> side; 0: one vector."""

    def __init__(self, **sides: int) -> None:
        super().__init__()
        self.sides, self.modes = sides, []

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        self.modes.append(self.training)
        pool = nn.functional.adaptive_avg_pool2d
        return {
            name: pool(images, side).repeat(1, 1 + place, 1, 1) if side else images.mean((2, 3))
            for place, (name, side) in enumerate(self.sides.items())
        }


def backbone(module: nn.Module, size: int = 32, **spec: object) -> ModuleBackbone:
    return of_module(module, "mine", NetworkInput(size=size, **spec)).build()


@pytest.mark.parametrize("size", [64, 60, 33])
def test_maps_are_stages_by_their_sides_rounded_up(size):
    sides = {name: -(-size // stride) for name, stride in (("d", 32), ("a", 4), ("odd", 1), ("c", 16), ("b", 8))}
    network = backbone(Gives(**sides), size)
    assert network.strides == {"res2": 4, "res3": 8, "res4": 16, "res5": 32}
    assert network.channels == {"res5": 3, "res2": 6, "res4": 12, "res3": 15}
    images = torch.randn(3, 3, size, size)
    own, found = network.net(images), network.stages(images)
    for stage, name in {"res2": "a", "res3": "b", "res4": "c", "res5": "d"}.items():
        assert torch.equal(found[stage], own[name])
    assert torch.equal(found["pooled"], own["d"].mean((2, 3)))
    assert torch.equal(network(images), found.pop("pooled"))
    assert network.maps(images).keys() == found.keys()
    assert network.num_features == 3


def test_features_are_the_modules_own_or_the_mean_of_its_smallest_map_the_last_of_equals():
    images = torch.randn(2, 3, 32, 32)
    assert torch.equal(backbone(Gives(a=4, pooled=0))(images), images.mean((2, 3)))
    assert backbone(Gives(a=2, b=2, c=8)).num_features == 6
    assert backbone(Gives(a=8, b=2, c=4)).num_features == 6
    alone = backbone(nn.Conv2d(3, 5, 8, 8))
    assert (alone.strides, alone.num_features) == ({"res3": 8}, 5)
    torch.testing.assert_close(alone(images), alone.net(images).mean((2, 3)))
    for module in (nn.Flatten(), Gives(pooled=0), Gives(a=5)):
        with pytest.raises(InputError, match="expected maps of stride 4, 8, 16 or 32 of mine, found pooled features"):
            backbone(module).maps(images)


@pytest.mark.parametrize(
    ("give", "found"),
    [
        (lambda x: {}, "found a dict"),
        (lambda x: (x,), "found a tuple"),
        (lambda x: x.flatten(2), r"found \(2, 3, 1024\) under 'map'"),
        (lambda x: {"pooled": x.mean((2, 3)), "late": x.mean((2, 3))}, r"found \(2, 3\) under 'late'"),
        (lambda x: {"late": None}, "found NoneType under 'late'"),
        (lambda x: {"late": x[:1]}, r"found \(1, 3, 32, 32\) under 'late' for 2 images"),
        (lambda x: {"late": x[:, :0]}, r"found \(2, 0, 32, 32\) under 'late'"),
        (lambda x: {"late": x.long()}, "found torch.int64 under 'late'"),
    ],
)
def test_what_are_no_features_and_no_maps_is_refused(give, found):
    module = nn.Module()
    module.forward = give
    with pytest.raises(InputError, match=rf"expected mine to give features \[N, D\] or a dict of maps .*, {found}"):
        backbone(module)


@pytest.mark.parametrize("training", [True, False])
def test_a_module_is_looked_at_in_evaluation_and_left_in_its_mode(training):
    module = Gives(a=4).train(training)
    ModuleBackbone(module, of_module(module, "mine", NetworkInput(size=32)))
    assert (module.modes, module.training) == ([False], training)
    module = Gives(a=0).train(training)  # a vector is no map
    with pytest.raises(InputError, match="expected mine to give features"):
        ModuleBackbone(module, of_module(module, "mine", NetworkInput(size=32)))
    assert module.training == training


def test_images_are_those_asked_for_else_those_the_module_says_else_the_usual():
    module = Gives(a=1)
    assert not of_module(module, "mine").build().says_input
    assert of_module(module, "mine").build().input == NetworkInput()
    module.input = {"size": 16, "crop": 1.0}
    said = of_module(module, "mine").build()
    assert (said.says_input, said.input) == (True, NetworkInput(size=16, crop=1.0))
    asked = backbone(module, 8)
    assert (asked.says_input, asked.input.size) == (True, 8)
    module.input = {"size": 0}
    with pytest.raises(InputError, match="expected the attribute input of mine as size, mean, std"):
        of_module(module, "mine").build()
    assert backbone(module, 8).input.size == 8  # not asked


@pytest.mark.parametrize(
    "said", [{}, {"size": 1}, {"size": 8.0}, {"crop": 1}, {"crop": 1e-3}, {"interpolation": "bicubic"},
             {"mean": [0, 0, 0], "std": [1, 1, 1e-3]}],
)  # fmt: skip
def test_a_sound_input_is_taken_with_the_size_asked_for_where_it_has_none(said):
    found = input_of(said, "input", 48)
    assert found == NetworkInput(**{"size": 48, **{key: tuple(value) if isinstance(value, list) else value
                                                   for key, value in said.items()}})  # fmt: skip
    assert type(found.size) is int
    assert input_of(found, "input", 1) == found


@pytest.mark.parametrize(
    "said", [{"size": 0}, {"size": -8}, {"size": 8.5}, {"size": True}, {"size": "8"}, {"crop": 0}, {"crop": 1.001},
             {"mean": (0, 0)}, {"std": (1, 1)}, {"mean": (0,) * 4, "std": (1,) * 4}, {"std": (1, 1, 0)},
             {"std": (-1, 1, 1)}, {"interpolation": "nearest"}, {"side": 8}, None, 8],
)  # fmt: skip
def test_an_input_that_is_no_image_is_refused(said):
    with pytest.raises(InputError, match="expected input as size, mean, std, interpolation, crop of images, found"):
        input_of(said, "input")


def test_every_build_is_a_new_copy_and_its_batch_norms_are_those_asked_for():
    module = nn.Sequential(nn.Conv2d(3, 4, 4, 4), nn.BatchNorm2d(4, eps=0.5))
    architecture = of_module(module, "mine", NetworkInput(size=32))
    first, second = architecture.build(), architecture.build(nn.InstanceNorm2d)
    assert first.net is not module
    assert first.net[0].weight is not second.net[0].weight
    assert isinstance(first.net[1], nn.BatchNorm2d)
    assert isinstance(second.net[1], nn.InstanceNorm2d)
    assert second.net[1].eps == 0.5
    with pytest.raises(InputError, match=r"expected mine to give a torch\.nn\.Module, found a dict"):
        ModuleArchitecture("mine", dict).build()
    with pytest.raises(InputError, match="expected mine to take no arguments, found missing a required argument"):
        ModuleArchitecture("mine", lambda width: module).build()


@pytest.mark.parametrize(
    "text", ["module:", "module::f", "module:a..b:f", "module:torch", "module:torch:", "module:torch:1", "module:a:f()"]
)
def test_a_text_without_a_package_or_a_name_is_refused(text):
    with pytest.raises(InputError, match=r"expected module:package\.path:factory, found"):
        of_text(text)


def test_a_text_names_a_function_of_a_package():
    assert of_text("module:torch.nn:Flatten").factory is nn.Flatten
    with pytest.raises(InputError, match=r"expected a function nothing that gives a network in torch\.nn, found None"):
        of_text("module:torch.nn:nothing")
    with pytest.raises(InputError, match=r"expected a Python module torch\.nothing, found none"):
        of_text("module:torch.nothing:f")


def test_the_current_folder_is_looked_in_last_and_added_once(tmp_path, monkeypatch):
    (tmp_path / "network_of_mine.py").write_text("from torch.nn import Flatten\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", before := list(sys.path))
    for _ in range(2):
        assert of_text("module:network_of_mine:Flatten").factory is nn.Flatten
    assert before.count(str(tmp_path)) == 1
    assert before[-1] == str(tmp_path)
