"""Conversions keep every bit, cover every tensor or write nothing, and load into Detectron2 unchanged."""

import json
import pickle
import runpy
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision

from momentum_transfer.backbones import convert, read
from momentum_transfer.backbones.build import build_backbone, expected_shapes, parse_architecture
from momentum_transfer.backbones.convert import backbone_state
from momentum_transfer.backbones.read import load_backbone
from momentum_transfer.backbones.resnet import Architecture, build_resnet, from_detectron2
from momentum_transfer.core.errors import InputError
from tests.backbones import family_writers
from tests.backbones.family_writers import detectron2_name, network

ROOT = Path(__file__).resolve().parents[2]
ARCHITECTURES = [
    Architecture("resnet10", 8), Architecture("resnet18", 8), Architecture("resnet34", 8), Architecture("resnet50", 8),
    Architecture("resnet101", 8), Architecture("resnet50", 16), Architecture("resnet10", 12, "small"),
]  # fmt: skip


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().numpy().tobytes()


@pytest.mark.parametrize("architecture", ARCHITECTURES, ids=str)
def test_round_trip_through_every_format_keeps_every_bit(architecture, tmp_path):
    state = network(architecture).state_dict()
    state["bn1.bias"][0] = -0.0  # the sign of zero is a bit too
    torch.save(state, tmp_path / "0.pth")
    for number, suffix in enumerate((".pkl", ".safetensors", ".pkl", ".pth", ".pkl")):
        previous = next(tmp_path.glob(f"{number}.*"))
        source = load_backbone(previous)
        convert.write(tmp_path / f"{number + 1}{suffix}", source.state, source.architecture, source.metadata)
    final = load_backbone(tmp_path / "5.pkl")
    assert final.architecture == architecture
    assert set(final.state) == set(state)
    for name, tensor in state.items():
        assert final.state[name].dtype == tensor.dtype
        assert bits(final.state[name]) == bits(tensor), name


@pytest.mark.parametrize("suffix", convert.SUFFIXES)
def test_the_same_backbone_is_written_as_the_same_bytes(suffix, tmp_path):
    metadata = {key: f"{key} of several in the header" for key in "abcdefgh"}
    state, written = network().state_dict(), []
    for number in range(3):
        convert.write(tmp_path / f"{number}{suffix}", state, family_writers.TINY, metadata)
        written.append((tmp_path / f"{number}{suffix}").read_bytes())
    assert written[0] == written[1] == written[2]


def test_in_memory_conversion_is_its_own_inverse():
    state = network(Architecture("resnet50", 8)).state_dict()
    arrays = convert.to_detectron2(state, Architecture("resnet50", 8))
    assert set(arrays) == {detectron2_name(name) for name in state}
    back = {from_detectron2(name): array for name, array in arrays.items()}
    assert list(back) == list(state)
    assert all(torch.equal(torch.as_tensor(back[name]), state[name]) for name in state)


def test_two_x_width_is_converted():
    architecture = Architecture("resnet50", 128)
    with torch.device("meta"):
        state = build_resnet(architecture).state_dict()
    state = {name: torch.zeros((), dtype=t.dtype).expand(t.shape) for name, t in state.items()}
    arrays = convert.to_detectron2(state, architecture)
    assert arrays["res5.0.shortcut.weight"].shape == (4096, 2048, 1, 1)


def test_pickle_holds_what_detectron2_asks_for(tmp_path):
    state = network().state_dict()
    convert.write(tmp_path / "w.pkl", state, family_writers.TINY, {"source": "x.pth"})
    tree = pickle.loads((tmp_path / "w.pkl").read_bytes(), encoding="latin1")  # as DetectionCheckpointer reads it
    assert tree["matching_heuristics"] is True
    assert tree["__author__"] == "momentum-transfer"
    assert tree["metadata"] == {"source": "x.pth"}
    assert all(isinstance(value, np.ndarray) and value.flags.writeable for value in tree["model"].values())
    assert tree["model"]["stem.conv1.norm.num_batches_tracked"].dtype == np.int64
    assert b"numpy._core" not in (tmp_path / "w.pkl").read_bytes()  # older numpy has no such module


def test_half_formats_are_widened_exactly_in_a_pickle(tmp_path):
    state = {n: t.bfloat16() if t.is_floating_point() else t for n, t in network().state_dict().items()}
    arrays = convert.to_detectron2(state, family_writers.TINY)
    assert arrays["stem.conv1.weight"].dtype == np.float32
    assert torch.equal(torch.from_numpy(arrays["stem.conv1.weight"]).bfloat16(), state["conv1.weight"])


