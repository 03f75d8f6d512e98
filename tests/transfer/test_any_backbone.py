"""Networks of timm under detectors: maps, frozen parts, rates by layer, weights in, and what is refused in one line."""

from __future__ import annotations

import math

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from momentum_transfer.backbones.build import build_backbone, parse_architecture
from momentum_transfer.backbones.vitdet import describe, resample_patches, to_vitdet
from momentum_transfer.core.errors import InputError
from momentum_transfer.transfer import any_backbone
from momentum_transfer.transfer.any_backbone import changes, global_blocks
from momentum_transfer.transfer.config import check_settings
from momentum_transfer.transfer.detector_run import choose_engine
from momentum_transfer.transfer.initial_weights import read_initial
from momentum_transfer.transfer.torchvision_engine.detectors import export_state
from momentum_transfer.transfer.torchvision_engine.engine import build, build_training, initialise
from momentum_transfer.transfer.torchvision_engine.models import build_detector
from momentum_transfer.transfer.torchvision_engine.training_state import Position
from tests.transfer.torchvision_engine.tiny import tiny_config, tiny_samples

timm = pytest.importorskip("timm")

_SMALL_VIT = "depth=2&embed_dim=48&num_heads=2"
CONVNEXT = "timm:convnext_atto?depths=(1,1,1,1)&dims=(16,24,32,48)"
REGNET = "timm:regnetx_002"
SWIN = "timm:swin_tiny_patch4_window7_224?depths=(1,1,1,1)&embed_dim=24&num_heads=(1,2,2,4)"
VIT = f"timm:vit_tiny_patch16_224?img_size=64&{_SMALL_VIT}"
DINOV2 = f"timm:vit_small_patch14_reg4_dinov2?img_size=56&{_SMALL_VIT}"
DINOV3 = f"timm:vit_small_patch16_dinov3?{_SMALL_VIT}"
WINDOWS = [*("MODEL.VIT.FORM", "vitdet", "MODEL.VIT.WINDOW", "3", "MODEL.VIT.GLOBAL_BLOCKS", "1"),
           *("MODEL.VIT.RELATIVE_POSITIONS", "True")]  # fmt: skip


def config_of(architecture, detector="mask_rcnn", *overrides):
    return tiny_config(detector, "MODEL.BACKBONE.ARCH", architecture, "MODEL.FPN.NORM", "LN", *overrides)


@pytest.mark.parametrize(
    ("architecture", "overrides"),
    [(CONVNEXT, []), (SWIN, []), (DINOV2, []), (DINOV3, []), (VIT, WINDOWS)],
    ids=["convnext", "swin", "dinov2", "dinov3", "vitdet"],
)
@pytest.mark.parametrize("detector", ["mask_rcnn", "retinanet"])
def test_every_trained_parameter_takes_part_on_images_of_any_size(architecture, overrides, detector):
    torch.manual_seed(0)
    cfg = config_of(architecture, detector, *overrides)
    check_settings(cfg)
    network = build_detector(cfg)
    losses = network(tiny_samples())  # of 64 × 64 and 48 × 70
    assert all(math.isfinite(float(value.detach())) for value in losses.values())
    sum(losses.values()).backward()
    assert [name for name, p in network.named_parameters() if p.requires_grad and p.grad is None] == []


@pytest.mark.parametrize("detector", ["mask_rcnn", "retinanet"])
@pytest.mark.parametrize(
    "architecture",
    [CONVNEXT, SWIN, VIT, "timm:pvt_v2_b0", "timm:edgenext_xx_small"],
    ids=["convnext", "swin", "vit", "pvt", "edgenext"],
)
def test_zero_padding_does_not_magnify_the_first_gradients_of_a_random_network(architecture, detector):
    largest = []
    for width in (64, 66):  # the second is padded to 96
        torch.manual_seed(0)
        network = build_detector(config_of(architecture, detector))
        sum(network(tiny_samples([(64, width), (64, width)])).values()).backward()
        gradients = [parameter.grad for parameter in network.backbone.parameters() if parameter.grad is not None]
        largest.append(max(float(gradient.abs().max()) for gradient in gradients))
    assert largest[1] < 5 * largest[0]


