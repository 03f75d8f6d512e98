"""Tiny checkpoints of every family in their real nesting, each made of live modules that can be asked for features."""

import argparse
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from momentum_transfer.backbones.resnet import Architecture, ResNet, build_resnet

TINY = Architecture("resnet10", 8)


@dataclass
class Sample:
    """A checkpoint tree, its file suffix, its networks and what loading it must give."""

    tree: Any
    networks: dict[str, ResNet]
    family: str
    default: str
    suffix: str = ".pth.tar"
    dropped: tuple[str, ...] = field(default=())


class Nest(nn.Module):
    """A module with the given children; dots in a name make levels."""

    def __init__(self, **children: nn.Module) -> None:
        super().__init__()
        for name, child in children.items():
            setattr(self, name, child)

    def buffer(self, name: str, value: torch.Tensor) -> "Nest":
        self.register_buffer(name, value)
        return self


def network(architecture: Architecture = TINY, fc: nn.Module | None = None) -> ResNet:
    """A backbone whose parameters and statistics all differ from their initial values; ``fc`` rides along unused."""
    made = build_resnet(architecture)
    for module in made.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, std=0.1)
            nn.init.normal_(module.running_mean, std=0.1)
            nn.init.uniform_(module.running_var, 0.5, 1.5)
            module.num_batches_tracked.fill_(int(torch.randint(1, 1000, ())))
    if fc is not None:
        made.fc = fc
    return made.eval()


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4))


def wrapped(module: nn.Module) -> dict[str, torch.Tensor]:
    """The state dict as DistributedDataParallel saves it."""
    return {f"module.{name}": tensor for name, tensor in module.state_dict().items()}


def training(state: dict[str, torch.Tensor], container: str = "state_dict") -> dict[str, Any]:
    """What training scripts save around the weights."""
    optimizer = {"state": {0: {"momentum_buffer": torch.zeros(3)}}, "param_groups": [{"lr": 0.1, "params": [0]}]}
    return {"epoch": 200, "arch": "resnet50", container: state, "optimizer": optimizer}


def momentum2() -> Sample:
    student, teacher = network(fc=mlp()), network(fc=mlp())
    whole = Nest(student_encoder=student, teacher_encoder=teacher, predictor=mlp())
    tree = training(wrapped(whole), "model")
    return Sample(tree, {"student": student, "teacher": teacher}, "momentum2", "teacher", dropped=("fc", "predictor"))


def rcf_byol() -> Sample:
    student, teacher = network(fc=mlp()), network(fc=mlp())
    whole = Nest(online_encoder=student, target_encoder=teacher, predictor=mlp())
    return Sample(training(wrapped(whole), "model"), {"student": student, "teacher": teacher}, "rcf", "student")


def rcf_moco() -> Sample:
    sample = rcf_byol()
    sample.tree["model"] |= {"module.queue": torch.zeros(4, 8), "module.queue_ptr": torch.zeros(1, dtype=torch.int64)}
    sample.dropped = ("queue", "queue_ptr")
    return sample


def rcf_supervised() -> Sample:
    only = network(fc=nn.Linear(64, 10))
    return Sample(training(wrapped(only), "model"), {"backbone": only}, "torchvision", "backbone", dropped=("fc",))


def moco(fc: nn.Module, **extra: nn.Module) -> Sample:
    student, teacher = network(fc=fc), network(fc=fc)
    whole = Nest(encoder_q=student, encoder_k=teacher, **extra).buffer("queue", torch.zeros(4, 8))
    whole.buffer("queue_ptr", torch.zeros(1, dtype=torch.int64))
    networks = {"student": student, "teacher": teacher}
    return Sample(training(wrapped(whole)), networks, "moco", "student", dropped=("queue", "queue_ptr", "fc"))


def moco_v1() -> Sample:
    return moco(nn.Linear(64, 8))


def moco_v2() -> Sample:
    return moco(mlp())


def eman_moco() -> Sample:
    return moco(mlp(), neck=mlp(), predictor=mlp())


def eman_byol() -> Sample:
    student, teacher = network(), network()
    whole = Nest(
        online_net=Nest(backbone=student, neck=mlp()), target_net=Nest(backbone=teacher, neck=mlp()), predictor=mlp()
    )
    return Sample(training(wrapped(whole)), {"student": student, "teacher": teacher}, "eman-byol", "student")


def eman_fixmatch() -> Sample:
    student, teacher = network(), network()
    whole = Nest(main=Nest(backbone=student, fc=nn.Linear(64, 3)), ema=Nest(backbone=teacher, fc=nn.Linear(64, 3)))
    return Sample(training(wrapped(whole)), {"student": student, "teacher": teacher}, "eman-fixmatch", "student")


