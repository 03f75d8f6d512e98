"""Detectron2 as its users run it, with this project's weights, YAML files and one function."""

from __future__ import annotations

import functools
import json
import logging
import operator
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision

pytest.importorskip("detectron2")

from detectron2 import model_zoo
from detectron2.checkpoint import DetectionCheckpointer
from detectron2.config import get_cfg
from detectron2.data import DatasetCatalog, MetadataCatalog
from detectron2.data.datasets import register_coco_instances
from detectron2.data.datasets.lvis import load_lvis_json
from detectron2.engine import DefaultTrainer
from detectron2.evaluation import COCOEvaluator, LVISEvaluator
from detectron2.modeling import BACKBONE_REGISTRY, META_ARCH_REGISTRY, ROI_HEADS_REGISTRY, build_model
from detectron2.utils.env import seed_all_rng

import momentum_transfer as mt
from momentum_transfer.backbones.build import build_backbone
from momentum_transfer.core.errors import InputError
from momentum_transfer.transfer import config
from momentum_transfer.transfer.detectron2_engine import build_optimizer, load_initial, models
from momentum_transfer.transfer.detectron2_engine.engine import Detectron2Engine
from momentum_transfer.transfer.experiment import Experiment
from momentum_transfer.transfer.initial_weights import read_initial
from momentum_transfer.transfer.scores import coco as our_scores
from momentum_transfer.transfer.scores import lvis as our_lvis
from momentum_transfer.transfer.tasks import open_task
from tests.transfer.torchvision_engine.tiny import write_shapes

pytestmark = pytest.mark.detectron2

ROOT = Path(__file__).parents[2]
CONFIGS = ROOT / "configs/transfer"
SHIPPED = sorted(path for path in CONFIGS.glob("*.yaml") if not path.name.startswith("base"))
ZOO = "COCO-InstanceSegmentation/mask_rcnn_R_50_FPN_1x.yaml"
_TINY = """MODEL.DEVICE cpu INPUT.MIN_SIZE_TRAIN [64] INPUT.MIN_SIZE_TEST 64 DATALOADER.NUM_WORKERS 0
SOLVER.IMS_PER_BATCH 2 SOLVER.MAX_ITER 2 SOLVER.STEPS () TEST.PRECISE_BN.ENABLED False TEST.DETECTIONS_PER_IMAGE 20
MODEL.RPN.PRE_NMS_TOPK_TEST 50 MODEL.RPN.POST_NMS_TOPK_TEST 20 MODEL.ROI_HEADS.BATCH_SIZE_PER_IMAGE 16
MODEL.ROI_HEADS.NUM_CLASSES 3 MODEL.RETINANET.NUM_CLASSES 3 MODEL.FCOS.NUM_CLASSES 3
MODEL.ROI_HEADS.SCORE_THRESH_TEST 0.0 MODEL.RETINANET.SCORE_THRESH_TEST 0.0 MODEL.FCOS.SCORE_THRESH_TEST 0.0"""
TINY = _TINY.split()


def extended(*files: Path, overrides=()):
    """A configuration of Detectron2's with our function, files and KEY VALUE pairs."""
    cfg = get_cfg()
    mt.add_momentum_transfer_config(cfg)
    for file in files:
        cfg.merge_from_file(str(file))
    cfg.merge_from_list(["MODEL.DEVICE", "cpu", *overrides])
    return cfg


@pytest.fixture(scope="module")
def resnets(tmp_path_factory):
    """depth -> torchvision's network with statistics away from their initial values, and its converted .pkl."""

    @functools.cache
    def of(depth: int):
        folder = tmp_path_factory.mktemp(f"r{depth}")
        torch.manual_seed(depth)
        network = torchvision.models.get_model(f"resnet{depth}", weights=None)
        network.train()(torch.randn(4, 3, 64, 64))
        torch.save(network.state_dict(), folder / "r.pth")
        mt.convert(folder / "r.pth", folder / "r.pkl")
        return network.eval(), folder / "r.pkl"

    return of


def given_by(weights: Path, model) -> set[str]:
    """Tensors of a model that Detectron2's checkpointer takes from a file."""
    with torch.no_grad():
        for tensor in model.state_dict().values():
            tensor.fill_(-7)  # so that a tensor which the file does not give is seen
    DetectionCheckpointer(model).load(str(weights))
    return {name for name, tensor in model.state_dict().items() if not bool((tensor == -7).all())}


# ------------------------------------------------------------------------------------------------------- the settings