def test_a_head_never_slips_through():
    state = {**network().state_dict(), "fc.weight": torch.zeros(10, 64)}
    with pytest.raises(InputError, match=r"fc\.weight belongs to no resnet10"):
        convert.to_detectron2(state, family_writers.TINY)


def test_missing_and_misshaped_tensors_are_errors():
    state = dict(network().state_dict())
    del state["layer1.0.conv2.weight"]
    with pytest.raises(InputError, match=r"layer1\.0\.conv2\.weight is missing; nothing was converted"):
        convert.to_detectron2(state, family_writers.TINY)
    state = dict(network().state_dict())
    state["layer2.0.conv1.weight"] = state["layer2.0.conv1.weight"][:5]
    with pytest.raises(InputError, match=r"layer2\.0\.conv1\.weight has shape \[5, 8, 3, 3\], not \[16, 8, 3, 3\]"):
        convert.to_detectron2(state, family_writers.TINY)


@pytest.mark.parametrize("suffix", [".pkl", ".pth", ".safetensors"])
def test_a_file_of_this_project_is_read_straight_by_its_metadata(suffix, tmp_path, monkeypatch):
    file = tmp_path / f"w{suffix}"
    torch.save(network().state_dict(), tmp_path / "x.pth")
    source = load_backbone(tmp_path / "x.pth")
    source.metadata["network"] = "teacher"
    convert.write(file, source.state, source.architecture, convert.architecture_metadata(source))
    with monkeypatch.context() as patch:
        patch.setattr(read, "choose", None)  # matching is not needed
        back = load_backbone(file)
    assert list(back.state) == list(source.state)
    assert all(torch.equal(back.state[name], tensor) for name, tensor in source.state.items())
    assert (back.network, back.architecture) == ("teacher", source.architecture)
    matched = load_backbone(file, family="detectron2" if suffix == ".pkl" else "torchvision")
    assert (matched.metadata, matched.family, matched.network) == (back.metadata, back.family, back.network)
    assert (matched.report.used, matched.report.dropped) == (back.report.used, back.report.dropped)


def test_a_file_of_this_project_that_lacks_a_tensor_is_explained(tmp_path):
    torch.save(network().state_dict(), tmp_path / "x.pth")
    source = load_backbone(tmp_path / "x.pth")
    del source.state["layer1.0.bn1.bias"]
    tree = {"state_dict": source.state, "metadata": convert.architecture_metadata(source)}
    torch.save(tree, tmp_path / "half.pth")
    with pytest.raises(InputError, match=r"1 missing \(layer1\.0\.bn1\.bias\)"):
        load_backbone(tmp_path / "half.pth")


def test_failed_write_leaves_the_previous_file_whole(tmp_path):
    convert.write(tmp_path / "w.pkl", network().state_dict(), family_writers.TINY)
    before = (tmp_path / "w.pkl").read_bytes()
    with pytest.raises(InputError):
        convert.write(tmp_path / "w.pkl", {"conv1.weight": torch.zeros(1)}, family_writers.TINY)
    assert (tmp_path / "w.pkl").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["w.pkl"]


@pytest.mark.parametrize("suffix", [".safetensors", ".pth", ".pkl"])
def test_tensors_that_share_a_storage_are_written_each_with_its_own_values(suffix, tmp_path):
    state = dict(network().state_dict())
    state["layer1.0.bn1.bias"] = state["layer1.0.bn2.bias"]  # one tensor under two names
    pair = torch.cat([state["bn1.weight"], state["bn1.bias"]])
    state["bn1.weight"], state["bn1.bias"] = pair[:8], pair[8:]  # two views of one storage
    convert.write(tmp_path / f"w{suffix}", state, family_writers.TINY)
    back = load_backbone(tmp_path / f"w{suffix}").state
    assert all(torch.equal(back[name], state[name]) for name in state)


@dataclass
class Ran:
    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def tool(monkeypatch, capsys):
    """Runs tools/convert.py as a script, in this process."""

    def run(*arguments: object) -> Ran:
        monkeypatch.setattr(sys, "argv", ["convert.py", *map(str, arguments)])
        monkeypatch.setattr(sys, "path", list(sys.path))  # the tool replaces its first entry
        capsys.readouterr()
        with pytest.raises(SystemExit) as left:
            runpy.run_path(str(ROOT / "tools" / "convert.py"), run_name="__main__")
        return Ran(left.value.code, *capsys.readouterr())

    return run


