"""Checkpoints of timm's networks in every project's nesting: the network's own features, and no key unmentioned."""

import json
import re
import sys
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import save_file
from timm.models import vision_transformer

from momentum_transfer.backbones import timm_models
from momentum_transfer.backbones.build import build_backbone, expected_shapes
from momentum_transfer.backbones.convert import convert_file
from momentum_transfer.backbones.matching import OWN_FORMAT
from momentum_transfer.backbones.read import load_backbone
from momentum_transfer.backbones.resnet import Architecture, build_resnet
from momentum_transfer.backbones.source import CoverageError
from momentum_transfer.backbones.timm_layouts import is_openai_order, layout_of
from momentum_transfer.backbones.timm_network import TimmArchitecture
from momentum_transfer.backbones.understanding import Hints, clues_of, input_in, timm_architecture_in
from momentum_transfer.core.errors import InputError
from tests.backbones import timm_family_writers as writers
from tests.backbones.test_read import in_group, tensor_paths
from tests.backbones.timm_family_writers import TIMM_WRITERS, TimmSample


def write(sample: TimmSample, folder: Path) -> Path:
    path = folder / f"checkpoint{sample.suffix}"
    if sample.suffix == ".safetensors":
        save_file({name: tensor.contiguous() for name, tensor in sample.tree.items()}, path)
    else:
        torch.save(sample.tree, path)
    return path


@torch.no_grad()
def features(network: torch.nn.Module, side: int) -> torch.Tensor:
    images = torch.randn(2, 3, side, side, generator=torch.Generator().manual_seed(0))
    if hasattr(network, "network"):
        return network(images)
    return network.forward_head(network.forward_features(images), pre_logits=True)


#: Mean and standard deviation of images, as timm's configs have them.
IMAGENET, HALVES = ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]), ([0.5] * 3, [0.5] * 3)
#: Layouts that timm's own filter reads too, once the network is known.
RELEASES = (writers.dinov2, writers.dinov2_registers, writers.dinov3, writers.clip_openai, writers.open_clip,
            writers.swin, writers.swin_v2, writers.convnext, writers.convnext_v2)  # fmt: skip


@pytest.mark.parametrize("writer", TIMM_WRITERS, ids=lambda writer: writer.__name__)
def test_every_nesting_gives_the_networks_own_features_and_accounts_for_every_key(writer, tmp_path):
    sample = writer()
    path = write(sample, tmp_path)
    for network in (None, *sample.networks):
        source = load_backbone(path, network=None if network == "backbone" else network)
        expected = network or sample.default
        assert (source.family, str(source.architecture), source.network) == (
            sample.family,
            sample.architecture,
            expected,
        )
        built = source.build()
        side = built.input.size if "img_size" in sample.architecture else 64
        assert torch.allclose(features(built, side), features(sample.networks[expected], side), atol=1e-5)
    report = source.report
    accounted = set(report.used) | set(report.dropped)
    for key in tensor_paths(sample.tree):
        assert key in accounted or f"{key.rpartition('.')[0]}.*" in accounted or in_group(key, accounted), key
    assert report.complete
    assert {name for names in report.used.values() for name in names.split(", ")} == set(source.state)
    assert all(name in " ".join(report.dropped) for name in sample.dropped)
    if writer in RELEASES:
        tree = {name.removeprefix("module."): part for name, part in sample.tree.get("state_dict", sample.tree).items()}
        network = source.build().network
        filtered = sys.modules[type(network).__module__].checkpoint_filter_fn(tree, network)
        assert all(torch.equal(filtered[name], tensor) for name, tensor in source.state.items())


@pytest.mark.slow
@pytest.mark.parametrize("kind", timm_models._NAMES)
def test_the_tables_of_names_say_what_timm_builds(kind):
    for row in timm_models.named(kind):
        with torch.device("meta"):
            network = timm.create_model(row.name, num_classes=0)
        block = network.blocks[0]
        hidden = int(row.width * row.ratio)
        first = block.mlp.fc1_x if hasattr(block.mlp, "fc1_x") else block.mlp.fc1
        assert (network.embed_dim, len(network.blocks), block.attn.num_heads, first.out_features) == (
            row.width, row.depth, row.heads, hidden)  # fmt: skip
        assert network.patch_embed.patch_size == (row.patch, row.patch)
        if getattr(network, "pos_embed", None) is not None:
            assert network.patch_embed.img_size == (row.side, row.side)


