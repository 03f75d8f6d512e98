"""Pretraining that starts from weights: what student and teacher begin with, what stays, and what is refused before."""

from pathlib import Path

import PIL.Image
import pytest
import torch
from safetensors.torch import load_file

from momentum_transfer.backbones.build import metadata_of
from momentum_transfer.backbones.convert import export_backbone, write
from momentum_transfer.backbones.norms.batch_norm import use_fused_sync
from momentum_transfer.backbones.read import load_backbone
from momentum_transfer.backbones.resnet import Architecture, build_resnet
from momentum_transfer.core.checkpoints import CheckpointFolder, load
from momentum_transfer.core.command import Stopped
from momentum_transfer.core.errors import InputError
from momentum_transfer.core.settings import dump, pretraining_hash
from momentum_transfer.pretrain.config import check_settings
from momentum_transfer.pretrain.run import prepare
from momentum_transfer.pretrain.train import train
from tests.pretrain.test_train import assert_equal_trees
from tests.two_processes import as_torchrun


@pytest.fixture
def weights(tmp_path):
    """Weights with statistics of their own, as a file."""
    torch.manual_seed(5)
    network = build_resnet(Architecture("resnet10", 4)).train()
    network(torch.randn(8, 3, 16, 16) + 1)
    export_backbone(tmp_path / "w.safetensors", network, {"method": "momentum2"})
    return tmp_path / "w.safetensors"


@pytest.fixture
def continued(tiny_cfg, weights):
    """``continued({"KEY": value})`` -> settings of a tiny run that starts from the weights."""
    return lambda settings=None: tiny_cfg({"MODEL.WEIGHTS": weights, **(settings or {})})


def begun(cfg):
    return prepare(cfg, torch.device("cpu"), CheckpointFolder(f"{cfg.OUTPUT_DIR}/checkpoints"))


def tensors_of(backbone):
    return {
        name: value for name, value in backbone.state_dict().items() if "pending" not in name and name[-5:] != "alpha"
    }


@pytest.mark.parametrize(
    "settings", [{}, {"NORM.GROUP_SIZE": 4, "NORM.STUDENT": "MomentumBN"}, {"METHOD.NAME": "simsiam"}]
)
def test_student_and_teacher_begin_with_every_tensor_of_the_weights(settings, continued, weights):
    method, given = begun(continued(settings)).method, load_file(weights)
    for network in method.networks():
        state = method.backbone(network).state_dict()
        assert all(torch.equal(state[name], value) for name, value in given.items())
        for name, value in state.items():  # every virtual process begins with them too
            if name.endswith("group_mean"):
                assert torch.equal(value, given[name.replace("group", "running")].repeat(2))


def test_the_same_run_without_weights_has_the_same_heads_and_another_backbone(continued, tiny_cfg):
    first, second = begun(continued()).method.state_dict(), begun(tiny_cfg()).method.state_dict()
    heads = [name for name in first if "backbone" not in name]
    assert heads
    assert all(torch.equal(first[name], second[name]) for name in heads)
    assert not torch.equal(first["student.backbone.conv1.weight"], second["student.backbone.conv1.weight"])


@pytest.mark.parametrize(
    "settings",
    [
        {"SOLVER.LAYER_DECAY": 0.5, "SOLVER.HEAD_WARMUP": 0.6, "NORM.WEIGHTS_STATISTICS": "estimated"},
        pytest.param(
            {"SOLVER.HEAD_WARMUP": 0.3, "MODEL.TRAINABLE": "last-2", "SOLVER.OPTIMIZER": "adamw"},
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {"MODEL.TRAINABLE": "norms", "SOLVER.OPTIMIZER": "lars", "NORM.WEIGHTS_STATISTICS": "frozen"},
            marks=pytest.mark.slow,
        ),
    ],
    ids=["rates-estimated", "last-2-adamw", "norms-lars-frozen"],
)
def test_four_steps_equal_two_and_two_resumed(settings, continued, tmp_path):
    whole, parts = (continued({"OUTPUT_DIR": tmp_path / name, **settings}) for name in ("whole", "parts"))
    train(whole)
    with pytest.raises(Stopped):
        train(parts, stop_after=2)
    torch.manual_seed(12345)
    train(parts, resuming=True)
    first, second = (load(CheckpointFolder(f"{cfg.OUTPUT_DIR}/checkpoints").last()) for cfg in (whole, parts))
    first.pop("config"), second.pop("config")
    assert_equal_trees(first, second)