def layer4(network, x):
    x = network.maxpool(network.relu(network.bn1(network.conv1(x))))
    return network.layer4(network.layer3(network.layer2(network.layer1(x))))


def zoo_res5(cfg, weights: Path, image):
    """res5 of a zoo config's network, from the image in Detectron2's own data path (BGR, 0..255, as cv2 reads it)."""
    cfg.MODEL.DEVICE = "cpu"
    model = build_model(cfg).eval()
    assert len(given_by(weights, model)) >= 265
    pixels = image if cfg.INPUT.FORMAT == "BGR" else image[[2, 1, 0]]
    images = model.preprocess_image([{"image": pixels}])
    with torch.no_grad():
        return model.backbone.bottom_up(images.tensor)["res5"]


def test_a_zoo_config_computes_torchvisions_features_with_the_written_settings_and_others_without(resnets):
    network, weights = resnets(50)
    bgr = torch.randint(0, 256, (3, 96, 64)).float()
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in ((123.675, 116.28, 103.53), (58.395, 57.12, 57.375)))
    with torch.no_grad():
        expected = layer4(network, ((bgr[[2, 1, 0]] - mean) / std)[None])
    plain = model_zoo.get_config(ZOO)
    merged = plain.clone()
    merged.merge_from_file(str(weights.with_suffix(".yaml")))
    assert torch.equal(zoo_res5(merged, weights, bgr), expected)
    off = (zoo_res5(plain, weights, bgr) - expected).norm() / expected.norm()
    assert off > 0.3  # all tensors are loaded there too: nothing else tells of it


def test_a_wider_zoo_network_becomes_the_checkpoints_own(resnets):
    _, weights = resnets(101)
    cfg = model_zoo.get_config("COCO-Detection/faster_rcnn_X_101_32x8d_FPN_3x.yaml")
    cfg.merge_from_file(str(weights.with_suffix(".yaml")))
    cfg.MODEL.DEVICE = "cpu"
    model = build_model(cfg)
    given = given_by(weights, model)
    assert {name for name in model.state_dict() if name.startswith("backbone.bottom_up.")} <= given


# -------------------------------------------------------------------------------------------------------- the configs


def test_without_the_function_our_files_are_refused_and_with_it_they_say_what_they_say_to_us():
    plain = get_cfg()
    with pytest.raises(KeyError, match=r"PROTOCOL|FIT_TO_DATA|ARCH"):
        plain.merge_from_file(str(CONFIGS / "mask_rcnn_fpn_convnext_t_3x.yaml"))
    beside = {"MODEL.DEVICE", "SEED", "OUTPUT_DIR", "VERSION"}  # ours differ by intent
    beside.add("PROTOCOL")  # the name of the file, to us
    for file in SHIPPED:
        ours, theirs = config.load(file), extended(file, overrides=["MODEL.DEVICE", "cuda"])
        for key in set(leaves(ours)) - beside:
            values = [functools.reduce(operator.getitem, key.split("."), cfg) for cfg in (ours, theirs)]
            assert values[0] == values[1], (file.name, key)


def leaves(node, prefix=""):
    for key, value in node.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + key


def one_of_each_network():
    """The shipped configs, of those with equal networks the first."""
    seen = {}
    for file in SHIPPED:
        cfg = config.load(file)
        seen.setdefault((cfg.MODEL.dump(), cfg.INPUT.FORMAT), file)
    return list(seen.values())


@pytest.mark.parametrize("file", one_of_each_network(), ids=lambda file: file.stem)
def test_a_shipped_config_builds_and_takes_every_tensor_of_the_converted_backbone(file, resnets, tmp_path):
    cfg = config.load(file)
    if cfg.MODEL.SEM_SEG_HEAD.NAME == "LinearHead":  # this project's own
        with pytest.raises(KeyError, match="LinearHead"):
            build_model(extended(file))
        return
    if not cfg.MODEL.BACKBONE.ARCH:
        _, weights = resnets(cfg.MODEL.RESNETS.DEPTH)
        model = build_model(extended(file, weights.with_suffix(".yaml")))
    else:
        model = build_model(extended(file))
        network = build_backbone(cfg.MODEL.BACKBONE.ARCH)
        torch.save(network.state_dict(), tmp_path / "n.pth")
        if cfg.MODEL.VIT.FORM != "vitdet":  # Detectron2's files have no names for it: our reader loads it
            initial = read_initial(write_safetensors(network, tmp_path, cfg.MODEL.BACKBONE.ARCH), extended(file))
            loaded, _ = load_initial(model, initial)
            assert {name for name in model.state_dict() if name.startswith("backbone.bottom_up.")} <= set(loaded)
            return
        weights = tmp_path / "n.pkl"
        mt.convert(tmp_path / "n.pth", weights, architecture=cfg.MODEL.BACKBONE.ARCH, without_prefix=True)
        model = build_model(extended(file, weights.with_suffix(".yaml")))
    given = given_by(weights, model)
    prefixes = ("backbone.bottom_up.", "backbone.net.", "backbone.stem", "backbone.res", "roi_heads.res5.")
    wanted = {name for name in model.state_dict() if name.startswith(prefixes)}
    new = {name for name in wanted - given if ".rel_pos_" not in name and not name.startswith("roi_heads.res5.norm.")}
    assert new == set()
    assert len(wanted & given) >= 100
    assert given <= wanted | {"pixel_mean", "pixel_std"}  # nothing of neck and heads matched by its suffix