def saved(tree, folder: Path, name: str = "file.pth") -> Path:
    torch.save(tree, folder / name)
    return folder / name


class TestPositions:
    NAME = "timm:vit_tiny_patch16_224?depth=1&img_size=64"

    def test_positions_of_another_image_size_are_refused_and_resampled_where_asked(self, tmp_path):
        reference = writers.vit()
        path = saved(reference.state_dict(), tmp_path)
        with pytest.raises(CoverageError, match=r"positions of timm:.*img_size=64, found those of another image size"):
            load_backbone(path, self.NAME)
        source = load_backbone(path, self.NAME, resize_positions=True)
        assert any("resampled from 2 x 2 to 4 x 4 patches, as asked" in note for note in source.report.notes)
        larger = timm.create_model("vit_tiny_patch16_224", depth=1, img_size=64)
        wanted = vision_transformer.checkpoint_filter_fn(dict(reference.state_dict()), larger)
        assert all(torch.equal(tensor, wanted[name]) for name, tensor in source.state.items())

    def test_positions_that_a_class_token_took_part_of_are_refused_and_resampled_too(self, tmp_path):
        path = saved(writers.dinov2_registers().tree, tmp_path)
        name = "timm:vit_small_patch14_reg4_dinov2?depth=1&img_size=56"
        with pytest.raises(CoverageError, match=r"another image size \(pos_embed is \[1, 5, 384\], expected \[1, 16"):
            load_backbone(path, name)
        assert load_backbone(path, name, resize_positions=True).build().input.size == 56

    def test_a_converted_file_keeps_the_size_and_tells_its_architecture(self, tmp_path):
        path = saved(writers.vit().state_dict(), tmp_path)
        convert_file(path, tmp_path / "large.safetensors", architecture=self.NAME, resize_positions=True)
        assert str(load_backbone(tmp_path / "large.safetensors").architecture) == self.NAME

    def test_bias_tables_of_swin_are_resized_where_asked(self, tmp_path):
        sample = writers.swin()
        text = sample.architecture.replace("window_size=4", "window_size=8")
        source = load_backbone(saved(sample.tree, tmp_path), text, resize_positions=True)
        assert source.state["layers.0.blocks.0.attn.relative_position_bias_table"].shape == (15 * 15, 1)

    def test_the_size_to_resize_to_must_be_given(self, tmp_path):
        with pytest.raises(InputError, match="--arch with the img_size"):
            load_backbone(saved(writers.vit().state_dict(), tmp_path), resize_positions=True)


class TestModelConfig:
    def test_heads_of_a_width_of_its_own_are_asked_for_and_taken_from_arch_or_config(self, tmp_path):
        only = writers.net("vit_tiny_patch16_224", embed_dim=96, depth=1, num_heads=4, img_size=32)
        path = saved(only.state_dict(), tmp_path, "pytorch_model.bin")
        with pytest.raises(InputError, match=r"the heads of a ViT of width 96, .*--arch 'timm:.*&num_heads=N'"):
            load_backbone(path)
        text = "timm:vit_tiny_patch16_224?embed_dim=96&depth=1&num_heads=4&img_size=32"
        assert torch.equal(features(load_backbone(path, text).build(), 32), features(only, 32))
        arguments = {"embed_dim": 96, "depth": 1, "num_heads": 4, "img_size": 32}
        config = {"architecture": "vit_tiny_patch16_224", "num_classes": 1000, "model_args": arguments}
        (tmp_path / "config.json").write_text(json.dumps(config))
        assert torch.equal(features(load_backbone(path).build(), 32), features(only, 32))
        assert torch.equal(features(load_backbone(tmp_path).build(), 32), features(only, 32))

    @pytest.mark.parametrize(
        "text", ["{", "[]", "{}", '{"model_type": "vit", "hidden_size": 7, "num_attention_heads": 7}']
    )
    def test_a_config_of_something_else_changes_nothing(self, text, tmp_path):
        sample = writers.transformers_vit()
        (tmp_path / "config.json").write_text(text)
        assert str(load_backbone(write(sample, tmp_path)).architecture) == sample.architecture

    @pytest.mark.parametrize(
        ("network", "own", "other", "said"),
        [
            ("resnet18", IMAGENET, HALVES,
             "MODEL.PIXEL_MEAN '[127.5, 127.5, 127.5]' MODEL.PIXEL_STD '[127.5, 127.5, 127.5]'"),
            ("vit_tiny_patch16_224", HALVES, IMAGENET,
             "MODEL.BACKBONE.PIXELS settings MODEL.PIXEL_MEAN '[123.675, 116.28, 103.53]' "
             "MODEL.PIXEL_STD '[58.395, 57.12, 57.375]'"),
        ],
    )  # fmt: skip
    def test_another_normalisation_than_the_networks_is_warned_of(self, network, own, other, said, tmp_path, caplog):
        resnet = network == "resnet18"
        arguments = {} if resnet else {"depth": 1, "img_size": 32}
        built = build_resnet(Architecture(network, 64)) if resnet else writers.net(network, **arguments)
        path = saved(built.state_dict(), tmp_path, "pytorch_model.bin")
        for (mean, std), warned in ((own, False), (other, True)):
            details = {"mean": mean, "std": std}
            config = {"architecture": network, "model_args": arguments, "pretrained_cfg": details}
            (tmp_path / "config.json").write_text(json.dumps(config))
            caplog.clear()
            load_backbone(path)
            found = [text for text in caplog.messages if "config.json has mean" in text]
            assert len(found) == warned
        assert said in found[0]