def test_the_head_warms_up_alone(continued, weights):
    cfg, given = continued({"SOLVER.HEAD_WARMUP": 0.5, "SOLVER.WEIGHT_DECAY": 0.1}), load_file(weights)
    with pytest.raises(Stopped):
        train(cfg, stop_after=2)
    state = load(CheckpointFolder(f"{cfg.OUTPUT_DIR}/checkpoints").last())["model"]
    initial = begun(continued({"OUTPUT_DIR": "elsewhere"})).method.state_dict()
    parameters = [name for name in given if "running" not in name and "tracked" not in name]
    assert all(torch.equal(state[f"{who}.backbone.{name}"], given[name])
               for name in parameters for who in ("student", "teacher"))  # fmt: skip
    assert not torch.equal(state["student.projector.0.weight"], initial["student.projector.0.weight"])
    train(cfg, resuming=True)
    state = load(CheckpointFolder(f"{cfg.OUTPUT_DIR}/checkpoints").last())["model"]
    assert not any(torch.equal(state[f"student.backbone.{name}"], given[name]) for name in parameters)


@pytest.mark.parametrize(
    ("settings", "stay"),
    [
        ({"MODEL.TRAINABLE": "last-1"}, lambda name: not name.startswith("layer4") and "tracked" not in name),
        ({"MODEL.TRAINABLE": "norms"}, lambda name: "conv" in name or "downsample.0" in name),
        ({"NORM.WEIGHTS_STATISTICS": "frozen"}, lambda name: "running" in name),
    ],
)
def test_what_is_frozen_stays_bit_equal_in_student_and_teacher_and_the_rest_moves(settings, stay, continued, weights):
    cfg, given = continued(settings), load_file(weights)
    train(cfg)
    state = load(CheckpointFolder(f"{cfg.OUTPUT_DIR}/checkpoints").last())["model"]
    for who in ("student", "teacher"):
        equal = {name: torch.equal(state[f"{who}.backbone.{name}"], value) for name, value in given.items()
                 if "tracked" not in name}  # fmt: skip
        assert equal == {name: stay(name) for name in equal}


def test_frozen_statistics_stay_under_torchs_own_layers_of_a_gpu_too(continued):
    run = begun(continued({"NORM.STUDENT": "SyncBN", "NORM.TEACHER": "SyncBN", "METHOD.NAME": "byol"}))
    run.cfg.defrost()
    run.cfg.NORM.WEIGHTS_STATISTICS = "frozen"
    use_fused_sync(run.method)
    run.start.freeze(run.method)
    run.method.train()
    for network in ("student", "teacher"):
        layers = [m for m in run.method.backbone(network).modules() if isinstance(m, torch.nn.SyncBatchNorm)]
        assert layers
        assert not any(layer.training for layer in layers)


def test_estimated_statistics_are_those_of_the_new_images(continued):
    run = begun(continued({"NORM.WEIGHTS_STATISTICS": "estimated", "SOLVER.BATCH_SIZE": 400}))
    from momentum_transfer.pretrain.pipeline import evaluation_images
    from momentum_transfer.pretrain.run import shuffled_subset

    subset = shuffled_subset(evaluation_images(run.cfg, run.images), 800, run.cfg.SEED)  # RUN.CALIBRATION_BATCHES 2
    images = torch.stack([image for image, _ in subset])
    backbone = run.method.backbone("teacher")
    with torch.no_grad():
        mean = backbone.conv1(images).mean(dim=(0, 2, 3))
    torch.testing.assert_close(backbone.bn1.running_mean, mean, rtol=1e-4, atol=1e-5)


