"""Checkpoints that other projects' own classes write, read here: their own forward is the oracle.

Each class is made small, with weights drawn at random, and saved as its project does. A package that is not installed
skips its cases: ``pip install "momentum-transfer[upstream]"`` installs transformers, open_clip and lightly, and
docs/checkpoints.md says how the others were had. ``COVERED`` is the table of that page.
"""

import argparse
import importlib
import importlib.util
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from momentum_transfer.backbones.families import FAMILIES
from momentum_transfer.backbones.read import load_backbone
from tests.backbones.timm_family_writers import shaken

#: Largest difference of the features, which are of the order of 1, in float32.
TOLERANCE = 2e-5


class Case(NamedTuple):
    """A model of another project.

    Attributes:
        save: (model, folder) -> the file or folder that is read.
        forward: (model, images) -> the features that reading must give.
    """

    model: nn.Module
    save: Callable[[nn.Module, Path], Path]
    forward: Callable[[nn.Module, Tensor], Tensor]
    side: int = 32
    options: dict[str, Any] = {}  # noqa: RUF012 (never changed)


def state_dict(model: nn.Module, folder: Path) -> Path:
    torch.save(model.state_dict(), folder / "model.pth")
    return folder / "model.pth"


def under(key: str) -> Callable[[nn.Module, Path], Path]:
    """A training checkpoint with the model's state dict under ``key``."""

    def save(model: nn.Module, folder: Path) -> Path:
        torch.save({key: model.state_dict(), "epoch": 3}, folder / "model.pth")
        return folder / "model.pth"

    return save


def pretrained(model: Any, folder: Path) -> Path:
    """The folder that ``save_pretrained`` of transformers writes, with its config."""
    model.save_pretrained(folder / "model")
    return folder / "model"


def first_token(model: Any, x: Tensor) -> Tensor:
    return model(x).last_hidden_state[:, 0]


def pooled(model: Any, x: Tensor) -> Tensor:
    return model(x).pooler_output.flatten(1)


VIT = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48, "image_size": 32,
       "patch_size": 8}  # fmt: skip
CONVNEXT = {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 2, 1]}
SWIN = {
    "image_size": 64,
    "patch_size": 4,
    "embed_dim": 16,
    "depths": [2, 2, 1],
    "num_heads": [1, 2, 4],
    "window_size": 4,
}
DECODER = {"decoder_hidden_size": 16, "decoder_num_hidden_layers": 1, "decoder_num_attention_heads": 2,
           "decoder_intermediate_size": 16}  # fmt: skip