class TestRefusals:
    def test_a_checkpoint_of_another_width_depth_or_patch_is_one_line(self, tmp_path):
        path = saved(writers.vit().state_dict(), tmp_path)
        for wrong in ("vit_small_patch16_224?depth=1&img_size=32", "vit_tiny_patch16_224?depth=2&img_size=32",
                      "vit_tiny_patch16_224?depth=1&img_size=32&patch_size=8"):  # fmt: skip
            with pytest.raises(CoverageError, match=r"expected every tensor of a timm:") as caught:
                load_backbone(path, f"timm:{wrong}")
            assert "its tensors are those of timm:vit_tiny_patch16_224?depth=1&img_size=32" in str(caught.value)
            assert "\n" not in str(caught.value)

    def test_an_architecture_of_another_kind_is_refused(self, tmp_path):
        path = saved(writers.vit().state_dict(), tmp_path)
        with pytest.raises(InputError, match=r"expected a resnet50 as --arch says, found names of timm"):
            load_backbone(path, "resnet50")

    @pytest.mark.parametrize(("asked", "message"), [
        ("timm:test_vit?img_size=64&embed_dim=32", r"78 of another shape \(cls_token is \[1, 1, 64\], expected"),
        ("timm:test_convnext", r"99 missing .* 78 that are not part of a timm:test_convnext"),
    ])  # fmt: skip
    def test_where_no_tensor_has_its_shape_the_network_asked_for_is_named(self, asked, message, tmp_path):
        torch.save(build_backbone("timm:test_vit?img_size=64").state_dict(), tmp_path / "vit.pth")
        with pytest.raises(InputError, match=rf"expected every tensor of a {re.escape(asked)}, found {message}"):
            load_backbone(tmp_path / "vit.pth", architecture=asked)

    def test_a_text_tower_or_a_head_alone_is_refused(self, tmp_path):
        text = {name: t for name, t in writers.open_clip().tree["state_dict"].items() if "visual" not in name}
        with pytest.raises(InputError, match="found only a text tower"):
            load_backbone(saved(text, tmp_path))
        with pytest.raises(InputError, match="found only a head"):
            load_backbone(saved({"head.weight": torch.zeros(3, 192), "head.bias": torch.zeros(3)}, tmp_path))

    def test_quantised_weights_are_refused(self, tmp_path):
        state = writers.vit().state_dict()
        state["blocks.0.mlp.fc1.weight"] = torch.zeros(768, 192, dtype=torch.int8)
        with pytest.raises(InputError, match=r"integer ones .*before quantisation"):
            load_backbone(saved(state, tmp_path))

    @pytest.mark.parametrize(
        ("name", "kind"), [("flax_model.msgpack", "Flax"), ("tf_model.h5", "TensorFlow"), ("ViT-B_16.npz", "JAX"),
                           ("model.ckpt.index", "TensorFlow"), ("model.ckpt.data-00000-of-00001", "TensorFlow")]
    )  # fmt: skip
    def test_weights_of_jax_and_tensorflow_are_refused_as_a_file_and_in_a_folder(self, name, kind, tmp_path):
        (tmp_path / name).write_bytes(b"weights")
        for path in (tmp_path / name, tmp_path):
            with pytest.raises(InputError, match=f"expected torch weights, found .*{kind}.*transformers"):
                load_backbone(path)

    @pytest.mark.parametrize("name", ["blocks.0.attn[q].weight", "blocks.0.attn[", "[", "head[1].weight", "norm[v]]"])
    def test_a_bracket_in_a_name_is_one_more_unknown_tensor(self, name, tmp_path):
        state = {**writers.vit().state_dict(), name: torch.zeros(3)}
        with pytest.raises(CoverageError, match=re.escape(name)):
            load_backbone(saved(state, tmp_path))

    def test_half_of_a_network_names_what_is_missing(self, tmp_path):
        state = writers.vit().state_dict()
        del state["blocks.0.norm2.weight"]
        with pytest.raises(CoverageError, match=r"1 missing \(blocks\.0\.norm2\.weight\)"):
            load_backbone(saved(state, tmp_path))
        del state["blocks.0.mlp.fc1.weight"]
        with pytest.raises(InputError, match="without some"):
            load_backbone(saved(state, tmp_path))


