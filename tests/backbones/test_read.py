"""Every family in its real nesting gives back the source network, and no key goes unmentioned."""

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor, nn

from momentum_transfer.backbones import read
from momentum_transfer.backbones.build import expected_shapes
from momentum_transfer.backbones.containers import Entry, leftovers, tensor_tables
from momentum_transfer.backbones.convert import convert_file
from momentum_transfer.backbones.convert import write as write_backbone
from momentum_transfer.backbones.families import FAMILIES
from momentum_transfer.backbones.matching import choose
from momentum_transfer.backbones.network_input import IMAGENET_MEAN, IMAGENET_STD
from momentum_transfer.backbones.read import checkpoint_file, load_backbone
from momentum_transfer.backbones.resnet import Architecture, build_resnet, from_detectron2, to_detectron2
from momentum_transfer.backbones.source import CoverageError, KeyReport
from momentum_transfer.backbones.understanding import Hints
from momentum_transfer.core.errors import InputError
from tests.backbones import family_writers
from tests.backbones.family_writers import TINY, WRITERS, Sample, detectron2_name, network
from tests.backbones.timm_family_writers import TIMM_WRITERS

STATE = network().state_dict()


def write(sample: Sample, folder: Path) -> Path:
    path = folder / f"checkpoint{sample.suffix}"
    if sample.suffix == ".pkl":
        path.write_bytes(pickle.dumps(sample.tree))
    elif sample.suffix == ".safetensors":
        save_file(sample.tree, path)
    else:
        torch.save(sample.tree, path)
    return path


def images() -> torch.Tensor:
    return torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("writer", WRITERS, ids=lambda writer: writer.__name__)
class TestEveryFamily:
    def test_default_network_gives_the_source_networks_own_features(self, writer, tmp_path):
        sample = writer()
        source = load_backbone(write(sample, tmp_path))
        assert (source.family, source.network) == (sample.family, sample.default)
        with torch.no_grad():
            assert torch.equal(source.build()(images()), sample.networks[sample.default](images()))

    def test_each_network_of_the_file_can_be_asked_for(self, writer, tmp_path):
        sample = writer()
        path = write(sample, tmp_path)
        for name, net in sample.networks.items():
            source = load_backbone(path, network=None if name == "backbone" else name)
            assert source.network == name
            for key in expected_shapes(TINY):
                assert torch.equal(source.state[key], net.state_dict()[key]), key

    def test_every_tensor_of_the_file_is_used_or_dropped_with_a_rule(self, writer, tmp_path):
        sample = writer()
        report = load_backbone(write(sample, tmp_path)).report
        accounted = set(report.used) | set(report.dropped)
        for path in tensor_paths(sample.tree):
            assert path in accounted or f"{path.rpartition('.')[0]}.*" in accounted or in_group(path, accounted), path
        assert report.complete
        assert all(report.dropped.values())
        assert sorted(report.used.values()) == sorted(expected_shapes(TINY))
        dropped = " ".join(report.dropped)
        assert all(name in dropped for name in sample.dropped)


def tensor_paths(tree, prefix=""):
    for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
        if isinstance(value, (dict, list, tuple)):
            yield from tensor_paths(value, f"{prefix}{key}.")
        elif hasattr(value, "shape"):
            yield f"{prefix}{key}"


def in_group(path: str, accounted: set[str]) -> bool:
    parts = path.split(".")
    return any(f"{'.'.join(parts[:count])}.*" in accounted for count in range(1, len(parts)))


def test_every_rule_has_a_fixture():
    held = {writer().family for writer in WRITERS} | {writer().family for writer in TIMM_WRITERS}
    assert held == {family.name for family in FAMILIES}


@pytest.mark.parametrize("name", ["resnet18", "resnet34", "resnet50"])
def test_torchvisions_own_forward_is_reproduced(name, tmp_path):
    model = torchvision.models.get_model(name, weights=None).eval()
    torch.save(model.state_dict(), tmp_path / "model.pth")
    source = load_backbone(tmp_path / "model.pth")
    assert source.architecture == Architecture(name)
    model.fc = nn.Identity()
    x = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        assert torch.equal(source.build()(x), model(x))