def moco_v3() -> Sample:
    student, teacher = network(fc=mlp()), network(fc=mlp())
    whole = Nest(base_encoder=student, momentum_encoder=teacher, predictor=mlp())
    return Sample(training(wrapped(whole)), {"student": student, "teacher": teacher}, "mocov3", "student")


def simsiam() -> Sample:
    student = network(fc=mlp())
    return Sample(training(wrapped(Nest(encoder=student, predictor=mlp()))), {"student": student}, "simsiam", "student")


def _with_heads(**heads: nn.Module) -> tuple[ResNet, dict[str, torch.Tensor]]:
    only = network()
    state = dict(only.state_dict())
    for name, head in heads.items():
        state |= {f"{name}.{key}": tensor for key, tensor in head.state_dict().items()}
    return only, {f"module.{name}": tensor for name, tensor in state.items()}


def swav() -> Sample:
    only, state = _with_heads(projection_head=mlp(), prototypes=nn.Linear(4, 30, bias=False))
    return Sample(state, {"backbone": only}, "swav", "backbone", dropped=("projection_head", "prototypes"))


def deepcluster_v2() -> Sample:
    prototypes = Nest(prototypes0=nn.Linear(4, 30, bias=False), prototypes1=nn.Linear(4, 30, bias=False))
    only, state = _with_heads(projection_head=mlp(), prototypes=prototypes)
    return Sample(training(state), {"backbone": only}, "swav", "backbone")


def barlow_twins() -> Sample:
    only = network(fc=nn.Identity())
    whole = Nest(backbone=only, projector=mlp(), bn=nn.BatchNorm1d(4, affine=False))
    tree = training(wrapped(whole), "model")
    return Sample(tree, {"backbone": only}, "barlow-twins", "backbone", ".pth", ("projector", "bn"))


def vicreg() -> Sample:
    only = network(fc=nn.Identity())
    tree = training(wrapped(Nest(backbone=only, projector=mlp())), "model")
    return Sample(tree, {"backbone": only}, "vicreg", "backbone", ".pth", ("projector",))


def exported_flat() -> Sample:
    """The published ResNets of Barlow Twins, VICReg and DINO, and MMPretrain's, DenseCL's: names only, no head."""
    only = network()
    return Sample(dict(only.state_dict()), {"backbone": only}, "torchvision", "backbone", ".pth")


def dino() -> Sample:
    student, teacher = network(), network()
    tree = {
        "student": wrapped(Nest(backbone=student, head=mlp())),
        "teacher": Nest(backbone=teacher, head=mlp()).state_dict(),
        "optimizer": {"state": {}, "param_groups": []},
        "epoch": 100,
        "args": argparse.Namespace(arch="resnet50", lr=0.03),
        "dino_loss": {"center": torch.zeros(1, 4)},
    }
    return Sample(tree, {"student": student, "teacher": teacher}, "dino", "teacher", ".pth", ("head",))


def dino_flat() -> Sample:
    only = network()
    state = wrapped(Nest(backbone=only, head=Nest(mlp=mlp(), last_layer=nn.Linear(4, 30, bias=False))))
    return Sample(state, {"backbone": only}, "dino", "backbone", ".pth", ("head.mlp", "head.last_layer"))


def dino_bare() -> Sample:
    """Teacher and student without the prefix of the multi-crop wrapper."""
    student, teacher = network(fc=nn.Linear(64, 4)), network()
    tree = {"student": wrapped(student), "teacher": dict(teacher.state_dict()), "epoch": 100}
    return Sample(tree, {"student": student, "teacher": teacher}, "dino", "teacher", ".pth", ("fc",))


def vissl() -> Sample:
    only = network()
    trunk = {f"_feature_blocks.{name}": tensor for name, tensor in only.state_dict().items()}
    model = {"trunk": trunk, "heads": {"0.clf.0.weight": torch.zeros(4, 64)}}
    tree = {"phase_idx": 1, "classy_state_dict": {"base_model": {"model": model, "meta": {}}, "train": True}}
    return Sample(tree, {"backbone": only}, "vissl", "backbone", ".torch")


def vissl_extracted() -> Sample:
    only = network()
    trunk = {f"_feature_blocks.{name}": tensor for name, tensor in only.state_dict().items()}
    return Sample({"model_state_dict": trunk}, {"backbone": only}, "vissl", "backbone", ".torch")


def timm_averaged() -> Sample:
    student, teacher = network(fc=nn.Linear(64, 10)), network(fc=nn.Linear(64, 10))
    tree = training({f"_orig_mod.{k}": v for k, v in student.state_dict().items()})
    tree["state_dict_ema"] = teacher.state_dict()
    return Sample(tree, {"student": student, "teacher": teacher}, "timm", "teacher", dropped=("fc",))