def test_shapes_of_an_inferred_network_are_those_of_the_file(tmp_path):
    """What no name of timm's has is spelled out, whatever the measures."""
    for number, (width, depth, patch, ratio) in enumerate([(192, 2, 8, 3.0), (384, 1, 32, 4.0), (768, 1, 16, 2.5)]):
        options = {"embed_dim": width, "depth": depth, "patch_size": patch, "mlp_ratio": ratio, "img_size": 64}
        with torch.device("meta"):
            shapes = expected_shapes(
                TimmArchitecture("vit_tiny_patch16_224", tuple({**options, "num_heads": 4}.items()))
            )
        state = {name: torch.rand(shape) for name, shape in shapes.items()}
        source = load_backbone(saved(state, tmp_path, f"{number}.pth"))
        assert expected_shapes(source.architecture) == shapes


_SMALL_CONVNEXT = "depths=(1,1,1,1)&dims=(8,16,24,32)"


@pytest.mark.parametrize(("held", "asked", "message"), [
    ("resnet10?width=8", "timm:test_vit", "those of resnet10.width=8"),
    (f"timm:convnext_atto?{_SMALL_CONVNEXT}", "timm:convnext_tiny", r"those of timm:convnext_tiny.depths=\(1,1,1,1\)"),
    (f"timm:convnext_atto?{_SMALL_CONVNEXT}", "timm:test_vit", r"those of timm:convnext_tiny.depths=\(1,1,1,1\)"),
])  # fmt: skip
def test_a_file_of_another_network_is_refused_with_what_it_is(held, asked, message, tmp_path):
    torch.save(build_backbone(held).state_dict(), tmp_path / "other.pth")
    with pytest.raises(InputError, match=rf"expected every tensor of a {asked}, .*; its tensors are {message}"):
        load_backbone(tmp_path / "other.pth", architecture=asked)


def test_a_convnext_with_convolutions_as_its_mlps_is_known_by_its_tensors(tmp_path):
    only = build_backbone(f"timm:convnext_atto?{_SMALL_CONVNEXT}").eval()
    torch.save(only.state_dict(), tmp_path / "convnext.pth")
    assert torch.equal(features(load_backbone(tmp_path / "convnext.pth").build(), 64), features(only, 64))


@pytest.mark.parametrize(("wrong", "message"), [
    (None, "position embeddings of a square grid, found 0"),
    (torch.zeros(1, 17, 100), r"1 of another shape \(pos_embed is \[1, 17, 100\], expected \[1, 17, 192\]\)"),
])  # fmt: skip
def test_position_embeddings_of_no_grid_or_of_another_width_are_refused_as_such(wrong, message, tmp_path):
    state = writers.vit().state_dict() | {"pos_embed": wrong}
    torch.save({name: tensor for name, tensor in state.items() if tensor is not None}, tmp_path / "vit.pth")
    with pytest.raises(InputError, match=message):
        load_backbone(tmp_path / "vit.pth")


SHAPES = {"patch_embed.proj.weight": (48, 3, 16, 16)}


