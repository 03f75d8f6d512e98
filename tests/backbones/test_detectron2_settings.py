"""What a plain configuration of Detectron2 must say for a converted backbone, beside the .pkl and on the terminal."""

import ast
import json
import pickle
import shlex

import pytest
import torch
import yaml
from safetensors.torch import save_file

from momentum_transfer.backbones.convert import convert_file
from momentum_transfer.backbones.resnet import Architecture, build_resnet
from momentum_transfer.core.errors import InputError
from tests.backbones.family_writers import network

IMAGENET = {"PIXEL_MEAN": [123.675, 116.28, 103.53], "PIXEL_STD": [58.395, 57.12, 57.375]}


def leaves(tree, prefix=""):
    for key, value in tree.items():
        yield from leaves(value, f"{prefix}{key}.") if isinstance(value, dict) else [(prefix + key, value)]


@pytest.mark.parametrize(
    "architecture",
    [Architecture("resnet18", 64), Architecture("resnet34", 8), Architecture("resnet50", 8),
     Architecture("resnet101", 4), Architecture("resnet10", 8)],
    ids=str,
)  # fmt: skip
def test_the_settings_describe_the_tensors_of_the_pkl_and_are_printed_as_words(architecture, tmp_path, capsys):
    torch.save(network(architecture).state_dict(), tmp_path / "a.pth")
    convert_file(tmp_path / "a.pth", tmp_path / "out.pkl")
    tree = yaml.safe_load((tmp_path / "out.yaml").read_text())
    model = pickle.loads((tmp_path / "out.pkl").read_bytes())["model"]
    bottleneck = "res2.0.conv3.weight" in model
    convolutions = [name for name in model if name.endswith("weight") and ".norm." not in name]
    resnets = {
        "DEPTH": 1 + len([name for name in convolutions if "shortcut" not in name]),  # the classifier counts as one
        "STRIDE_IN_1X1": False,
        "STEM_OUT_CHANNELS": model["stem.conv1.weight"].shape[0],
        "RES2_OUT_CHANNELS": model[f"res2.0.conv{3 if bottleneck else 2}.weight"].shape[0],
        "NUM_GROUPS": 1,
        "WIDTH_PER_GROUP": model["res2.0.conv1.weight"].shape[0],
    }
    assert tree == {"VERSION": 2, "INPUT": {"FORMAT": "RGB"}, "MODEL": {**IMAGENET, "RESNETS": resnets}}
    said = capsys.readouterr().out
    line = next(line for line in said.splitlines() if line.startswith("  INPUT.FORMAT"))
    words = shlex.split(line)
    values = [value if value == "RGB" else ast.literal_eval(value) for value in words[1::2]]
    assert dict(zip(words[::2], values, strict=True)) == {k: v for k, v in leaves(tree) if k != "VERSION"}
    lacking = f"Detectron2 itself builds no {architecture}: call" in said
    assert lacking == (not bottleneck and str(architecture) != "resnet18")
    assert ("add_momentum_transfer_config(cfg)" in said) == (not bottleneck)


def test_the_normalisation_is_the_checkpoints_own_where_timms_config_beside_it_tells_another(tmp_path):
    save_file(build_resnet(Architecture("resnet34")).state_dict(), tmp_path / "model.safetensors")
    details = {"mean": [0.5, 0.4, 0.3], "std": [0.5, 0.25, 0.2], "tag": "of_tomorrow"}
    (tmp_path / "config.json").write_text(json.dumps({"architecture": "resnet34", "pretrained_cfg": details}))
    convert_file(tmp_path, tmp_path / "out.pkl")
    found = yaml.safe_load((tmp_path / "out.yaml").read_text())["MODEL"]
    assert (found["PIXEL_MEAN"], found["PIXEL_STD"]) == ([127.5, 102.0, 76.5], [127.5, 63.75, 51.0])
    for mean in (
        [0.5, 0.5],
        [123.0, 116.0, 103.0],
        ["x", 0, 0],
        None,
        [float("nan")] * 3,
    ):  # no such numbers: ImageNet's
        details["mean"] = mean
        (tmp_path / "config.json").write_text(json.dumps({"architecture": "resnet34", "pretrained_cfg": details}))
        convert_file(tmp_path, tmp_path / "out.pkl")
        assert yaml.safe_load((tmp_path / "out.yaml").read_text())["MODEL"].items() >= IMAGENET.items()