def test_tool_writes_weights_report_and_metadata(tool, tmp_path):
    sample = family_writers.ours()
    torch.save(sample.tree, tmp_path / "step.pt")
    ran = tool(tmp_path / "step.pt", tmp_path / "out.pkl", "--network", "student", "--report", tmp_path / "report.json")
    assert ran.returncode == 0, ran.stderr
    assert "network: student, as asked" in ran.stdout
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["complete"] is True
    assert report["used"]["model.student.backbone.conv1.weight"] == "conv1.weight"
    assert report["dropped"]["model.teacher.backbone.bn1.alpha"] == "Momentum BN's training state"
    assert report["dropped"]["model.teacher.backbone.conv1.weight"] == "the other network (teacher)"
    out = load_backbone(tmp_path / "out.pkl")
    assert torch.equal(out.state["conv1.weight"], sample.networks["student"].conv1.weight)
    assert out.network == out.metadata["network"] == "student"
    assert out.metadata["source"] == "step.pt"
    assert out.metadata["source_sha256"] == load_backbone(tmp_path / "step.pt").sha256
    assert out.metadata["source_family"] == "momentum-transfer"
    assert out.metadata["method"] == "byol"


def test_tool_rescales_and_the_metadata_says_so(tool, tmp_path):
    torch.save(network().state_dict(), tmp_path / "a.pth")
    ran = tool(tmp_path / "a.pth", tmp_path / "out.safetensors", "--constant", "0.1", "--scope", "conv")
    assert ran.returncode == 0, ran.stderr
    out, source = load_backbone(tmp_path / "out.safetensors"), load_backbone(tmp_path / "a.pth")
    assert out.metadata["norm_rescale"] == "constant 0.1 scope conv"
    torch.testing.assert_close(out.state["conv1.weight"], source.state["conv1.weight"] * 0.1)
    assert torch.equal(out.state["bn1.weight"], source.state["bn1.weight"])


def test_tool_warns_of_lars_like_norms_unless_rescaled(tool, tmp_path):
    state = {n: t * 10 if t.dim() == 4 else t for n, t in network().state_dict().items()}
    torch.save(state, tmp_path / "lars.pth")
    assert "as LARS-trained weights do" in tool(tmp_path / "lars.pth", tmp_path / "out.pkl").stderr
    assert tool(tmp_path / "lars.pth", tmp_path / "out.pkl", "--constant", "0.1").stderr == ""


def test_tool_refuses_in_one_line_and_writes_no_weights(tool, tmp_path):
    state = dict(network().state_dict())
    del state["bn1.weight"]
    torch.save(state, tmp_path / "partial.pth")
    ran = tool(tmp_path / "partial.pth", tmp_path / "out.pkl", "--report", tmp_path / "report.json")
    assert ran.returncode == 2
    assert ran.stderr.startswith("error: expected every tensor of a resnet10, found 1 missing (bn1.weight)")
    assert ran.stderr.count("\n") == 1
    assert not (tmp_path / "out.pkl").exists()
    assert json.loads((tmp_path / "report.json").read_text())["missing"] == ["bn1.weight"]
    ran = tool(tmp_path / "partial.pth", tmp_path / "out.onnx")
    assert (ran.returncode, ran.stderr.startswith("error: expected an output name ending in .pkl")) == (2, True)


@pytest.mark.parametrize(
    ("out", "report", "found"),
    [
        ("folder.pkl", None, "found a folder"),
        ("file/out.pkl", None, "file is a file"),
        ("file/deeper/out.pkl", None, "file is a file"),
        ("out.pkl", "folder.pkl", "found a folder"),
        ("out.pkl", "file/report.json", "file is a file"),
    ],
)
def test_targets_that_cannot_be_written_are_refused_first_and_nothing_is_left(tool, out, report, found, tmp_path):
    torch.save(network().state_dict(), tmp_path / "a.pth")
    (tmp_path / "folder.pkl").mkdir()
    (tmp_path / "file").write_text("precious")
    before = sorted(tmp_path.rglob("*"))
    ran = tool(tmp_path / "a.pth", tmp_path / out, *(("--report", tmp_path / report) if report else ()))
    assert ran.returncode == 2
    assert ran.stderr.startswith("error: expected ")
    assert found in ran.stderr
    assert ran.stderr.count("\n") == 1
    assert sorted(tmp_path.rglob("*")) == before