@pytest.mark.parametrize("name", ["resnet10", "resnet18", "resnet34", "resnet50", "resnet101"])
@pytest.mark.parametrize("width", [8, 12])
@pytest.mark.parametrize("stem", ["imagenet", "small"])
def test_architecture_is_inferred_from_names_and_shapes(name, width, stem, tmp_path):
    architecture = Architecture(name, width, stem)
    torch.save(build_resnet(architecture).state_dict(), tmp_path / "b.pth")
    assert load_backbone(tmp_path / "b.pth").architecture == architecture


def test_legacy_torch_file_reads_like_a_zip(tmp_path):
    sample = family_writers.moco_v2()
    torch.save(sample.tree, tmp_path / "legacy.pth.tar", _use_new_zipfile_serialization=False)
    state = load_backbone(tmp_path / "legacy.pth.tar").state
    assert all(torch.equal(state[key], sample.networks["student"].state_dict()[key]) for key in state)


def test_both_wrappers_and_none_read_the_same(tmp_path):
    state = network().state_dict()
    for prefix in ("", "module.", "_orig_mod.", "_orig_mod.module.", "module._orig_mod."):
        torch.save({f"{prefix}{name}": tensor for name, tensor in state.items()}, tmp_path / "b.pth")
        loaded = load_backbone(tmp_path / "b.pth").state
        assert all(torch.equal(loaded[name], state[name]) for name in state)


def test_half_precision_weights_build_a_float32_network(tmp_path):
    state = network().half().state_dict()
    torch.save(state, tmp_path / "half.pth")
    source = load_backbone(tmp_path / "half.pth")
    assert source.state["conv1.weight"].dtype == torch.float16
    built = source.build()
    assert torch.equal(built.conv1.weight, state["conv1.weight"].float())


def test_absent_counters_are_filled_and_stated(tmp_path):
    state = {name: tensor for name, tensor in network().state_dict().items() if "num_batches" not in name}
    torch.save(state, tmp_path / "old.pth")
    source = load_backbone(tmp_path / "old.pth")
    assert len(source.report.filled) == sum("num_batches" in name for name in expected_shapes(TINY))
    assert source.state["bn1.num_batches_tracked"] == 0
    source.build()


def test_run_folder_is_read_through_its_last_pointer(tmp_path):
    folder = tmp_path / "run" / "checkpoints"
    folder.mkdir(parents=True)
    torch.save(family_writers.ours().tree, folder / "step_0000007.pt")
    (folder / "last").write_text("step_0000007.pt\n")
    source = load_backbone(tmp_path / "run")
    assert source.path == folder / "step_0000007.pt"
    assert source.metadata["method"] == "byol"
    assert source.metadata["step"] == "7"
    assert source.metadata["network"] == "teacher"
    (folder / "last").write_text("../../elsewhere.pt")
    with pytest.raises(InputError, match="to name a checkpoint beside it"):
        checkpoint_file(tmp_path / "run")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="without checkpoints/last"):
        load_backbone(tmp_path / "empty")


def test_exported_backbone_of_a_run_folder_is_read_where_no_checkpoint_is_left(tmp_path):
    net = network()
    save_file(dict(net.state_dict()), tmp_path / "backbone.safetensors", metadata={"network": "teacher"})
    source = load_backbone(tmp_path)
    assert source.network == "teacher"
    assert load_backbone(tmp_path, network="teacher").network == "teacher"
    with pytest.raises(InputError, match="holds the teacher only"):
        load_backbone(tmp_path, network="student")


def test_checkpoint_of_another_version_of_this_project_is_refused(tmp_path):
    torch.save({**family_writers.ours().tree, "format": "momentum-transfer/9"}, tmp_path / "new.pt")
    with pytest.raises(InputError, match="format momentum-transfer/1, found momentum-transfer/9"):
        load_backbone(tmp_path / "new.pt")