def torchvision_averaged() -> Sample:
    student, teacher = network(fc=nn.Linear(64, 10)), network(fc=nn.Linear(64, 10))
    tree = training(dict(student.state_dict()), "model")
    tree["model_ema"] = {"n_averaged": torch.tensor(5), **wrapped(teacher)}
    return Sample(tree, {"student": student, "teacher": teacher}, "timm", "teacher", ".pth", ("n_averaged", "fc"))


def timm_safetensors() -> Sample:
    only = network(fc=nn.Linear(64, 10))
    return Sample(dict(only.state_dict()), {"backbone": only}, "torchvision", "backbone", ".safetensors", ("fc",))


def solo_learn() -> Sample:
    student, teacher = network(), network()
    whole = Nest(backbone=student, momentum_backbone=teacher, projector=mlp(), momentum_projector=mlp(),
                 predictor=mlp(), classifier=nn.Linear(64, 10))  # fmt: skip
    tree = training(whole.state_dict())
    tree["hyper_parameters"] = argparse.Namespace(method="byol")
    networks = {"student": student, "teacher": teacher}
    return Sample(tree, networks, "solo-learn", "student", ".ckpt", ("projector", "classifier"))


def solo_learn_old() -> Sample:
    student = network()
    whole = Nest(encoder=student, projector=mlp(), classifier=nn.Linear(64, 10))
    return Sample(training(whole.state_dict()), {"student": student}, "solo-learn", "student", ".ckpt")


def lightly_named() -> Sample:
    student, teacher = network(), network()
    whole = Nest(backbone=student, projection_head=Nest(layers=mlp()), prediction_head=Nest(layers=mlp()),
                 backbone_momentum=teacher, projection_head_momentum=Nest(layers=mlp()))  # fmt: skip
    networks = {"student": student, "teacher": teacher}
    return Sample(training(whole.state_dict()), networks, "lightly", "student", ".ckpt", ("projection_head",))


def _numbered(backbone: ResNet) -> nn.Sequential:
    return nn.Sequential(*backbone.children())


def lightly_numbered() -> Sample:
    student, teacher = network(), network()
    whole = Nest(backbone=_numbered(student), projection_head=Nest(layers=mlp()),
                 backbone_momentum=_numbered(teacher), projection_head_momentum=Nest(layers=mlp()))  # fmt: skip
    networks = {"student": student, "teacher": teacher}
    return Sample(training(whole.state_dict()), networks, "lightly-numbered", "student", ".ckpt")


def lightly_numbered_with_classifier() -> Sample:
    student, teacher = network(), network()
    ten = [nn.Sequential(*_numbered(net), nn.Linear(64, 10)) for net in (student, teacher)]
    whole = Nest(backbone=ten[0], backbone_momentum=ten[1])
    networks = {"student": student, "teacher": teacher}
    return Sample(training(whole.state_dict()), networks, "lightly-numbered", "student", ".ckpt", ("backbone.9",))


def mmselfsup_without_alias() -> Sample:
    """DenseCL's and MoCo's training files of versions that save the backbone only inside ``encoder_q``."""
    student, teacher = network(), network()
    whole = Nest(encoder_q=nn.Sequential(student, mlp()), encoder_k=nn.Sequential(teacher, mlp()))
    whole.buffer("queue", torch.zeros(4, 8)).buffer("queue2", torch.zeros(4, 8))
    networks = {"student": student, "teacher": teacher}
    return Sample({"state_dict": whole.state_dict()}, networks, "mmselfsup", "student", ".pth", ("queue2", "1.0."))


def mmselfsup_byol_without_alias() -> Sample:
    student, teacher = network(), network()
    whole = Nest(online_net=nn.Sequential(student, mlp()), target_net=nn.Sequential(teacher, mlp()))
    networks = {"student": student, "teacher": teacher}
    return Sample({"state_dict": whole.state_dict()}, networks, "mmselfsup", "student", ".pth")


def mmselfsup_moco() -> Sample:
    student, teacher = network(), network()
    whole = Nest(backbone=student, neck=mlp(), encoder_k=nn.Sequential(teacher, mlp()), data_preprocessor=nn.Identity())
    whole.buffer("queue", torch.zeros(4, 8))
    tree = {"meta": {"epoch": 200}, "state_dict": whole.state_dict()}
    networks = {"student": student, "teacher": teacher}
    return Sample(tree, networks, "mmselfsup", "student", ".pth", ("neck", "queue"))


