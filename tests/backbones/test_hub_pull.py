import pytest
import torch

from momentum_transfer.backbones import hub
from momentum_transfer.backbones.convert import write
from momentum_transfer.backbones.hub import HubName, parse
from momentum_transfer.backbones.read import load_backbone
from momentum_transfer.backbones.resnet import Architecture, build_resnet
from momentum_transfer.core.errors import InputError
from momentum_transfer.core.files import sha256_of
from momentum_transfer.transfer.initial_weights import read_initial
from tests.backbones.hub_server import COMMIT, hub_of

pytest.importorskip("huggingface_hub")


@pytest.fixture(autouse=True)
def own_surroundings(monkeypatch, tmp_path):
    """No mirror, no proxy, and a cache of its own; constants of huggingface_hub are read at its import."""
    import huggingface_hub.constants

    for name in ("MOMENTUM_TRANSFER_HUB", "http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    (tmp_path / "cache").mkdir()


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    folder = tmp_path_factory.mktemp("weights")
    architecture = Architecture("resnet10", 8)
    torch.manual_seed(0)
    write(folder / "backbone.safetensors", build_resnet(architecture).state_dict(), architecture, {})
    return folder / "backbone.safetensors"


def put(weights, *paths):
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(weights.read_bytes())


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("hf:org/name", ("org/name", "", "")),
        ("hf:timm/resnet50.a1_in1k@v1.0", ("timm/resnet50.a1_in1k", "v1.0", "")),
        ("hf:o/n@refs/pr/3:sub/model.bin", ("o/n", "refs/pr/3", "sub/model.bin")),
    ],
)
def test_a_name_has_a_repository_a_revision_and_a_file_and_gives_its_text_back(text, parts):
    assert parse(text) == HubName(*parts)
    assert str(parse(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        "hf:",
        "hf:name",
        "hf:a/b/c",
        "hf:a/b@",
        "hf:a/b:",
        "hf:a/b:../../etc/passwd",
        "hf:a/b:/etc",
        "hf:../b",
        "hf:a/b@../c",
        "hf:a/b c",
    ],
)
def test_other_forms_are_refused_with_the_form(text):
    with pytest.raises(InputError, match=r"expected weights on the Hub as hf:org/name"):
        parse(text)


def test_a_mirror_folder_serves_repositories_and_revisions_to_every_reader(weights, tmp_path, monkeypatch):
    mirror = tmp_path / "mirror"
    put(weights, mirror / "org/name/backbone.safetensors", mirror / "org/name@v2/sub/other.safetensors")
    monkeypatch.setenv("MOMENTUM_TRANSFER_HUB", str(mirror))
    source = load_backbone("hf:org/name")
    assert (source.name, source.sha256) == ("name", sha256_of(weights))
    assert source.metadata["source"] == "hf:org/name:backbone.safetensors"
    assert load_backbone("hf:org/name@v2").metadata["source"] == "hf:org/name@v2:other.safetensors"
    initial = read_initial("hf:org/name")
    assert (initial.name, initial.sha256) == ("name", sha256_of(weights))
    assert initial.backbone["stem.conv1.weight"].shape == source.state["conv1.weight"].shape


def test_a_mirror_says_what_it_lacks_and_what_to_choose_from(weights, tmp_path, monkeypatch):
    put(weights, tmp_path / "mirror/org/two/a.pth", tmp_path / "mirror/org/two/b.pth")
    (tmp_path / "mirror/org/none").mkdir()
    monkeypatch.setenv("MOMENTUM_TRANSFER_HUB", str(tmp_path / "mirror"))
    for name, message in {
        "hf:org/two": r"expected one file of weights in hf:org/two, found a\.pth, b\.pth; say which: hf:org/two:FILE",
        "hf:org/two:c.pth": r"expected c\.pth in hf:org/two, found a\.pth, b\.pth",
        "hf:org/none": "expected one file of weights in hf:org/none, found none",
        "hf:org/gone": r"expected hf:org/gone as .*mirror/org/gone in the mirror",
    }.items():
        with pytest.raises(InputError, match=message):
            hub.local_file(name)
    monkeypatch.setenv("MOMENTUM_TRANSFER_HUB", str(tmp_path / "nowhere"))
    with pytest.raises(InputError, match="expected a folder in MOMENTUM_TRANSFER_HUB"):
        hub.local_file("hf:org/two")


def test_a_hub_is_asked_once_and_its_copy_serves_without_a_network(weights, tmp_path, monkeypatch):
    put(weights, tmp_path / "hub/org/name/model.safetensors", tmp_path / "hub/org/name/optimizer.pt")
    with hub_of(tmp_path / "hub") as (address, asked):
        monkeypatch.setenv("HF_ENDPOINT", address)
        source = load_backbone("hf:org/name")
        assert (source.name, source.sha256) == ("name", sha256_of(weights))
        assert source.metadata["source"] == f"hf:org/name@{COMMIT}:model.safetensors"
        assert sum(request.startswith("GET /org/name/resolve") for request in asked) == 1
        for name, message in {
            "hf:org/none": "expected a model repository org/none on the Hub, found none",
            "hf:org/name@v7": "expected a revision of org/name, found none called v7",
            "hf:org/name:gone.pth": "expected gone.pth in hf:org/name, found model.safetensors, optimizer.pt",
        }.items():
            with pytest.raises(InputError, match=message):
                hub.local_file(name)
    assert sha256_of(hub.local_file("hf:org/name")) == sha256_of(weights)
    assert hub.local_file(f"hf:org/name@{COMMIT}") == hub.local_file("hf:org/name:model.safetensors")
    for name in ("hf:org/name@v7", "hf:org/other"):
        with pytest.raises(InputError, match=rf"no network to {address} and no copy of {name} on this machine"):
            hub.local_file(name)