def test_winner_and_runner_up_are_printed(tmp_path, capsys):
    load_backbone(write(family_writers.swav(), tmp_path))
    assert "swav (60 backbone tensors" in (out := capsys.readouterr().out)
    assert "runner-up torchvision (60 backbone tensors" in out


def zoo_detector(tmp_path: Path, name: str = "resnet50") -> tuple[Path, dict[str, Tensor]]:
    """A finished detector as Detectron2's authors publish it, and its ResNet's tensors under torchvision's names."""
    state = network(Architecture(name, 8)).state_dict()
    model = {f"backbone.bottom_up.{to_detectron2(key)}": tensor for key, tensor in state.items()}
    model["proposal_generator.rpn_head.conv.weight"] = torch.ones(2, 2, 3, 3)
    torch.save({"model": model, "__author__": "Detectron2 Model Zoo"}, tmp_path / "zoo.pth")
    return tmp_path / "zoo.pth", state


def caffes_maps(pixels: Tensor, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Maps of a bottleneck ResNet in Caffe's style, by the formulas: images [N, 3, H, W] are RGB of 0..255."""

    def norm(x: Tensor, name: str) -> Tensor:
        mean, var, scale, shift = (state[f"{name}.{key}"] for key in ("running_mean", "running_var", "weight", "bias"))
        return torch.nn.functional.batch_norm(x, mean, var, scale, shift)

    def conv(x: Tensor, name: str, stride: int = 1, padding: int = 0) -> Tensor:
        return torch.nn.functional.conv2d(x, state[f"{name}.weight"], stride=stride, padding=padding)

    x = pixels[:, [2, 1, 0]] - torch.tensor([103.53, 116.28, 123.675]).view(3, 1, 1)
    x = torch.nn.functional.max_pool2d(norm(conv(x, "conv1", 2, 3), "bn1").relu(), 3, 2, 1)
    maps = {}
    for number, blocks in enumerate((3, 4, 6, 3), start=1):
        for block in range(blocks):
            name, stride = f"layer{number}.{block}", 2 if number > 1 and block == 0 else 1
            y = norm(conv(x, f"{name}.conv1", stride), f"{name}.bn1").relu()
            y = norm(conv(y, f"{name}.conv2", padding=1), f"{name}.bn2").relu()
            y = norm(conv(y, f"{name}.conv3"), f"{name}.bn3")
            if block == 0:
                x = norm(conv(x, f"{name}.downsample.0", stride), f"{name}.downsample.1")
            x = (x + y).relu()
        maps[f"res{number + 1}"] = x
    return maps


def features_of_pixels(path: Path, pixels: Tensor, **options: Any) -> dict[str, Tensor]:
    """What frozen features are taken of: the network that was read, on images normalised for a ResNet."""
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (IMAGENET_MEAN, IMAGENET_STD))
    with torch.no_grad():
        return load_backbone(path, **options).build().stages((pixels / 255 - mean) / std)


def test_a_detector_of_detectron2s_zoo_gives_the_features_of_caffes_resnet(tmp_path, capsys):
    path, state = zoo_detector(tmp_path)
    pixels = torch.randint(0, 256, (2, 3, 75, 101)).float()
    expected, found = caffes_maps(pixels, state), features_of_pixels(path, pixels)
    said = capsys.readouterr().out
    assert "resnet50?width=8&style=caffe, as most of Detectron2's model zoo: BGR" in said
    assert "--arch 'resnet50?width=8'" in said
    for name, reference in expected.items():
        torch.testing.assert_close(found[name], reference, rtol=1e-5, atol=1e-5 * float(reference.abs().max()))
    other = features_of_pixels(path, pixels, architecture="resnet50?width=8")["res5"]
    assert float((other - expected["res5"]).norm() / expected["res5"].norm()) > 0.1