# ------------------------------------------------------------------------------------------------- with Detectron2


def detectron2_model(depth: int, config: str):
    """Mask R-CNN as the transfer protocols set it up: BN, stride in the 3x3 convolution, RGB."""
    from detectron2 import model_zoo
    from detectron2.modeling import build_model

    cfg = model_zoo.get_config(config)
    cfg.MODEL.DEVICE = "cpu"
    cfg.MODEL.RESNETS.DEPTH = depth
    cfg.MODEL.RESNETS.NORM = "BN"
    cfg.MODEL.RESNETS.STRIDE_IN_1X1 = False
    cfg.MODEL.BACKBONE.FREEZE_AT = 0
    if depth < 50:
        cfg.MODEL.RESNETS.RES2_OUT_CHANNELS = 64
    return build_model(cfg)


def load_into(model, path: Path) -> set[str]:
    """Load as training does; the model's parameters and buffers that the file gave."""
    from detectron2.checkpoint import DetectionCheckpointer

    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with torch.no_grad():
        for tensor in model.state_dict().values():
            tensor.fill_(-7)  # so that a tensor the file does not give is seen
    incompatible = DetectionCheckpointer(model).load(str(path))
    assert incompatible["__author__"] == "momentum-transfer"
    after = model.state_dict()
    return {name for name in before if not bool((after[name] == -7).all())}


@pytest.mark.detectron2
@pytest.mark.parametrize("depth", [18, 50])
def test_features_in_detectron2_equal_torchvisions_at_every_stage(depth, tmp_path):
    pytest.importorskip("detectron2")
    torch.manual_seed(depth)
    reference = torchvision.models.get_model(f"resnet{depth}", weights=None)
    reference.train()(torch.randn(8, 3, 64, 64))  # statistics away from their initial values
    reference.eval()
    torch.save(
        {"state_dict": {f"module.encoder_q.{k}": v for k, v in reference.state_dict().items()}}, tmp_path / "m.pth"
    )
    source = load_backbone(tmp_path / "m.pth")
    convert.write(tmp_path / "w.pkl", source.state, source.architecture, source.metadata)
    model = detectron2_model(depth, "COCO-InstanceSegmentation/mask_rcnn_R_50_FPN_1x.yaml")
    load_into(model, tmp_path / "w.pkl")
    images = torch.randn(2, 3, 96, 64)
    with torch.no_grad():
        detectron2s = model.backbone.bottom_up.eval()(images)
        x = reference.maxpool(reference.relu(reference.bn1(reference.conv1(images))))
        for name in ("res2", "res3", "res4", "res5"):
            x = getattr(reference, f"layer{int(name[-1]) - 1}")(x)
            assert torch.equal(detectron2s[name], x), name


@pytest.mark.detectron2
@pytest.mark.parametrize(
    ("config", "prefixes"),
    [
        ("COCO-InstanceSegmentation/mask_rcnn_R_50_FPN_1x.yaml", ("backbone.bottom_up.",)),
        ("COCO-InstanceSegmentation/mask_rcnn_R_50_C4_1x.yaml", ("backbone.", "roi_heads.res5.")),
    ],
    ids=["FPN", "C4"],
)
def test_coverage_in_detectron2_models_is_complete(config, prefixes, tmp_path):
    pytest.importorskip("detectron2")
    state = torchvision.models.resnet50(weights=None).state_dict()
    torch.save(state, tmp_path / "r50.pth")
    source = load_backbone(tmp_path / "r50.pth")
    convert.write(tmp_path / "w.pkl", source.state, source.architecture)
    model = detectron2_model(50, config)
    given = load_into(model, tmp_path / "w.pkl")
    resnet = {name for name in model.state_dict() if name.startswith(prefixes)}
    assert resnet - given == set()
    assert len(resnet) == len(source.state)
    # nothing else may have matched by its suffix
    assert given - resnet <= {name for name in given if name in ("pixel_mean", "pixel_std")}


def test_a_learned_tensor_is_exported_whatever_its_name():
    pytest.importorskip("timm")
    exported = backbone_state(build_backbone("timm:resmlp_12_224"))
    assert {name for name in exported if name.endswith("alpha")}
    assert set(exported) == set(expected_shapes(parse_architecture("timm:resmlp_12_224")))