def write_safetensors(network, folder: Path, architecture: str) -> str:
    mt.convert(folder / "n.pth", folder / "n.safetensors", architecture=architecture)
    return str(folder / "n.safetensors")


def test_other_configurations_build_what_they_built_before():
    extended()
    cfg = model_zoo.get_config(ZOO)  # without our keys
    cfg.MODEL.DEVICE = "cpu"
    for keys in (cfg, extended(Path(model_zoo.get_config_file(ZOO)))):
        torch.manual_seed(0)
        built = build_model(keys).state_dict()
        torch.manual_seed(0)
        own = sys.modules["detectron2.modeling.backbone.fpn"].build_resnet_fpn_backbone
        direct = own(keys, sys.modules["detectron2.layers"].ShapeSpec(channels=3)).state_dict()
        assert all(torch.equal(built[f"backbone.{name}"], value) for name, value in direct.items())
    wrapper = BACKBONE_REGISTRY.get("build_resnet_fpn_backbone")
    extended()
    assert BACKBONE_REGISTRY.get("build_resnet_fpn_backbone") is wrapper  # a second call wraps nothing twice


def test_a_frozen_backbone_is_frozen_in_plain_detectron2_too():
    model = build_model(extended(CONFIGS / "frozen_retinanet_1x.yaml"))
    assert not any(p.requires_grad for p in model.backbone.bottom_up.parameters())
    assert all(p.requires_grad for p in model.backbone.fpn_lateral5.parameters())
    cfg = extended(CONFIGS / "voc07_c4.yaml", overrides=["MODEL.BACKBONE.FROZEN", "True"])
    with pytest.raises(InputError, match="found a C4 detector"):
        build_model(cfg)


def test_basic_blocks_are_not_left_undilated_in_silence():
    cfg = extended(CONFIGS / "deeplab_v3_stride16.yaml", overrides=["MODEL.RESNETS.DEPTH", "10"])
    with pytest.raises(InputError, match=r"expected a ResNet of bottlenecks for dilated stages, found .*DEPTH 10; set"):
        build_model(cfg)


def test_a_networks_own_pixels_are_asked_for():
    arch = "timm:resnet18.a1_in1k"
    given = ["MODEL.BACKBONE.ARCH", arch, "MODEL.PIXEL_MEAN", "[127.5,127.5,127.5]"]
    file = CONFIGS / "mask_rcnn_fpn_1x.yaml"
    with pytest.raises(InputError, match=r"expected the mean .* of timm:resnet18.a1_in1k, .*123\.675.*found .*127\.5"):
        build_model(extended(file, overrides=given))
    build_model(extended(file, overrides=[*given, "MODEL.BACKBONE.PIXELS", "settings"]))


@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("mask_rcnn_fpn_convnext_t_3x", r"SOLVER.OPTIMIZER AdamW, SOLVER.LAYER_DECAY 0.95"),
        ("own_small", "FIT_TO_DATA True"),
        ("few_shot_voc", r"FEW_SHOT\.\*"),
        ("faster_rcnn_fpn_180k_unbiased_teacher_1", r"SEMI\.\*"),
        ("mask_rcnn_fpn_1x", None),
    ],
)
def test_what_the_default_trainer_does_not_follow_is_said(file, said, caplog, monkeypatch):
    logger = logging.getLogger("detectron2.momentum_transfer")
    monkeypatch.setattr(logger, "handlers", [caplog.handler])  # trainers of other tests cut Detectron2's loggers off
    build_model(extended(CONFIGS / f"{file}.yaml"))
    found = list(dict.fromkeys(text for text in caplog.messages if "does not follow" in text))
    assert len(found) == (said is not None)
    assert not said or re.search(rf"DefaultTrainer does not follow {said}; see docs/from-detectron2.md", found[0])