@pytest.mark.detectron2
def test_a_detector_of_detectron2s_zoo_gives_the_features_of_detectron2(tmp_path):
    pytest.importorskip("detectron2")
    from detectron2.config import get_cfg
    from detectron2.layers import ShapeSpec
    from detectron2.modeling.backbone import build_resnet_backbone

    path, state = zoo_detector(tmp_path)
    cfg = get_cfg()
    cfg.MODEL.RESNETS.OUT_FEATURES = ["res2", "res3", "res4", "res5"]
    cfg.MODEL.RESNETS.STEM_OUT_CHANNELS = cfg.MODEL.RESNETS.WIDTH_PER_GROUP = 8
    cfg.MODEL.RESNETS.RES2_OUT_CHANNELS = 32
    reference = build_resnet_backbone(cfg, ShapeSpec(channels=3)).eval()
    reference.load_state_dict({to_detectron2(k): v for k, v in state.items() if not k.endswith("_tracked")})
    pixels = torch.randint(0, 256, (2, 3, 75, 101)).float()
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (cfg.MODEL.PIXEL_MEAN, cfg.MODEL.PIXEL_STD))
    with torch.no_grad():
        expected = reference((pixels.flip(1) - mean) / std)
    found = features_of_pixels(path, pixels)
    for name, maps in expected.items():
        torch.testing.assert_close(found[name], maps, rtol=1e-5, atol=1e-5 * float(maps.abs().max()))


def test_the_style_of_a_resnet_travels_with_a_conversion_and_is_not_guessed_for_other_files(tmp_path):
    path, state = zoo_detector(tmp_path)
    convert_file(path, tmp_path / "out.pkl")
    convert_file(path, tmp_path / "out.safetensors")
    for file in (path, tmp_path / "out.pkl", tmp_path / "out.safetensors"):
        source = load_backbone(file)
        assert source.architecture == Architecture("resnet50", 8, style="caffe")
        assert all(torch.equal(source.state[name], tensor) for name, tensor in state.items())
    settings = yaml.safe_load((tmp_path / "out.yaml").read_text())
    assert settings["INPUT"] == {"FORMAT": "BGR"}
    assert settings["MODEL"]["RESNETS"]["STRIDE_IN_1X1"] is True
    assert settings["MODEL"]["PIXEL_MEAN"] == [103.53, 116.28, 123.675]
    assert settings["MODEL"]["PIXEL_STD"] == [1.0, 1.0, 1.0]
    assert load_backbone(path, "resnet50?width=8").architecture == Architecture("resnet50", 8)
    with pytest.raises(InputError, match=r"torchvision's style, found resnet50\?width=8&style=caffe; leave into out"):
        read.load(path, into=network(Architecture("resnet50", 8)))
    torch.save({"model": torch.load(path)["model"]}, path)
    assert load_backbone(path).architecture == Architecture("resnet50", 8)
    assert load_backbone(path, "resnet50?width=8&style=caffe").architecture.style == "caffe"


def test_network_is_said_aloud(tmp_path, capsys):
    path = write(family_writers.momentum2(), tmp_path)
    load_backbone(path)
    assert "network: teacher, the default of Momentum² Teacher" in capsys.readouterr().out
    load_backbone(path, network="student")
    assert "network: student, as asked" in capsys.readouterr().out


def test_tie_is_an_error_that_asks_for_the_family(tmp_path):
    state = {f"backbone.{name}": tensor for name, tensor in network().state_dict().items()}
    torch.save({"state_dict": state}, tmp_path / "b.pth")
    with pytest.raises(InputError, match=r"tie of lightly, mmselfsup .*--family lightly"):
        load_backbone(tmp_path / "b.pth")
    assert load_backbone(tmp_path / "b.pth", family="mmselfsup").family == "mmselfsup"


def test_flat_dino_without_its_head_is_read_where_the_family_is_named(tmp_path):
    torch.save({f"module.backbone.{name}": tensor for name, tensor in STATE.items()}, tmp_path / "b.pth")
    source = load_backbone(tmp_path / "b.pth", family="dino")
    assert (source.family, source.network) == ("dino", "backbone")
    assert torch.equal(source.state["conv1.weight"], STATE["conv1.weight"])