def test_a_pyramids_levels_have_their_strides_in_both_kinds_of_network():
    x = torch.randn(1, 3, 64, 96)
    for architecture in (CONVNEXT, VIT):
        backbone = build_detector(config_of(architecture)).backbone.eval()
        sizes = {name: tuple(found.shape) for name, found in backbone(x).items()}
        assert sizes.pop("p6") == (1, 32, 1, 2)
        assert sizes == {f"p{k}": (1, 32, 64 // 2**k, 96 // 2**k) for k in range(2, 6)}


def test_maps_of_a_hierarchical_network_are_timms_own():
    network = any_backbone.build_network(config_of(CONVNEXT)).eval()
    own = timm.create_model("convnext_atto", depths=(1, 1, 1, 1), dims=(16, 24, 32, 48), features_only=True).eval()
    state = {
        name.replace("stages.", "stages_").replace("stem.", "stem_"): v for name, v in network.state_dict().items()
    }
    own.load_state_dict({name: value for name, value in state.items() if not name.startswith("head.")})
    x = torch.randn(1, 3, 64, 96)
    with torch.no_grad():
        assert all(torch.equal(a, b) for a, b in zip(network(x).values(), own(x), strict=True))


def test_vitdets_function_is_timms_where_prefix_tokens_are_absent_and_layer_scale_folds():
    architecture = parse_architecture("timm:vit_tiny_patch16_224?img_size=64&class_token=False&global_pool='avg'"
                                      f"&init_values=0.3&{_SMALL_VIT}")  # fmt: skip
    torch.manual_seed(0)
    network = build_backbone(architecture).eval()
    for parameter in network.parameters():
        parameter.data.add_(torch.randn_like(parameter) * 0.1)
    cfg = config_of(str(architecture), "mask_rcnn", "MODEL.VIT.FORM", "vitdet")
    vit = build_detector(cfg).backbone.net.eval()
    vit.load_state_dict(to_vitdet(network.state_dict(), describe(network)))
    x = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        (mine,) = vit(x).values()
        theirs = network.network.forward_intermediates(x, indices=1, norm=False, intermediates_only=True)[0]
    torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


def test_a_resampled_projection_gives_the_same_tokens_for_resized_patches():
    weight = torch.randn(8, 3, 14, 14)
    patch = torch.randn(1, 3, 14, 14)
    larger = nn.functional.interpolate(patch, size=(16, 16), mode="bicubic", antialias=True)
    before, after = (patch * weight).sum((1, 2, 3)), (larger * resample_patches(weight, 16)).sum((1, 2, 3))
    torch.testing.assert_close(before, after, rtol=1e-2, atol=1e-1)


def test_windows_see_their_own_tokens_only():
    cfg = config_of(
        VIT, "mask_rcnn", "MODEL.VIT.FORM", "vitdet", "MODEL.VIT.WINDOW", "2", "MODEL.VIT.GLOBAL_BLOCKS", "1"
    )
    first, last = build_detector(cfg).backbone.net.blocks
    assert (first.window, last.window) == (2, 0)
    x = torch.randn(1, 4, 4, 48)
    other = x.clone()
    other[:, 2:, 2:] += 1.0
    with torch.no_grad():
        here, there = first(x), first(other)
    assert torch.equal(here[:, :2], there[:, :2])
    assert not torch.equal(here[:, 2:, 2:], there[:, 2:, 2:])


@pytest.mark.parametrize("architecture", [REGNET, VIT], ids=["regnet", "vit"])
def test_a_frozen_network_keeps_parameters_and_statistics(architecture):
    torch.manual_seed(0)
    cfg = config_of(architecture, "retinanet", "MODEL.BACKBONE.FROZEN", "True", "SOLVER.BASE_LR", "0.1")
    network = build_detector(cfg).train()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    training = build_training(
        config_of(architecture, "retinanet", "SOLVER.BASE_LR", "0.1"), network, Position(0, (), ())
    )
    sum(network(tiny_samples()).values()).backward()
    training.optimizer.step()
    changed = {name for name, value in network.state_dict().items() if not torch.equal(value, before[name])}
    assert changed
    assert not [name for name in changed if name.startswith(("backbone.bottom_up.", "backbone.net."))]


def test_rates_fall_from_layer_to_layer_as_vitdet_has_them():
    cfg = config_of(
        VIT, "mask_rcnn", *WINDOWS, "SOLVER.LAYER_DECAY", "0.5", "SOLVER.OPTIMIZER", "AdamW", "SOLVER.BASE_LR", "0.8"
    )
    network = build_detector(cfg)
    groups = build_training(cfg, network, Position(0, (), ())).optimizer.param_groups
    rate = {id(p): (group["lr"], group["weight_decay"]) for group in groups for p in group["params"]}
    found = {name: rate[id(p)] for name, p in network.named_parameters()}
    assert found["roi_heads.box_head.fc1.weight"][0] == found["backbone.simfp_4.0.weight"][0] == 0.8
    assert [found[f"backbone.net.{name}"][0] for name in ("blocks.1.attn.rel_pos_h", "blocks.0.mlp.fc1.weight",
            "patch_embed.proj.weight")] == pytest.approx([0.4, 0.2, 0.1])  # fmt: skip
    assert found["backbone.net.pos_embed"] == (pytest.approx(0.1), 0.0)


@pytest.mark.parametrize("architecture", [CONVNEXT, SWIN])
def test_the_last_trained_layer_has_the_rate_of_the_neck_times_the_decay(architecture):
    words = ["SOLVER.LAYER_DECAY", "0.5", "SOLVER.OPTIMIZER", "AdamW", "SOLVER.BASE_LR", "0.8"]
    cfg = config_of(architecture, "retinanet", *words)
    groups = build_training(cfg, build_detector(cfg), Position(0, (), ())).optimizer.param_groups
    rates = sorted({group["lr"] for group in groups}, reverse=True)
    # ConvNeXt's object_detection/mmcv_custom, as BEiT: decay ** (L + 1 - layer), of the neck L + 1, of the last block L
    assert rates == pytest.approx([0.8 * 0.5**k for k in range(len(rates))])


@pytest.mark.parametrize(
    ("architecture", "overrides"),
    [(CONVNEXT, []), (DINOV2, []), (DINOV2, WINDOWS)],
    ids=["convnext", "dinov2", "vitdet"],
)
def test_a_files_tensors_all_arrive_and_predictions_differ_from_a_random_start(architecture, overrides, tmp_path):
    torch.manual_seed(0)
    source = build_backbone(parse_architecture(architecture))
    for parameter in source.parameters():
        parameter.data.add_(torch.randn_like(parameter) * 0.1)
    save_file({name: v.clone() for name, v in source.state_dict().items()}, tmp_path / "backbone.safetensors")
    cfg = config_of(architecture, "retinanet", *overrides)
    network = build_detector(cfg)
    position = initialise(network, read_initial(str(tmp_path / "backbone.safetensors"), cfg))
    state = export_state(network)
    wanted = any_backbone.detector_state(cfg, source.state_dict())
    inside = {
        name.split(".", 2)[2]: value
        for name, value in state.items()
        if name.startswith(("backbone.net.", "backbone.bottom_up."))
    }
    assert {name for name in inside if ".rel_pos_" not in name} == set(wanted)
    assert all(torch.equal(inside[name], value) for name, value in wanted.items())
    assert len(position.loaded) == len(wanted)


def test_a_file_of_another_network_width_or_patch_is_refused_in_one_line(tmp_path):
    source = build_backbone(parse_architecture(CONVNEXT))
    file = tmp_path / "backbone.safetensors"
    save_file({name: v.clone() for name, v in source.state_dict().items()}, file)
    for other in (
        "timm:convnext_atto?depths=(1,1,1,1)&dims=(16,24,32,64)",
        "timm:convnext_atto?depths=(1,1,2,1)&dims=(16,24,32,48)",
        VIT,
    ):
        with pytest.raises(InputError) as error:
            cfg = config_of(other, "retinanet")
            initialise(build(cfg), read_initial(str(file), cfg))
        assert "\n" not in str(error.value).strip()


def test_a_file_that_differs_in_the_patch_alone_is_refused_by_that_tensor(tmp_path):
    other = DINOV3 + "&patch_size=14&img_size=56"  # RoPE: no position embedding differs, only the projection
    file = tmp_path / "backbone.safetensors"
    save_file({name: v.clone() for name, v in build_backbone(parse_architecture(other)).state_dict().items()}, file)
    cfg = config_of(DINOV3)
    with pytest.raises(InputError, match=r"1 of another shape \(patch_embed.proj.weight is \[48, 3, 14, 14\]"):
        initialise(build(cfg), read_initial(str(file), cfg))


def test_a_module_of_ones_own_is_sent_to_the_probes_before_its_code_runs():
    with pytest.raises(InputError, match=r"found module:no.such:factory; .* probes"):
        read_initial("module:no.such:factory", tiny_config("mask_rcnn"))


@pytest.mark.parametrize(
    ("architecture", "detector", "settings", "message"),
    [
        ("timm:convnext_atoo", "mask_rcnn", "", "nearest are .*convnext_atto"),
        ("timm:crossvit_9_240", "mask_rcnn", "", "gives maps of strides 4 to 32 or patches, found none"),
        ("resnet50", "mask_rcnn", "", "MODEL.BACKBONE.ARCH as timm:NAME"),
        (CONVNEXT, "mask_rcnn_c4", "", "expected a ResNet for a C4 detector"),
        (CONVNEXT, "mask_rcnn", "MODEL.BACKBONE.FREEZE_AT 2", "FREEZE_AT 0 .* counts a ResNet's stages"),
        (CONVNEXT, "mask_rcnn", "MODEL.BACKBONE.NORM SyncBN", "expected BatchNorms for MODEL.BACKBONE.NORM SyncBN"),
        (CONVNEXT, "mask_rcnn", "TEST.PRECISE_BN.ENABLED True", "expected a BatchNorm for TEST.PRECISE_BN.ENABLED"),
        (CONVNEXT, "mask_rcnn", "MODEL.VIT.FORM vitdet", "MODEL.VIT settings with a plain ViT"),
        (VIT, "mask_rcnn", "MODEL.FPN.NORM ''", "MODEL.FPN.NORM for a simple feature pyramid"),
        (VIT, "mask_rcnn", "MODEL.VIT.WINDOW 7", "MODEL.VIT.FORM vitdet with windows"),
        (VIT, "stride16", "MODEL.RESNETS.RES5_DILATION 1", "hierarchical network for DeepLab"),
        ("timm:inception_v3", "stride16", "", "network that timm can dilate to stride 16 for DeepLab, found"),
        ("timm:mixer_s32_224", "mask_rcnn", "", "patches can be resampled to 16 px, found 32 px"),
        (DINOV3, "mask_rcnn", "MODEL.VIT.FORM vitdet", r"rotary position embeddings \(RoPE\)"),
        ("timm:maxvit_tiny_tf_224", "mask_rcnn", "", "does not take 96 × 160.*MODEL.BACKBONE.SQUARE 224"),
        ("timm:vit_tiny_patch16_224?img_size=100", "mask_rcnn", "", "divisible by the patch of 16 px"),
        (CONVNEXT, "mask_rcnn", "MODEL.BACKBONE.SQUARE 64", "expected images within MODEL.BACKBONE.SQUARE 64"),
        ("", "mask_rcnn", "MODEL.BACKBONE.DROP_PATH 0.1", "MODEL.BACKBONE.ARCH with MODEL.BACKBONE.DROP_PATH"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_one_line_before_any_compute(architecture, detector, settings, message):
    with pytest.raises(InputError, match=message):
        cfg = config_of(architecture, detector, *settings.split())
        check_settings(cfg)
        choose_engine("torchvision", cfg)


@pytest.mark.parametrize(("architecture", "detector"), [(REGNET, "stride16"), (DINOV2, "mask_rcnn")])
def test_a_drop_path_that_a_network_does_not_take_is_the_reason_told(architecture, detector, monkeypatch):
    build = any_backbone.build_backbone

    def without_drop_path(asked):
        if "drop_path_rate" in dict(asked.options):
            raise InputError("it takes no drop_path_rate")
        return build(asked)

    monkeypatch.setattr(any_backbone, "build_backbone", without_drop_path)
    with pytest.raises(InputError, match="it takes no drop_path_rate"):
        check_settings(config_of(architecture, detector, "MODEL.BACKBONE.DROP_PATH", "0.1"))


@pytest.mark.parametrize(
    ("architecture", "overrides", "said"),
    [
        ("", [], []),
        (CONVNEXT, [], []),
        (VIT, [], []),
        (DINOV2, [], ["patches of 14 px resampled to 16 px"]),
        (VIT, ["MODEL.VIT.FORM", "vitdet"], ["another function: 1 prefix tokens"]),
        (VIT, WINDOWS, ["another function: 1 prefix tokens", "attention in windows of 3² tokens in all but 1 blocks"]),
    ],
)
def test_how_a_detectors_network_differs_from_its_checkpoints_is_told(architecture, overrides, said):
    found = changes(config_of(architecture, "mask_rcnn", *overrides))
    assert len(found) == len(said)
    assert all(line.startswith(begin) for line, begin in zip(found, said, strict=True))


@pytest.mark.parametrize(("depth", "count", "blocks"), [(12, 4, [2, 5, 8, 11]), (24, 4, [5, 11, 17, 23]), (4, 1, [3]),
                                                        (3, 9, [0, 1, 2]), (12, 0, [])])  # fmt: skip
def test_blocks_that_see_the_whole_map_are_evenly_spaced(depth, count, blocks):
    assert global_blocks(depth, count) == blocks