def test_our_optimizer_follows_a_plain_config_of_adamw():
    cfg = extended(CONFIGS / "mask_rcnn_fpn_swin_t_1x.yaml", overrides=["SOLVER.LAYER_DECAY", "0.5"])
    model = build_model(cfg)
    optimizer = build_optimizer(cfg, model)
    assert isinstance(optimizer, torch.optim.AdamW)
    assert len({group["lr"] for group in optimizer.param_groups}) > 2


# ------------------------------------------------------------------------------------------------------------ training


class CocoTrainer(DefaultTrainer):
    @classmethod
    def build_evaluator(cls, cfg, dataset_name):
        return COCOEvaluator(dataset_name, output_dir=cfg.OUTPUT_DIR)


@pytest.fixture
def shapes(tmp_path):
    """A tiny set in COCO's form, registered as Detectron2's users do; its folder of images and its JSON."""
    images, _, truth = write_shapes(tmp_path / "data").partition(":")
    register_coco_instances("plain_shapes", {}, truth, images)
    yield Path(images), Path(truth)
    for catalog in (DatasetCatalog, MetadataCatalog):
        catalog.pop("plain_shapes", None)


def settings_of(detector: str, weights: Path, out: Path):
    data = ["DATASETS.TRAIN", "('plain_shapes',)", "DATASETS.TEST", "('plain_shapes',)", "OUTPUT_DIR", str(out)]
    out.mkdir()
    return extended(
        CONFIGS / f"{detector}.yaml",  # the depth is that of the weights
        weights.with_suffix(".yaml"),
        overrides=[*TINY, *data, "MODEL.WEIGHTS", str(weights)],
    )


DETECTORS = ["mask_rcnn_fpn_1x", "mask_rcnn_c4_1x", "retinanet_1x", "fcos_1x", "cascade_mask_rcnn_fpn_1x"]


@pytest.mark.parametrize("detector", DETECTORS)
def test_the_default_trainer_begins_with_the_weights_trains_and_scores(detector, shapes, resnets, tmp_path):
    network, weights = resnets(18)
    cfg = settings_of(detector, weights, tmp_path / "out")
    seed_all_rng(0)
    trainer = CocoTrainer(cfg)
    trainer.resume_or_load(resume=False)
    first = next(v for name, v in trainer.model.named_parameters() if name.endswith("stem.conv1.weight"))
    assert torch.equal(first, network.conv1.weight)
    trainer.train()
    assert not torch.equal(first, network.conv1.weight)
    assert all(torch.isfinite(p).all() for p in trainer.model.parameters())
    found = trainer._last_eval_results["bbox"]["AP"]
    results = tmp_path / "out/coco_instances_results.json"
    assert json.loads(results.read_text())
    ours = our_scores.evaluate(shapes[1], results, "bbox")
    assert found == pytest.approx(ours.metrics["AP"], abs=1e-9)
    events = [json.loads(line) for line in (tmp_path / "out/metrics.json").read_text().splitlines()]
    assert [event["iteration"] for event in events if event.get("total_loss", 0) > 0]


def test_the_default_trainer_trains_the_same_weights_as_our_engine(shapes, resnets, tmp_path):
    _, weights = resnets(18)
    cfg = settings_of("mask_rcnn_fpn_1x", weights, tmp_path / "out")
    cfg.SEED = 3
    seed_all_rng(3)
    trainer = CocoTrainer(cfg)
    trainer.resume_or_load(resume=False)
    trainer.train()
    data = f"('{shapes[0]}:{shapes[1]}',)"
    given = ["DATASETS.TRAIN", data, "DATASETS.TEST", data, "OUTPUT_DIR", str(tmp_path / "ours")]
    ours = config.load("transfer/mask_rcnn_fpn_1x_R18", [*TINY, *given])
    initial = read_initial(str(weights), ours)
    written = Detectron2Engine().finetune(Experiment(ours, open_task(ours), initial), 3, tmp_path / "ours").weights
    states = [torch.load(path)["model"] for path in (tmp_path / "out/model_final.pth", written)]
    assert set(states[0]) == set(states[1])
    assert [name for name in states[0] if not torch.equal(states[0][name], states[1][name])] == []