def test_each_copy_of_the_student_is_accounted_for(tmp_path):
    report = load_backbone(write(family_writers.mmselfsup_byol(), tmp_path)).report
    assert report.used["state_dict.backbone.conv1.weight"] == "conv1.weight"
    assert report.dropped["state_dict.online_net.0.conv1.weight"] == "another copy of the student"


def test_missing_tensor_is_an_error_with_the_report(tmp_path):
    state = dict(network().state_dict())
    del state["layer2.0.bn1.running_var"]
    torch.save(state, tmp_path / "b.pth")
    with pytest.raises(CoverageError, match=r"1 missing \(layer2\.0\.bn1\.running_var\).*nothing was loaded") as caught:
        load_backbone(tmp_path / "b.pth")
    assert caught.value.report.missing == ["layer2.0.bn1.running_var"]
    assert caught.value.report.as_dict()["complete"] is False


def test_wrong_shape_is_an_error_with_both_shapes(tmp_path):
    state = dict(network().state_dict())
    state["layer3.0.conv2.weight"] = torch.zeros(32, 16, 3, 3)
    torch.save(state, tmp_path / "b.pth")
    with pytest.raises(CoverageError, match=r"layer3\.0\.conv2\.weight is \[32, 16, 3, 3\], expected \[32, 32, 3, 3\]"):
        load_backbone(tmp_path / "b.pth")


def test_extra_tensor_inside_the_backbone_is_an_error(tmp_path):
    torch.save({**network().state_dict(), "layer1.0.se.fc1.weight": torch.zeros(2)}, tmp_path / "b.pth")
    with pytest.raises(CoverageError, match=r"1 that are not part of a resnet10, .* \(layer1\.0\.se\.fc1\.weight\)"):
        load_backbone(tmp_path / "b.pth")


@pytest.mark.parametrize("value", [0.0, 0.02])
@pytest.mark.parametrize("names", [("layer2.0.conv1.weight",), tuple(n for n in STATE if STATE[n].dim() == 4)])
def test_convolutions_of_one_value_are_refused_by_name(tmp_path, names, value):
    torch.save({**STATE, **{name: torch.full_like(STATE[name], value) for name in names}}, tmp_path / "b.pth")
    with pytest.raises(InputError, match=rf"found {value:g} in all [\d,]+ places of {names[0]} of .*b\.pth"):
        load_backbone(tmp_path / "b.pth")


def test_norms_and_biases_of_one_value_are_read_as_they_begin_so(tmp_path):
    torch.save(
        {n: torch.zeros_like(t) if n.endswith("bn2.weight") else t for n, t in STATE.items()}, tmp_path / "b.pth"
    )
    assert not load_backbone(tmp_path / "b.pth").state["layer1.0.bn2.weight"].any()


ADDITIONS = ("", "module.", "_orig_mod.", "layer9.", "queue_of_", "fc.")


def buckets_of(path: str, report: KeyReport) -> int:
    """In how many buckets of the report a tensor's path is."""
    parts = path.split(".")
    groups = {f"{'.'.join(parts[:count])}.*" for count in range(1, len(parts))}
    wrong = [key for key, _, _ in report.wrong_shape]
    exact = [*report.used, *report.dropped, *wrong, *report.unexpected].count(path)
    return exact + len(groups & set(report.dropped))


@settings(max_examples=25, deadline=None)
@given(
    extra=st.lists(st.tuples(st.sampled_from(ADDITIONS), st.sampled_from(sorted(expected_shapes(TINY)))), max_size=6),
    misshaped=st.sets(st.sampled_from([name for name in expected_shapes(TINY) if "layer" in name]), max_size=2),
    container=st.sampled_from(["", "state_dict", "model"]),
)
def test_every_tensor_is_in_exactly_one_bucket_whatever_is_added(extra, misshaped, container, tmp_path_factory):
    state = dict(STATE)
    state |= {f"{prefix}{name}": STATE[name] + 1 for prefix, name in extra}
    state |= {name: torch.zeros(1, 2) for name in misshaped}
    tree = {container: state, "extras": [torch.zeros(2)], "more": {"in": ({"w": torch.zeros(1)},)}, "epoch": 3}
    state["list"] = [torch.zeros(1)]
    if not container:
        tree = {**state, **{key: value for key, value in tree.items() if key}}
    path = tmp_path_factory.mktemp("bucket") / "b.pth"
    torch.save(tree, path)
    try:
        report = load_backbone(path, family="torchvision").report
    except CoverageError as error:
        report = error.report
    assert [p for p in tensor_paths(tree) if buckets_of(p, report) != 1] == []
    assert report.complete == (not misshaped and all(prefix in ("", "fc.") for prefix, _ in extra))