def test_rates_fall_by_layer_from_the_heads_down(continued):
    run = begun(continued({"SOLVER.LAYER_DECAY": 0.5}))
    names = {id(parameter): name for name, parameter in run.method.named_parameters()}
    factors = {names[id(parameter)]: group.get("lr_scale", 1.0)
               for group in run.optimizer.param_groups for parameter in group["params"]}  # fmt: skip
    assert factors["student.predictor.0.weight"] == 1.0
    assert factors["student.backbone.layer4.0.conv2.weight"] == 0.5
    assert factors["student.backbone.layer1.0.bn1.weight"] == 0.5**4
    assert factors["student.backbone.conv1.weight"] == 0.5**5


def test_the_digest_counts_in_the_hash_and_other_weights_do_not_resume(continued, weights, tiny_cfg):
    cfg = continued()
    with pytest.raises(Stopped):
        train(cfg, stop_after=2)
    torch.manual_seed(6)
    export_backbone(weights, build_resnet(Architecture("resnet10", 4)), {})
    with pytest.raises(InputError, match=r"MODEL\.WEIGHTS_SHA256 '[0-9a-f]{64}' -> '[0-9a-f]{64}'"):
        train(cfg, resuming=True)
    hashes = {pretraining_hash(dump(begun(one).cfg)) for one in (continued(), tiny_cfg())}
    assert len(hashes) == 2
    # settings of continuing do not count where a run begins at random
    assert pretraining_hash(dump(tiny_cfg())) == pretraining_hash(dump(tiny_cfg({"SOLVER.LAYER_DECAY": 0.5})))


def test_the_export_and_records_say_what_the_run_started_from(continued):
    path = train(continued())
    for where in (path, Path(path).parent):
        assert load_backbone(where).checkpoint["weights"] == "w"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"MODEL.WIDTH": 8}, r"expected the weights of resnet10\?width=8, found those of resnet10\?width=4 in .*; set "
                             r"MODEL\.ARCH resnet10 MODEL\.WIDTH 4 MODEL\.STEM imagenet"),
        ({"MODEL.ARCH": "timm:test_vit?img_size=32", "DATA.IMAGE_SIZE": 32, "NORM.TEACHER": "BN"}, "timm:test_vit"),
        ({"MODEL.WEIGHTS_SHA256": "a" * 64}, "digest aaaaaaaaaaaa"),
        ({"MODEL.TRAINABLE": "last-9"}, "last-1 to last-4, found last-9: the network has 4 blocks"),
        ({"MODEL.WEIGHTS": "nowhere.pth"}, "nowhere.pth"),
        ({"NORM.STUDENT": "GN", "NORM.TEACHER": "GN"}, r"NORM\.STUDENT of BN, SyncBN, MomentumBN with weights"),
        ({"METHOD.NAME": "random"}, "no weights with METHOD.NAME random"),
        ({"MODEL.TRAINABLE": "lora"}, "MODEL.TRAINABLE of all, last-K, norms in pretraining, found lora"),
    ],
)  # fmt: skip
def test_weights_that_cannot_be_continued_are_refused_before_images_are_read(settings, message, continued, monkeypatch):
    monkeypatch.setattr("momentum_transfer.pretrain.run.build_images", None)
    cfg = continued(settings)
    with pytest.raises(InputError, match=message):
        check_settings(cfg)
        begun(cfg)
    assert not Path(cfg.OUTPUT_DIR).exists()


@pytest.mark.parametrize(
    ("scale", "message"), [(1e38, "expected finite features, found NaN or infinite ones of w"),
                           (1e30, "expected features that differ between images, found the same for all 16 of w"),
                           (1e-30, "expected features that differ between images, found the same for all 16 of w")],
)  # fmt: skip
def test_weights_whose_features_say_nothing_are_refused_before_the_training(scale, message, continued, weights):
    state = {name: value * scale if value.dim() == 4 else value for name, value in load_file(weights).items()}
    write(weights, state, Architecture("resnet10", 4), {})
    cfg = continued()
    with pytest.raises(InputError, match=message):
        train(cfg)
    assert not (Path(cfg.OUTPUT_DIR) / "checkpoints").exists()