def test_a_vit_gets_this_projects_keys_and_what_a_lazy_config_says(tmp_path, capsys):
    pytest.importorskip("timm")
    arch = "timm:vit_tiny_patch16_224.augreg_in21k?img_size=64&depth=2&embed_dim=48&num_heads=2"
    from momentum_transfer.backbones.build import build_backbone

    torch.save(build_backbone(arch).state_dict(), tmp_path / "v.pth")
    convert_file(tmp_path / "v.pth", tmp_path / "v.pkl", architecture=arch, without_prefix=True)
    tree = yaml.safe_load((tmp_path / "v.yaml").read_text())
    half = {"PIXEL_MEAN": [127.5] * 3, "PIXEL_STD": [127.5] * 3}  # augreg's
    backbone = {"ARCH": arch, "FREEZE_AT": 0}
    assert tree["MODEL"] == {**half, "BACKBONE": backbone, "VIT": {"FORM": "vitdet"}}
    said = capsys.readouterr().out
    assert (
        "embed_dim=48, depth=2, num_heads=2, patch_size=16, pretrain_img_size=64, pretrain_use_cls_token=False" in said
    )


def test_a_stem_that_no_detector_builds_is_said_and_no_settings_are_left(tmp_path, capsys):
    torch.save(network(Architecture("resnet10", 8)).state_dict(), tmp_path / "a.pth")
    convert_file(tmp_path / "a.pth", tmp_path / "out.pkl")
    assert (tmp_path / "out.yaml").is_file()
    torch.save(network(Architecture("resnet10", 8, "small")).state_dict(), tmp_path / "a.pth")
    convert_file(tmp_path / "a.pth", tmp_path / "out.pkl")
    assert "no detector builds the small stem" in capsys.readouterr().err
    assert not (tmp_path / "out.yaml").exists()


def test_only_settings_of_a_conversion_are_overwritten_and_other_formats_have_none(tmp_path):
    torch.save(network().state_dict(), tmp_path / "a.pth")
    (tmp_path / "out.yaml").write_text("MODEL: {DEPTH: mine}\n")
    with pytest.raises(InputError, match=r"expected no file .*out.yaml, .*found another; choose another output name"):
        convert_file(tmp_path / "a.pth", tmp_path / "out.pkl")
    assert not (tmp_path / "out.pkl").exists()
    assert (tmp_path / "out.yaml").read_text() == "MODEL: {DEPTH: mine}\n"
    convert_file(tmp_path / "a.pth", tmp_path / "out.safetensors")
    assert (tmp_path / "out.yaml").read_text() == "MODEL: {DEPTH: mine}\n"
    (tmp_path / "out.yaml").unlink()
    for _ in range(2):
        convert_file(tmp_path / "a.pth", tmp_path / "out.pkl")
    (tmp_path / "folder.yaml").mkdir()
    with pytest.raises(InputError, match="found a folder"):
        convert_file(tmp_path / "a.pth", tmp_path / "folder.pkl")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "a.pth",
        "folder.yaml",
        "out.pkl",
        "out.safetensors",
        "out.yaml",
    ]


def test_the_header_names_no_file(tmp_path):
    """A name may hold anything; the first line is a comment."""
    torch.save(network().state_dict(), tmp_path / "a.pth")
    out = tmp_path / "a\nMODEL: x.pkl"
    convert_file(tmp_path / "a.pth", out)
    assert set(yaml.safe_load(out.with_suffix(".yaml").read_text())) == {"VERSION", "INPUT", "MODEL"}