@pytest.mark.parametrize("names", [("conv1.weight", "module.conv1.weight"), ("module.conv1.weight", "conv1.weight")])
def test_two_keys_for_one_tensor_are_refused_and_the_second_is_named(names, tmp_path):
    state = {name: tensor for name, tensor in STATE.items() if name != "conv1.weight"}
    torch.save(state | {name: torch.randn(8, 3, 7, 7) for name in names}, tmp_path / "b.pth")
    with pytest.raises(CoverageError, match=rf"occur twice \({names[1]}\)") as caught:
        load_backbone(tmp_path / "b.pth")
    assert caught.value.report.unexpected == [names[1]]
    assert names[0] in caught.value.report.used


def test_two_tensors_at_one_path_are_refused(tmp_path):
    torch.save({"model": dict(STATE), "model.conv1.weight": torch.zeros(8, 3, 7, 7)}, tmp_path / "b.pth")
    with pytest.raises(InputError, match=r"one tensor a path, found two at model\.conv1\.weight"):
        load_backbone(tmp_path / "b.pth")


def test_a_missing_block_names_the_depth_that_was_found(tmp_path):
    state = build_resnet(Architecture("resnet18", 8)).state_dict()
    torch.save({name: t for name, t in state.items() if not name.startswith("layer4.1")}, tmp_path / "b.pth")
    with pytest.raises(InputError, match=r"found \(2, 2, 2, 1\) blocks \(BasicBlock\)"):
        load_backbone(tmp_path / "b.pth")


def test_wide_resnet_of_torchvision_is_refused_by_shape(tmp_path):
    with torch.device("meta"):
        wide = torchvision.models.wide_resnet50_2(weights=None).state_dict()
    torch.save({name: torch.zeros(t.shape, dtype=t.dtype) for name, t in wide.items() if "layer4" not in name} | {
        name: torch.zeros(1) for name in wide if "layer4" in name}, tmp_path / "wide.pth")  # fmt: skip
    with pytest.raises(CoverageError, match="of another shape"):
        load_backbone(tmp_path / "wide.pth")


def test_torchvisions_vision_transformer_is_refused(tmp_path):
    torch.save({"class_token": torch.zeros(1, 1, 8), "conv_proj.weight": torch.zeros(8, 3, 4, 4)}, tmp_path / "v.pth")
    with pytest.raises(InputError, match=r"torchvision's vision transformer \(conv_proj\.weight\)"):
        load_backbone(tmp_path / "v.pth")


def test_the_backbone_of_torchvisions_detectors_is_that_of_their_body(tmp_path):
    body = torchvision.models.detection.backbone_utils.resnet_fpn_backbone(backbone_name="resnet18", weights=None)
    detector = torchvision.models.detection.FasterRCNN(body, num_classes=3).eval()
    for module in detector.modules():
        if hasattr(module, "running_var"):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 1.5)
    torch.save(detector.state_dict(), tmp_path / "coco.pth")
    source = load_backbone(tmp_path / "coco.pth")
    assert (source.family, str(source.architecture)) == ("torchvision-detector", "resnet18")
    assert {reason.split(" ")[-1] for reason in source.report.dropped.values()} == {"pyramid", "heads"}
    images = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        expected, found = detector.backbone.body(images), source.build().stages(images)
    last = list(expected)[-1]
    assert torch.allclose(found["res5"], expected[last], rtol=1e-4, atol=1e-4 * float(expected[last].abs().max()))