def test_the_default_trainer_scores_by_lviss_evaluator(shapes, resnets, tmp_path, monkeypatch):
    pytest.importorskip("lvis")
    monkeypatch.setattr(np, "float", float, raising=False)  # lvis 0.5.3 uses the alias that NumPy 1.24 dropped
    _, weights = resnets(18)
    tree = json.loads(shapes[1].read_text())
    for image in tree["images"]:
        image |= {"neg_category_ids": [], "not_exhaustive_category_ids": []}
        image["coco_url"] = f"http://images.example.org/{shapes[0].name}/{image['file_name']}"
    for number, category in enumerate(tree["categories"]):
        category |= {"id": number + 1, "frequency": "rcf"[number], "image_count": 4, "synset": "x", "instance_count": 4}
    for annotation in tree["annotations"]:
        annotation["category_id"] //= 10
    truth = tmp_path / "lvis.json"
    truth.write_text(json.dumps(tree))
    DatasetCatalog.register("plain_lvis", lambda: load_lvis_json(str(truth), f"{shapes[0].parent}/"))
    classes = [category["name"] for category in tree["categories"]]
    MetadataCatalog.get("plain_lvis").set(json_file=str(truth), evaluator_type="lvis", thing_classes=classes)

    class LvisTrainer(DefaultTrainer):
        @classmethod
        def build_evaluator(cls, cfg, dataset_name):
            return LVISEvaluator(dataset_name, output_dir=cfg.OUTPUT_DIR)

    cfg = extended(CONFIGS / "lvis_v1_mask_rcnn_fpn_2x.yaml", weights.with_suffix(".yaml"), overrides=TINY)
    cfg.MODEL.WEIGHTS, cfg.OUTPUT_DIR = str(weights), str(tmp_path / "out")
    cfg.DATASETS.TRAIN = cfg.DATASETS.TEST = ("plain_lvis",)
    (tmp_path / "out").mkdir()
    trainer = LvisTrainer(cfg)
    trainer.resume_or_load(resume=False)
    try:
        trainer.train()
    finally:
        for catalog in (DatasetCatalog, MetadataCatalog):
            catalog.pop("plain_lvis", None)
    found = trainer._last_eval_results
    ours = our_lvis.evaluate(truth, tmp_path / "out/lvis_instances_results.json", "bbox")
    assert found["bbox"]["AP"] == pytest.approx(ours.metrics["AP"], abs=1e-9)
    assert set(found) == {"bbox", "segm"}


def test_a_network_that_another_project_has_registered_stays(caplog, monkeypatch):
    for registry in (BACKBONE_REGISTRY, META_ARCH_REGISTRY, ROI_HEADS_REGISTRY):
        monkeypatch.setattr(registry, "_obj_map", dict(registry._obj_map))
    monkeypatch.setattr(logging.getLogger("detectron2"), "propagate", True)
    other = type("FCOS", (), {"__module__": "another.project"})
    META_ARCH_REGISTRY._obj_map["FCOS"] = other
    ROI_HEADS_REGISTRY._obj_map.pop("Res5ROIHeadsExtraNorm", None)
    models.register.__wrapped__()
    assert META_ARCH_REGISTRY.get("FCOS") is other
    assert "Res5ROIHeadsExtraNorm" in ROI_HEADS_REGISTRY
    assert "FCOS is registered already, by another.project; that one is used" in caplog.text


def test_the_script_of_the_docs_trains_and_scores(shapes, resnets, tmp_path):
    page = (ROOT / "docs/from-detectron2.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python title=\"(\w+\.py)\"\n(.*?)```", page, re.DOTALL)
    assert [name for name, _ in blocks] == ["train.py"]
    (tmp_path / "train.py").write_text(blocks[0][1])
    given = [CONFIGS / "mask_rcnn_fpn_1x.yaml", resnets(18)[1], *shapes, *TINY, "OUTPUT_DIR", tmp_path / "out"]
    command = [sys.executable, tmp_path / "train.py", *given]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run([*map(str, command)], capture_output=True, text=True, env=environment)
    assert ran.returncode == 0, ran.stderr[-3000:]
    ours = our_scores.evaluate(shapes[1], tmp_path / "out/coco_instances_results.json", "bbox")
    last = json.loads((tmp_path / "out/metrics.json").read_text().splitlines()[-1])
    assert last["bbox/AP"] == pytest.approx(ours.metrics["AP"], abs=1e-9)