def transformers_case(kind: str) -> Case:
    t = importlib.import_module("transformers")

    def made(name: str, settings: dict[str, Any], head: str = "Model", **more: Any) -> Any:
        return getattr(t, f"{name}{head}")(getattr(t, f"{name}Config")(**{**settings, **more}))

    def within(name: str, forward: Callable[[nn.Module, Tensor], Tensor]) -> Callable[[nn.Module, Tensor], Tensor]:
        return lambda model, x: forward(getattr(model, name), x)

    def unmasked(model: Any, x: Tensor) -> Tensor:
        return model.vit(x, noise=torch.arange(16.0)[None].expand(len(x), -1)).last_hidden_state[:, 0]

    classes, silu = "ForImageClassification", {"use_gated_mlp": True, "hidden_act": "silu", "num_register_tokens": 2}
    cases: dict[str, Callable[[], tuple[Any, ...]]] = {
        "ViT": lambda: (made("ViT", VIT, classes), pretrained, within("vit", first_token)),
        "ViT in memory": lambda: (made("ViT", VIT, hidden_size=192, num_attention_heads=3), state_dict, first_token),
        "MAE": lambda: (made("ViTMAE", VIT, "ForPreTraining", **DECODER, mask_ratio=0.0), pretrained, unmasked),
        "MSN": lambda: (made("ViTMSN", VIT), pretrained, first_token),
        "I-JEPA": lambda: (made("IJepa", VIT), pretrained, lambda m, x: m(x).last_hidden_state.mean(1)),
        "DINOv2": lambda: (made("Dinov2", VIT, classes), pretrained, within("dinov2", pooled)),
        "DINOv2 SwiGLU": lambda: (made("Dinov2", VIT, use_swiglu_ffn=True), pretrained, pooled),
        "DINOv2 registers": lambda: (made("Dinov2WithRegisters", VIT), pretrained, pooled),
        "DINOv3": lambda: (made("DINOv3ViT", VIT, num_register_tokens=4), pretrained, pooled),
        "DINOv3 SwiGLU": lambda: (made("DINOv3ViT", VIT, **silu), pretrained, pooled),
        "DINOv3 ConvNeXt": lambda: (made("DINOv3ConvNext", CONVNEXT), pretrained, pooled, 64),
        "CLIP": lambda: (t.CLIPVisionModel(t.CLIPVisionConfig(**VIT)), pretrained, pooled),
        "CLIP GELU": lambda: (t.CLIPVisionModelWithProjection(t.CLIPVisionConfig(**VIT, hidden_act="gelu")), pretrained,
                              within("vision_model", pooled)),
        "SigLIP": lambda: (t.SiglipVisionModel(t.SiglipVisionConfig(**VIT)), pretrained, pooled),
        "Swin": lambda: (made("Swin", SWIN), pretrained, pooled, 64),
        "Swin V2": lambda: (made("Swinv2", SWIN), pretrained, pooled, 64),
        "ConvNeXt": lambda: (made("ConvNext", CONVNEXT, classes), state_dict, within("convnext", pooled), 64),
        "ConvNeXt V2": lambda: (made("ConvNextV2", CONVNEXT), pretrained, pooled, 64),
        "ResNet": lambda: (made("ResNet", {"hidden_sizes": [64, 128, 256, 512]}, classes, embedding_size=16),
                           pretrained, within("resnet", pooled), 64),
    }  # fmt: skip
    return Case(*cases[kind]())


def resnet() -> nn.Module:
    torchvision = importlib.import_module("torchvision")
    return torchvision.models.resnet18()


def pooled_resnet(model: nn.Module, x: Tensor) -> Tensor:
    """A torchvision ResNet's features without its classifier."""
    fc, model.fc = model.fc, nn.Identity()
    found = model(x)
    model.fc = fc
    return found


def torchvision_case(_: str) -> Case:
    return Case(resnet(), state_dict, pooled_resnet, 64)


def timm_case(kind: str) -> Case:
    timm = importlib.import_module("timm")
    if kind == "EMA":  # timm's own training saver writes the file

        def save(model: nn.Module, folder: Path) -> Path:
            saver = timm.utils.CheckpointSaver(
                model=timm.create_model("resnet18"), optimizer=torch.optim.SGD(model.parameters(), 0.1),
                model_ema=timm.utils.ModelEmaV3(model), checkpoint_dir=str(folder), recovery_dir=str(folder),
                args=argparse.Namespace(model="resnet18"),
            )  # fmt: skip
            saver.save_checkpoint(1, metric=0.5)
            return folder / "last.pth.tar"

        return Case(
            timm.create_model("resnet18"), save, lambda m, x: m.forward_head(m.forward_features(x), pre_logits=True), 64
        )
    model = timm.create_model(kind, **({"depth": 1, "img_size": 64} if "vit_" in kind else {}))
    return Case(model, state_dict, lambda m, x: m.forward_head(m.forward_features(x), pre_logits=True), 64)


def lightly_case(kind: str) -> Case:
    """As lightly's examples build them: a LightningModule of a backbone, its heads and their momentum copies."""
    modules = importlib.import_module("lightly.models.modules")
    whole = nn.Module()
    if kind == "MAE":
        timm = importlib.import_module("timm")
        vit = timm.create_model("vit_tiny_patch16_224", depth=1, img_size=32, num_classes=0)
        whole.backbone = modules.MaskedVisionTransformerTIMM(vit=vit)
        whole.projection_head = modules.DINOProjectionHead(192, 16, 8, 32)
        return Case(whole, under("state_dict"), lambda m, x: m.backbone.vit(x), 32)
    backbone = resnet()
    if kind == "named":
        backbone.fc = nn.Identity()
        whole.backbone = backbone
    else:
        whole.backbone = nn.Sequential(*list(backbone.children())[:-1])
    heads = {
        "MoCo": lambda: modules.MoCoProjectionHead(512, 16, 8),
        "named": lambda: modules.SimSiamProjectionHead(512, 16, 8),
        "BYOL": lambda: modules.BYOLProjectionHead(512, 16, 8),
        "SwaV": lambda: modules.SwaVProjectionHead(512, 16, 8),
    }
    whole.projection_head = heads[kind]()
    if kind == "BYOL":
        whole.prediction_head = modules.BYOLPredictionHead(8, 16, 8)
        whole.projection_head_momentum = heads[kind]()
    if kind == "SwaV":
        whole.prototypes = modules.SwaVPrototypes(8, n_prototypes=16)
    return Case(whole, under("state_dict"), lambda m, x: m.backbone(x).flatten(1), 64)