def test_head_alone_is_refused(tmp_path):
    torch.save({"fc.weight": torch.zeros(10, 64), "fc.bias": torch.zeros(10)}, tmp_path / "head.pth")
    with pytest.raises(InputError, match="found only a head"):
        load_backbone(tmp_path / "head.pth")


def test_state_without_tensors_and_unknown_names_are_refused(tmp_path):
    torch.save({"epoch": 3}, tmp_path / "a.pth")
    with pytest.raises(InputError, match="with a dict of tensors, found none"):
        load_backbone(tmp_path / "a.pth")
    torch.save({"trunk.0.kernel": torch.zeros(3)}, tmp_path / "b.pth")
    with pytest.raises(
        InputError, match=r"expected the names of a known family, found 1 tensors, such as trunk\.0\.kernel"
    ):
        load_backbone(tmp_path / "b.pth")


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (torch.zeros(8, 3, 7, 7, dtype=torch.complex64), "complex ones"),
        (torch.zeros(8, 3, 7, 7, dtype=torch.int8), "integer ones"),
        (torch.full((8, 3, 7, 7), float("nan")), "NaN or Inf in conv1.weight"),
        (torch.full((8, 3, 7, 7), float("inf")), "NaN or Inf in conv1.weight"),
    ],
)
def test_values_that_are_no_weights_are_refused(value, found, tmp_path):
    torch.save({**network().state_dict(), "conv1.weight": value}, tmp_path / "b.pth")
    with pytest.raises(InputError, match=found):
        load_backbone(tmp_path / "b.pth")


def test_haiku_names_are_refused_with_the_padding_reason(tmp_path):
    tree = {"experiment_state": {"online_params": {"res_net50/~/initial_conv": {"w": torch.zeros(7, 7, 3, 8).numpy()}}}}
    (tmp_path / "byol.pkl").write_bytes(pickle.dumps(tree))
    with pytest.raises(InputError, match="SAME padding"):
        load_backbone(tmp_path / "byol.pkl")


@pytest.mark.parametrize("wrap", [lambda tree: [tree], lambda tree: (tree, None), lambda tree: {"a": [(tree,)]}])
def test_haiku_names_inside_lists_and_tuples_are_refused_with_the_padding_reason(wrap, tmp_path):
    tree = wrap({"res_net50/~/initial_conv": {"w": torch.zeros(7, 7, 3, 8).numpy()}})
    (tmp_path / "byol.pkl").write_bytes(pickle.dumps({"experiment_state": tree}))
    with pytest.raises(InputError, match="SAME padding"):
        load_backbone(tmp_path / "byol.pkl")


@pytest.mark.parametrize(
    ("key", "kind"),
    [
        ("head.classification_head.cls_logits.weight", "a detector"),  # torchvision's RetinaNet and FCOS
        ("backbone.fpn.inner_blocks.0.0.weight", "a detector"),
        ("neck.fpn_convs.0.conv.weight", "a detector"),  # MMDetection
        ("aux_classifier.0.weight", "a segmenter"),  # torchvision's DeepLab
        ("classifier.0.convs.0.0.weight", "a segmenter"),
        ("decode_head.conv_seg.weight", "a segmenter"),  # MMSegmentation
        ("auxiliary_head.conv_seg.weight", "a segmenter"),
    ],
)
def test_torchvisions_and_openmmlabs_detectors_and_segmenters_are_named(key, kind, tmp_path):
    state = {f"backbone.{name}": tensor for name, tensor in STATE.items()}
    torch.save({"state_dict": state | {key: torch.zeros(2)}}, tmp_path / "d.pth")
    with pytest.raises(InputError, match=f"found {kind}"):
        load_backbone(tmp_path / "d.pth")


@pytest.mark.parametrize(
    ("name", "value", "found"),
    [
        ("bn1.running_var", torch.full((8,), -0.5), "variances of at least 0, found -0.5 in bn1.running_var"),
        ("bn1.num_batches_tracked", torch.tensor(True), "integer counter, found torch.bool"),
        ("bn1.num_batches_tracked", torch.tensor(3.0).half(), "found torch.float16 .*cast only the floating-point"),
    ],
)
def test_negative_variances_and_counters_of_other_kinds_are_refused(name, value, found, tmp_path):
    torch.save({**STATE, name: value}, tmp_path / "b.pth")
    with pytest.raises(InputError, match=found):
        load_backbone(tmp_path / "b.pth")