def mmselfsup_byol() -> Sample:
    student, teacher = network(), network()
    whole = Nest(backbone=student, online_net=nn.Sequential(student, mlp()), target_net=nn.Sequential(teacher, mlp()),
                 head=Nest(predictor=mlp()))  # fmt: skip
    tree = {"meta": {}, "state_dict": whole.state_dict()}
    return Sample(tree, {"student": student, "teacher": teacher}, "mmselfsup", "student", ".pth", ("head",))


def densecl() -> Sample:
    only = network()
    return Sample({"state_dict": dict(only.state_dict()), "author": "DenseCL"}, {"backbone": only}, "torchvision",
                  "backbone", ".pth")  # fmt: skip


def ours() -> Sample:
    student, teacher = network(), network()
    whole = Nest(student=Nest(backbone=student, projector=mlp()), teacher=Nest(backbone=teacher, projector=mlp()))
    state = dict(whole.state_dict())
    state["teacher.backbone.bn1.alpha"] = torch.ones(())
    state["teacher.backbone.bn1.pending_mean"] = torch.zeros(2, 8)
    tree = {
        "format": "momentum-transfer/1", "method": "byol", "config": "SEED: 1\n", "step": 7, "model": state,
        "network_default": "teacher", "architecture": {"name": "resnet10", "width": 8, "stem": "imagenet"},
    }  # fmt: skip
    return Sample(tree, {"student": student, "teacher": teacher}, "momentum-transfer", "teacher", ".pt",
                  ("projector", "alpha", "pending_mean"))  # fmt: skip


#: Written out here, independently of the product's table: torchvision name -> Detectron2 name.
_DETECTRON2 = (
    ("layer1", "res2"), ("layer2", "res3"), ("layer3", "res4"), ("layer4", "res5"),
    ("downsample.0", "shortcut"), ("downsample.1", "shortcut.norm"),
    ("bn1", "conv1.norm"), ("bn2", "conv2.norm"), ("bn3", "conv3.norm"),
)  # fmt: skip


def detectron2_name(name: str) -> str:
    """As Detectron2's own converter does it: replace in order, and put the stem in front."""
    if "layer" not in name:
        name = f"stem.{name}"
    for ours_, detectron2s in _DETECTRON2:
        name = name.replace(ours_, detectron2s)
    return name


def detectron2_pkl() -> Sample:
    only = network(fc=nn.Linear(64, 10))
    model = {detectron2_name(name): tensor.numpy() for name, tensor in only.state_dict().items()}
    tree = {"model": model, "__author__": "torchvision", "matching_heuristics": True}
    return Sample(tree, {"backbone": only}, "detectron2", "backbone", ".pkl", ("stem.fc",))


def finished_detector() -> Sample:
    """A C4 detector, whose res5 is among its heads: the more scattered of the two layouts."""
    only = network()
    places = {"res5.": "roi_heads.", "stem.": "backbone.", "res": "backbone."}
    model = {}
    for name, tensor in only.state_dict().items():
        detectron2s = detectron2_name(name)
        prefix = next(prefix for start, prefix in places.items() if detectron2s.startswith(start))
        model[prefix + detectron2s] = tensor
    model["proposal_generator.rpn_head.conv.weight"] = torch.ones(2, 2, 3, 3)
    model["roi_heads.box_predictor.cls_score.weight"] = torch.ones(3, 8)
    dropped = ("proposal_generator", "roi_heads.box_predictor")
    return Sample({"model": model}, {"backbone": only}, "detector", "backbone", ".pth", dropped)


def torchvision_detector() -> Sample:
    only = network()
    model = {f"backbone.body.{name}": tensor for name, tensor in only.state_dict().items()}
    model["backbone.fpn.layer_blocks.0.0.weight"] = torch.ones(2, 2, 3, 3)
    model["roi_heads.box_predictor.cls_score.weight"] = torch.ones(3, 8)
    dropped = ("backbone.fpn", "roi_heads.box_predictor")
    return Sample(model, {"backbone": only}, "torchvision-detector", "backbone", ".pth", dropped)


WRITERS: tuple[Callable[[], Sample], ...] = (
    momentum2, rcf_byol, rcf_moco, rcf_supervised, moco_v1, moco_v2, eman_moco, eman_byol, eman_fixmatch, moco_v3,
    simsiam, swav, deepcluster_v2, barlow_twins, vicreg, exported_flat, dino, dino_flat, dino_bare,
    vissl, vissl_extracted, timm_averaged,
    torchvision_averaged, timm_safetensors, solo_learn, solo_learn_old, lightly_named, lightly_numbered,
    lightly_numbered_with_classifier, mmselfsup_moco, mmselfsup_byol, mmselfsup_without_alias,
    mmselfsup_byol_without_alias, densecl, ours, detectron2_pkl, finished_detector,
    torchvision_detector,
)  # fmt: skip