def solo_case(kind: str) -> Case:
    """solo-learn wants an old Lightning's bolts for a schedule that nothing here calls."""
    names = ("pl_bolts", "pl_bolts.optimizers", "pl_bolts.optimizers.lr_scheduler")
    for name in names:
        sys.modules.setdefault(name, types.ModuleType(name))
    sys.modules[names[-1]].LinearWarmupCosineAnnealingLR = object
    methods = importlib.import_module("solo.methods")
    common = {
        "encoder": "resnet18", "backbone_args": {"cifar": False, "zero_init_residual": False}, "num_classes": 3,
        "max_epochs": 1, "batch_size": 2, "optimizer": "sgd", "lars": False, "lr": 0.1, "weight_decay": 0.0,
        "classifier_lr": 0.1, "exclude_bias_n_norm": False, "accumulate_grad_batches": 1, "extra_optimizer_args": {},
        "scheduler": "none", "min_lr": 0.0, "warmup_start_lr": 0.0, "warmup_epochs": 0, "num_large_crops": 2,
        "num_small_crops": 0, "proj_output_dim": 8, "proj_hidden_dim": 16, "pred_hidden_dim": 16, "temperature": 0.1,
        "base_tau_momentum": 0.9, "final_tau_momentum": 1.0, "momentum_classifier": False, "queue_size": 8, "lamb": 1.0,
        "scale_loss": 1.0, "sim_loss_weight": 1.0, "var_loss_weight": 1.0, "cov_loss_weight": 1.0,
    }  # fmt: skip
    return Case(methods.METHODS[kind](**common), under("state_dict"), lambda m, x: m.encoder(x), 64)


def open_clip_case(kind: str) -> Case:
    open_clip = importlib.import_module("open_clip")
    text = {"context_length": 8, "vocab_size": 20, "width": 16, "heads": 2, "layers": 1}
    vision: dict[str, Any] = {"image_size": 32, "layers": 2, "width": 192, "head_width": 64, "patch_size": 16}
    if kind == "trunk":
        vision = {
            "image_size": 224,
            "timm_model_name": "vit_tiny_patch16_224",
            "timm_pool": "token",
            "timm_proj": "linear",
        }
        model = open_clip.CustomTextCLIP(embed_dim=16, vision_cfg=vision, text_cfg=text)
        return Case(model, under("state_dict"), lambda m, x: m.visual.trunk(x), 224)

    def tower(m: Any, x: Tensor) -> Tensor:
        m.visual.proj = None
        return m.visual(x)

    model = open_clip.CLIP(embed_dim=16, vision_cfg=vision, text_cfg=text, quick_gelu=kind == "QuickGELU")
    name = "timm:vit_base_patch16_clip_quickgelu_224?embed_dim=192&depth=2&img_size=32&num_heads=3"
    options = {} if kind == "GELU" else {"architecture": name}  # no tensor of open_clip's shows it
    return Case(model, under("state_dict"), tower, 32, options)


def openai_clip_case(_: str) -> Case:
    clip = importlib.import_module("clip.model")
    model = clip.CLIP(embed_dim=16, image_resolution=32, vision_layers=2, vision_width=192, vision_patch_size=16,
                      context_length=8, vocab_size=20, transformer_width=16, transformer_heads=2,
                      transformer_layers=1)  # fmt: skip

    def tower(m: Any, x: Tensor) -> Tensor:
        m.visual.proj = None
        return m.visual(x)

    return Case(model, state_dict, tower, 32)