def test_unknown_family_and_network_name_the_known_ones(tmp_path):
    path = write(family_writers.simsiam(), tmp_path)
    with pytest.raises(InputError, match="expected a family of momentum-transfer, momentum2"):
        load_backbone(path, family="simclr9")
    with pytest.raises(InputError, match="expected network to be student or teacher"):
        load_backbone(path, network="both")
    with pytest.raises(InputError, match="expected a teacher network, found only the student"):
        load_backbone(path, network="teacher")


def test_names_go_to_detectron2_and_back_one_to_one():
    for architecture in (Architecture("resnet18"), Architecture("resnet101", 8)):
        names = list(expected_shapes(architecture))
        converted = [to_detectron2(name) for name in names]
        assert converted == [detectron2_name(name) for name in names]
        assert [from_detectron2(name) for name in converted] == names
        assert len(set(converted)) == len(names)


def test_the_score_is_the_backbones_tensors_and_the_keys_that_a_rule_explains():
    floats = sum(not name.endswith("num_batches_tracked") for name in STATE)
    beside = {"fc.weight": torch.zeros(3, 64), "fc.bias": torch.zeros(3)}
    for extra, explained in (({}, len(STATE)), (beside, len(STATE) + 2)):
        tree = {**STATE, **extra}
        reading = choose(tensor_tables(tree), tree, None, None, Path("a.pth"), Hints())
        assert reading.score == (floats, explained)
        assert reading.report.complete
    wrapped = {f"module.{name}": tensor for name, tensor in STATE.items()}
    optimizer = {"state": [{"a": torch.zeros(1)}]}
    tree = {"state_dict": wrapped, "epoch": 3, "optimizer": optimizer, "ema": {"x": STATE["conv1.weight"]}}
    tree["best"] = torch.zeros(1)
    tables = tensor_tables(tree)
    assert choose(tables, tree, None, None, Path("a.pth"), Hints()).score[0] == floats
    assert leftovers(tree, {"state_dict": tables["state_dict"]}) == {
        "epoch": "not weights (training state or settings)", "optimizer.*": "another part of the file",
        "ema.*": "another part of the file", "best": "another part of the file",
    }  # fmt: skip


def test_names_that_no_rule_explains_are_told_by_where_they_lie_and_leave_the_score_as_it_was():
    tree = {"state_dict": {f"encoder_q.{name}": tensor for name, tensor in STATE.items()}}
    tables, alone = tensor_tables(tree), torch.zeros(3)
    before = choose(tables, tree, None, None, Path("a.pth"), Hints())
    (container,) = tables
    tables = {container: [*tables[container], Entry("state_dict.strange", "strange", alone)],
              "other": [Entry("other.a", "a", alone), Entry("other.b", "b", alone)]}  # fmt: skip
    found = choose(tables, tree, None, None, Path("a.pth"), Hints())
    assert (found.family, found.score, found.unexplained) == (before.family, before.score, 3)
    assert found.report.dropped == {
        **before.report.dropped, "state_dict.strange": "outside the backbone's prefix",
        "other.a": "another part of the file", "other.b": "another part of the file",
    }  # fmt: skip


def test_what_is_asked_of_a_file_counts_before_the_metadata_that_this_project_wrote_into_it(tmp_path):
    path = tmp_path / "own.safetensors"
    write_backbone(path, STATE, TINY, {})
    assert load_backbone(path).architecture == TINY
    assert load_backbone(path, str(TINY)).architecture == TINY
    for asked in ({"architecture": "resnet18"}, {"family": "dino"}):
        with pytest.raises(InputError, match=r"own\.safetensors"):
            load_backbone(path, **asked)
    assert load_backbone(path, family="torchvision").family == "torchvision"