@pytest.mark.parametrize("statistics", ["moving", "estimated", "frozen"])
def test_statistics_that_do_not_fit_the_weights_matter_where_they_are_kept(statistics, continued, weights):
    state = load_file(weights)
    wide = {name: value * 1e16 for name, value in state.items() if name.endswith("running_var")}
    shifts = {name: value + 0.1 for name, value in state.items() if name.endswith(".bias")}
    write(weights, state | wide | shifts, Architecture("resnet10", 4), {})
    cfg = continued({"NORM.WEIGHTS_STATISTICS": statistics})
    if statistics == "frozen":
        with pytest.raises(InputError, match="expected features that differ between images"):
            begun(cfg)
    else:
        assert begun(cfg).start.source.state["bn1.running_var"].min() >= 1e15


def test_copies_of_one_image_are_refused_before_the_training(continued, tmp_path):
    for number in range(20):
        PIL.Image.new("RGB", (20, 20), "red").save(tmp_path / f"{number}.png")
    with pytest.raises(InputError, match="expected images that differ, found the same 16 times"):
        train(continued({"DATA.NAME": "images", "DATA.ROOT": tmp_path, "DATA.SPLIT": "."}))


def test_weights_in_caffes_style_do_not_go_on_as_another_network(tiny_cfg, tmp_path):
    torch.manual_seed(5)
    architecture = Architecture("resnet50", 4, style="caffe")
    write(
        tmp_path / "zoo.safetensors", build_resnet(architecture).state_dict(), architecture, metadata_of(architecture)
    )
    cfg = tiny_cfg({"MODEL.ARCH": "resnet50", "MODEL.WEIGHTS": tmp_path / "zoo.safetensors"})
    with pytest.raises(InputError, match=r"torchvision's style to go on with, found resnet50\?width=4&style=caffe"):
        begun(cfg)


def test_a_vit_of_timm_goes_on_from_a_file_of_its_own(tiny_cfg, tmp_path):
    vit = {"METHOD.NAME": "byol", "TEACHER.MOVES": "after", "NORM.TEACHER": "BN", "SOLVER.OPTIMIZER": "adamw",
           "MODEL.ARCH": "timm:test_vit?img_size=32", "DATA.IMAGE_SIZE": 32, "SOLVER.STEPS": 1}  # fmt: skip
    first = train(tiny_cfg({**vit, "OUTPUT_DIR": tmp_path / "first"}))
    cfg = tiny_cfg({**vit, "MODEL.WEIGHTS": first, "SOLVER.LAYER_DECAY": 0.7})
    method = begun(cfg).method
    assert all(
        torch.equal(method.backbone("teacher").state_dict()[name], value) for name, value in load_file(first).items()
    )
    train(cfg)


def _train(cfg):
    path = train(cfg)
    return {name: value.numpy() for name, value in load_file(path).items()}


@pytest.mark.slow
def test_two_processes_continue_as_one_does(continued, tmp_path):
    settings = {"NORM.STUDENT": "SyncBN", "NORM.TEACHER": "EMAN", "METHOD.NAME": "byol", "SOLVER.HEAD_WARMUP": 0.5,
                "SOLVER.LAYER_DECAY": 0.5, "NORM.WEIGHTS_STATISTICS": "estimated"}  # fmt: skip
    alone = _train(continued({**settings, "OUTPUT_DIR": tmp_path / "alone"}))
    shared, _ = as_torchrun(_train, continued({**settings, "OUTPUT_DIR": tmp_path / "shared"}))
    for name, value in alone.items():
        torch.testing.assert_close(torch.tensor(shared[name]), torch.tensor(value), rtol=1e-4, atol=1e-5)