def dinov2_case(kind: str) -> Case:
    vits = importlib.import_module("dinov2.models.vision_transformer")
    common = {"img_size": 28, "patch_size": 14, "embed_dim": 384, "depth": 2, "num_heads": 6, "init_values": 1.0}
    options: dict[str, dict[str, Any]] = {
        "plain": {},
        "chunks": {"block_chunks": 2},
        "SwiGLU": {"ffn_layer": "swiglufused"},
    }
    return Case(
        vits.DinoVisionTransformer(**common, **{"block_chunks": 0, **options[kind]}), state_dict, lambda m, x: m(x), 28
    )


#: (package to import, family that must be recognised, its models)
COVERED: tuple[tuple[str, str, Callable[[str], Case], tuple[str, ...]], ...] = (
    ("torchvision", "torchvision", torchvision_case, ("ResNet",)),
    ("timm", "torchvision", timm_case, ("resnet18",)),
    ("timm", "timm", timm_case, ("EMA",)),
    ("timm", "named", timm_case, ("vit_tiny_patch16_224",)),
    ("lightly", "lightly-numbered", lightly_case, ("MoCo", "BYOL", "SwaV")),
    ("lightly", "lightly", lightly_case, ("named", "MAE")),
    ("solo", "solo-learn", solo_case, ("byol", "mocov2plus", "simsiam", "barlow_twins", "vicreg")),
    ("transformers", "transformers", transformers_case,
     ("ViT", "ViT in memory", "MAE", "MSN", "I-JEPA", "DINOv2", "DINOv2 SwiGLU", "DINOv2 registers", "DINOv3",
      "DINOv3 SwiGLU", "DINOv3 ConvNeXt", "CLIP", "CLIP GELU", "SigLIP", "Swin", "Swin V2", "ConvNeXt", "ConvNeXt V2",
      "ResNet")),
    ("open_clip", "clip", open_clip_case, ("GELU", "QuickGELU", "trunk")),
    ("clip", "clip", openai_clip_case, ("CLIP",)),
    ("dinov2", "dinov2", dinov2_case, ("plain", "chunks", "SwiGLU")),
)  # fmt: skip

CASES = [
    pytest.param(package, family, make, kind, id=f"{package}-{kind}")
    for package, family, make, kinds in COVERED
    for kind in kinds
]


@pytest.mark.parametrize(("package", "family", "make", "kind"), CASES)
@torch.no_grad()
def test_a_file_of_the_projects_own_class_gives_its_own_features(package, family, make, kind, tmp_path):
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package}'s own classes write these checkpoints; it is not installed")
    torch.manual_seed(0)
    case = make(kind)
    model = shaken(case.model)
    path = case.save(model, tmp_path)
    source = load_backbone(path, **case.options)
    assert source.family == family
    assert source.report.complete
    images = torch.randn(2, 3, case.side, case.side)
    reference, ours = case.forward(model.eval(), images), source.build()(images)
    assert reference.abs().mean() > 0.01
    assert (reference - ours).abs().max() <= TOLERANCE * max(1.0, float(reference.abs().max()))


#: Package to import -> what the documentation calls it.
PROJECTS = {"solo": "solo-learn", "clip": "OpenAI's clip"}


def table() -> list[str]:
    """The rows of docs/checkpoints.md: family, what writes it, and whose classes wrote the files that were read."""
    rows = []
    for family in FAMILIES:
        covered = [
            (PROJECTS.get(package, package), kinds) for package, name, _, kinds in COVERED if name == family.name
        ]
        tested = "; ".join(f"{package}: {', '.join(kinds)}" for package, kinds in covered) or "nesting"
        rows.append(f"| `{family.name}` | {family.title} | {tested} |")
    return rows


def test_the_documentation_says_which_family_was_read_from_files_of_its_projects_own_classes():
    page = (Path(__file__).parents[2] / "docs/checkpoints.md").read_text(encoding="utf-8").splitlines()
    assert [line for line in page if line.startswith("| `") and "--family" not in line] == table()
    assert {family for _, family, _, _ in COVERED} <= {family.name for family in FAMILIES}
