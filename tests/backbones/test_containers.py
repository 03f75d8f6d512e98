"""Which dicts of tensors a file holds, and which files hold no backbone, by names alone."""

import hashlib
import json
from pathlib import Path

import pytest
import torch

from momentum_transfer.backbones.containers import (
    leftovers,
    read_shards,
    refuse_other_models,
    refuse_vitdet,
    sha256_of_shards,
    tensor_tables,
)
from momentum_transfer.core.errors import InputError

ONE = torch.zeros(1)


def names(tree: object) -> dict[str, dict[str, str]]:
    """Container -> full key -> name without wrappers."""
    return {
        container: {entry.key: entry.name for entry in entries} for container, entries in tensor_tables(tree).items()
    }


def test_tensors_are_found_where_families_keep_them_under_their_names_without_wrappers():
    tree = {"state_dict": {"module.conv1.weight": ONE, "epoch": 3}, "model": {}, "conv1.weight": ONE, 5: ONE}
    assert names(tree) == {
        "state_dict": {"state_dict.module.conv1.weight": "conv1.weight"}, "": {"conv1.weight": "conv1.weight", "5": "5"}
    }  # fmt: skip
    assert names([ONE]) == names({"state_dict": [ONE]}) == names(ONE) == {}
    with pytest.raises(InputError, match=r"expected one tensor a path, found two at state_dict\.a"):
        tensor_tables({"state_dict": {"a": ONE}, "state_dict.a": ONE})


def test_a_bare_resnet_in_a_detector_is_moved_to_where_pyramids_have_it():
    held = {"backbone.stem.conv1.weight": ONE, "roi_heads.res5.0.conv1.weight": ONE, "roi_heads.box_predictor.a": ONE,
            "backbone.res2.norm.weight": ONE}  # fmt: skip
    (found,) = names({"model": held}).values()
    assert list(found.values()) == [
        "backbone.bottom_up.stem.conv1.weight", "backbone.bottom_up.res5.0.conv1.weight", "roi_heads.box_predictor.a",
        "backbone.res2.norm.weight",
    ]  # fmt: skip
    del held["backbone.stem.conv1.weight"]
    assert all(key.removeprefix("model.") == name for key, name in names({"model": held})["model"].items())


def test_what_a_file_holds_beside_the_tables_is_listed_by_its_path():
    tree = {
        "state_dict": {"a": ONE}, "epoch": 3, "other": ONE, "list": [1, (ONE,)], "numbers": [1, 2],
        "deep": {"deeper": {"x": ONE}, "n": 1}, "nothing": {},
    }  # fmt: skip
    settings, part = "not weights (training state or settings)", "another part of the file"
    assert leftovers(tree, {"state_dict": []}) == {
        "epoch": settings, "other": part, "list.*": part, "numbers": settings, "deep.*": part, "nothing": settings
    }  # fmt: skip
    assert leftovers(tree, {"state_dict": [], "": []}).keys() == {"epoch", "list.*", "numbers", "deep.*", "nothing"}
    assert leftovers(tree, {"state_dict": [], "deep.deeper": []})["list.*"] == part
    assert "deep.*" not in leftovers(tree, {"deep.deeper": []})
    assert leftovers({"state_dicts": {"a": ONE}}, {"state_dict": []}) == {"state_dicts.*": part}
    assert leftovers([ONE], {}) == {}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("conv_proj.weight", "torchvision's vision transformer"),
        ("encoder.pos_embedding", "torchvision's vision transformer"),
        ("encoder.pos_embeddings", ""),
        ("roi_head.bbox.weight", "a detector"),
        ("x.rpn_head.weight", "a detector"),
        ("backbone.fpn.weight", "a detector"),
        ("head.classification_head.a", "a detector"),
        ("decode_head.conv.weight", "a segmenter"),
        ("classifier.0.convs.0.weight", "a segmenter"),
        ("classifier.0.weight", ""),
        ("layer1.rpnx.weight", ""),
    ],
)
def test_other_models_are_told_by_one_of_their_names(name: str, kind: str):
    tree = {"conv1.weight": ONE, name: ONE}
    if not kind:
        refuse_other_models(tree, tensor_tables(tree), Path("a.pth"))
        return
    with pytest.raises(InputError, match=rf"expected a backbone, found {kind} \({name}\) in a\.pth"):
        refuse_other_models(tree, tensor_tables(tree), Path("a.pth"))
    own = {**tree, "backbone.bottom_up.stem.conv1.weight": ONE}
    refuse_other_models(own, tensor_tables(own), Path("a.pth"))


@pytest.mark.parametrize(
    ("tree", "name"),
    [
        ({"resnet/~/conv": {"b": 1}}, "resnet/~/conv"),
        ({"resnet/conv": {"w": 1}}, "resnet/conv"),
        ({"resnet/conv": {"b": 1}}, ""),
        ({"resnet/conv": 3}, ""),
        ({"conv": {"w": 1}}, ""),
        ([({"a": {"x/~/y": 1}},)], "x/~/y"),
        ({"1": {"2": {"3": {"4": {"5": {"6": {"a/~/b": 1}}}}}}}, "a/~/b"),
        ({"1": {"2": {"3": {"4": {"5": {"6": {"7": {"a/~/b": 1}}}}}}}}, ""),
    ],
)
def test_haikus_names_are_found_up_to_six_levels_deep(tree: object, name: str):
    if not name:
        refuse_other_models(tree, {}, Path("a.pkl"))
        return
    with pytest.raises(InputError, match=rf"expected torch weights, found Haiku's \({name}\) in a\.pkl"):
        refuse_other_models(tree, {}, Path("a.pkl"))


def test_vitdets_network_is_refused_unless_its_final_norm_is_there():
    block, norm = "backbone.net.blocks.0.norm1.weight", "backbone.net.norm.weight"
    with pytest.raises(InputError, match="found ViTDet's network in a detector"):
        refuse_vitdet(tensor_tables({block: ONE}), Path("a.pth"))
    for held in ({block: ONE, norm: ONE}, {block: ONE, "backbone.net.fc_norm.weight": ONE}, {norm: ONE},
                 {"backbone.net.blocks.1.norm1.weight": ONE}):  # fmt: skip
        refuse_vitdet(tensor_tables(held), Path("a.pth"))


def shards(folder: Path, placed: dict[str, str], **held: dict) -> Path:
    for name, tensors in held.items():
        torch.save(tensors, folder / f"{name}.bin")
    (folder / "model.index.json").write_text(json.dumps({"weight_map": placed}))
    return folder / "model.index.json"


def test_shards_hold_exactly_what_their_index_says(tmp_path: Path):
    first, second = {"a": torch.ones(1), "b": torch.ones(2)}, {"c": torch.ones(3)}
    placed = {"c": "two.bin", "a": "one.bin", "b": "one.bin"}
    index = shards(tmp_path, placed, one=first, two=second)
    whole = read_shards(index)
    assert {name: len(tensor) for name, tensor in whole.items()} == {"a": 1, "b": 2, "c": 3}
    hashes = [hashlib.sha256((tmp_path / f"{name}.bin").read_bytes()).hexdigest() for name in ("one", "two")]
    assert sha256_of_shards(index) == hashlib.sha256(" ".join(hashes).encode()).hexdigest()
    for held, found in (
        ({**second, "d": ONE}, "found 2 (d differs)"),
        ({}, "found 0 (c differs)"),
        ([ONE], "found 0 (c"),
    ):
        with pytest.raises(InputError) as error:
            read_shards(shards(tmp_path, placed, two=held))
        assert "two.bin the 1 tensors that model.index.json lists" in str(error.value)
        assert found in str(error.value)
