"""``random-of:CHECKPOINT``: the checkpoint's architecture with weights of a stated seed, and none of its own."""

import pytest
import torch

from momentum_transfer.backbones.convert import write
from momentum_transfer.backbones.read import load_backbone
from momentum_transfer.backbones.resnet import Architecture, build_resnet
from momentum_transfer.core.errors import InputError
from momentum_transfer.core.files import weights_name


@pytest.fixture
def checkpoint(tmp_path):
    architecture = Architecture("resnet18", 8, "small")
    torch.manual_seed(3)
    write(tmp_path / "mine.safetensors", build_resnet(architecture).state_dict(), architecture, {"method": "byol"})
    return tmp_path / "mine.safetensors"


def test_it_is_the_same_architecture_with_other_weights_those_of_seed_0(checkpoint, capsys):
    given, random = load_backbone(checkpoint), load_backbone(f"random-of:{checkpoint}")
    assert random.architecture == given.architecture == Architecture("resnet18", 8, "small")
    torch.manual_seed(0)
    fresh = build_resnet(given.architecture).state_dict()
    learned = [name for name in fresh if "running" not in name and "num_batches" not in name]
    assert all(torch.equal(random.state[name], fresh[name]) for name in learned)
    assert not any(torch.equal(given.state[name], fresh[name]) for name in learned if "conv" in name)
    assert "random-of-mine: resnet18" in (said := capsys.readouterr().out)
    assert "at random, seed 0" in said


def test_records_call_it_random_and_whose_architecture_it_is(checkpoint):
    found = load_backbone(f"random-of:{checkpoint}").checkpoint
    assert {key: found[key] for key in ("name", "method", "random_seed")} == {
        "name": "random-of-mine", "method": "random", "random_seed": "0",
    }  # fmt: skip
    assert weights_name("random-of:outputs/momentum2/checkpoints/last") == "random-of-momentum2"
    assert "random_seed" not in load_backbone(checkpoint).checkpoint


def test_the_seeds_around_it_neither_change_it_nor_are_changed(checkpoint):
    from momentum_transfer.backbones import source

    first = load_backbone(f"random-of:{checkpoint}")
    source._random_state.cache_clear()
    torch.manual_seed(99)
    before = torch.get_rng_state()
    again = load_backbone(f"random-of:{checkpoint}")
    assert torch.equal(torch.get_rng_state(), before)
    assert first.sha256 == again.sha256
    assert all(torch.equal(again.state[name], tensor) for name, tensor in first.state.items())


def test_batch_norms_have_the_statistics_of_real_images(checkpoint):
    """The outputs of the first BatchNorm in evaluation are normal over the sample images, by a plain computation."""
    from momentum_transfer.backbones.network_input import NetworkInput
    from momentum_transfer.backbones.source import _sample_crops

    network = load_backbone(f"random-of:{checkpoint}").build()
    images = _sample_crops(NetworkInput(128))
    assert images.std() > 0.5  # images, normalised
    with torch.no_grad():
        normal = network.bn1(network.conv1(images))
    torch.testing.assert_close(normal.mean((0, 2, 3)), torch.zeros(8), atol=1e-3, rtol=0)
    torch.testing.assert_close(normal.var((0, 2, 3)), torch.ones(8), atol=1e-2, rtol=0)


def test_a_network_of_timm_needs_no_file_and_no_batch_norm():
    pytest.importorskip("timm")
    found = load_backbone("random-of:timm:test_vit?img_size=32")
    assert (found.name, found.checkpoint["method"]) == ("random-of-test_vit?img_size=32", "random")
    assert found.build()(torch.zeros(1, 3, 32, 32)).isfinite().all()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("random-of:", "expected random-of:CHECKPOINT, found 'random-of:'; name a checkpoint behind it"),
        ("random-of:random-of:a.pth", "expected random-of:CHECKPOINT"),
        ("random-of:absent.pth", "absent.pth"),
        ("random-of:none", "none"),
    ],
)
def test_what_names_no_checkpoint_is_one_line(text, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError) as error:
        load_backbone(text)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_module_of_ones_own_decides_its_weights_and_is_refused(tmp_path, monkeypatch):
    (tmp_path / "own_module.py").write_text(
        "import torch\n\n\ndef make():\n    return torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(InputError, match="let the module's factory load no weights"):
        load_backbone("random-of:module:own_module:make")