@pytest.mark.parametrize(
    ("layout", "config", "found"),
    [
        ("transformers-vit", {}, {"eps": 1e-12, "activation": "gelu"}),
        ("transformers-vit", {"hidden_size": 64, "layer_norm_eps": 1e-5}, {"eps": 1e-12, "activation": "gelu"}),
        ("transformers-vit", {"hidden_size": 48, "layer_norm_eps": 1e-5}, {"eps": 1e-5, "activation": "gelu"}),
        ("transformers-vit", {"hidden_size": 48, "layer_norm_eps": True}, {"eps": 1e-12, "activation": "gelu"}),
        ("transformers-vit", {"hidden_size": 48, "num_attention_heads": 3, "hidden_act": "gelu_new", "image_size": 64},
         {"eps": 1e-12, "activation": "gelu_tanh", "heads": 3, "side": 64}),
        ("transformers-vit", {"vision_config": {"hidden_size": 48, "num_attention_heads": 4}, "hidden_size": 9},
         {"eps": 1e-12, "activation": "gelu", "heads": 4}),
        ("transformers-swin", {"embed_dim": 48, "hidden_size": 9, "num_heads": [1, 2], "window_size": 4},
         {"heads": (1, 2), "window": 4}),
        ("transformers-convnext", {"hidden_sizes": [48, 96], "layer_norm_eps": 1e-6},
         {"final_eps": 1e-6, "activation": "gelu"}),
        ("transformers-dinov3", {"hidden_size": 48, "rope_theta": 100.0}, {"rope_temperature": 100.0}),
        ("timm", {"hidden_size": 48, "num_attention_heads": 3}, {}),
    ],
)  # fmt: skip
def test_a_config_gives_clues_of_a_network_of_its_width(layout: str, config: dict, found: dict):
    clues = clues_of(layout, "family", True, SHAPES, config)
    assert {key: value for key, value in vars(clues).items() if value not in (None, "", False)} == {
        "layout": layout, "family": "family", "classifier": True, **found
    }  # fmt: skip


def test_a_config_of_timm_names_its_network_and_its_normalisation():
    config = {
        "architecture": "vit_tiny_patch16_224",
        "pretrained_cfg": {"tag": "augreg_in21k", "mean": [0.5, 0, 1], "std": [0.5, 1, 0.1]},
        "model_args": {"depth": 2, "dims": [1, 2], "num_classes": 3, "x": None},
    }
    named = timm_architecture_in(config)
    assert named == TimmArchitecture("vit_tiny_patch16_224.augreg_in21k", (("depth", 2), ("dims", (1, 2))))
    assert Hints(known=named).known is named
    unknown = {"architecture": "vit_tiny_patch16_224", "pretrained_cfg": {"tag": "none"}}
    assert timm_architecture_in(unknown) == TimmArchitecture("vit_tiny_patch16_224")
    for other in ({}, {"architecture": "none"}, {**config, "model_type": "vit"}, {"architecture": 3}):
        assert timm_architecture_in(other) is None
    found = input_in(config)
    assert (found.mean, found.std) == ((0.5, 0, 1), (0.5, 1, 0.1))
    for wrong in ([0.5, 0.5], [0.5, 0.5, 1.5], [0.5, -0.1, 0], ["a", 0, 0], 0.5, None, [True, 0, 0]):
        assert input_in({"pretrained_cfg": {"mean": wrong, "std": [1, 1, 1]}}) is None
        assert input_in({"pretrained_cfg": {"mean": [0, 0, 0], "std": wrong}}) is None
    assert input_in({"pretrained_cfg": {"mean": [0, 0, 0], "std": [0, 1, 1]}}) is None
    assert OWN_FORMAT == "momentum-transfer/1"


BLOCK = "transformer.resblocks.0."
OPENAI = ["class_embedding", f"{BLOCK}attn.in_proj_weight", f"{BLOCK}ln_1.weight", "ln_post.weight"]


def test_clips_tensors_in_openais_order_are_openais():
    assert is_openai_order(OPENAI)
    assert layout_of(OPENAI).name == "clip"
    assert not is_openai_order([OPENAI[0], OPENAI[2], OPENAI[1], OPENAI[3]])
    assert not is_openai_order(sorted(OPENAI, key=lambda name: name != "ln_post.weight"))
    for absent in range(4):
        assert not is_openai_order([name for place, name in enumerate(OPENAI) if place != absent])
