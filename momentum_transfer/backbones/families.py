"""Checkpoint families: where each published project keeps its backbone, one rule a family, as data.

Names are compared after wrapper components (``module.`` of DataParallel, ``_orig_mod.`` of torch.compile) are removed.
Families that write exactly the same names are one rule. A family says where the tensors are; how they are named there
is a layout (``timm_layouts``), so that a MoCo v3 or DINO file may hold a ResNet or a ViT.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

Names = Mapping[str, str]

STUDENT, TEACHER, ONLY = "student", "teacher", "backbone"


@dataclass(frozen=True)
class Place:
    """Where one network of a file may be.

    Attributes:
        container: dotted path of dict keys, "" for the top level.
        prefix: of the network's tensors there.
        evidence: the place counts only if this pattern matches a name in the container, or the family was asked for.
    """

    container: str
    prefix: str = ""
    evidence: str = ""


@dataclass(frozen=True)
class Family:
    """How one family of checkpoints is laid out.

    Attributes:
        name: what ``--family`` takes.
        title: the methods and code bases that write this layout.
        networks: network -> the places where it may be; the first that holds tensors counts.
        default: the network that the paper evaluates, used where the file holds it.
        drops: pattern on the normalised name -> why it is no part of the backbone.
        evidence: the rule competes only if one of these patterns matches a name in the file; empty: always.
        needs: the rule competes only if the file holds this network.
        layout: how backbone tensors may be named: names of ``timm_layouts``, "numbered" (lightly's Sequential)
            or "detectron2"; "" for any of ``timm_layouts``.
    """

    name: str
    title: str
    networks: Mapping[str, tuple[Place, ...]]
    default: str
    drops: Names = field(default_factory=dict)
    evidence: tuple[str, ...] = ()
    layout: str = ""
    needs: str = ""

    def reason_to_drop(self, name: str) -> str:
        """Why a normalised name is no part of the backbone; "" where no drop rule matches."""
        return next((reason for pattern, reason in self.drops.items() if re.search(pattern, name)), "")

    def has_evidence(self, names: list[str]) -> bool:
        """Whether the normalised names of a file speak for this family."""
        return not self.evidence or any(re.search(pattern, name) for name in names for pattern in self.evidence)


def _places(prefix: str, *containers: str) -> tuple[Place, ...]:
    return tuple(Place(container, prefix) for container in containers)


def normalise(name: str) -> str:
    """``name`` without the components that wrappers add."""
    return ".".join(part for part in name.split(".") if part not in ("module", "_orig_mod"))


_FC = r"(^|\.)fc\."
_HEAD = "classification or projection head"
_MASK = "mask token of the pretraining"
_TEXT = "text tower"
_ANY = ("state_dict", "model", "")
#: What transformers puts before a network's names in its models with a head.
_PREFIXES = ("vit.", "deit.", "ijepa.", "dinov2_with_registers.", "dinov2.", "dinov3_vit.", "dinov3_convnext.",
             "convnextv2.", "convnext.", "swinv2.", "swin.", "resnet.", "vision_model.", "backbone.", "")  # fmt: skip
_KINDS = ("vit", "dinov2", "dinov3", "clip", "siglip", "swin", "swinv2", "convnext", "dinov3-convnext", "resnet")

#: Families whose networks timm has: vision transformers, Swin, ConvNeXt.
_FAMILIES_OF_TIMM: tuple[Family, ...] = (
    Family("dinov2", "DINOv2, with and without registers",
           {TEACHER: _places("teacher.backbone.", "model", "state_dict", ""),
           STUDENT: _places("student.backbone.", "model", "state_dict", ""),
           ONLY: (*_places("backbone.", "model", "state_dict", ""), *_places("", *_ANY))}, TEACHER,
           {r"^(student|teacher)\.(dino_head|ibot_head)\.": _HEAD, r"^(dino_head|ibot_head|head|linear_head)\.": _HEAD},
           (r"(^|\.)(mask_token|register_tokens|blocks\.0\.0\.norm1\.weight|mlp\.w12\.weight)$",), "dinov2"),
    Family("dinov3", "DINOv3 ViTs", {TEACHER: _places("teacher.backbone.", "model", "state_dict", ""),
           STUDENT: _places("student.backbone.", "model", "state_dict", ""),
           ONLY: (*_places("backbone.", "teacher", "model", "state_dict", ""), *_places("", "teacher", *_ANY))},
           TEACHER, {r"^((student|teacher)\.)?(dino_head|ibot_head|head|linear_head)\.": _HEAD},
           (r"(^|\.)storage_tokens$",), "dinov3"),
    Family("ijepa-msn", "I-JEPA, MSN", {STUDENT: _places("", "encoder"), TEACHER: _places("", "target_encoder")},
           TEACHER, {_FC: _HEAD, r"^(head|pred)\.": _HEAD}, layout="timm", needs=TEACHER),
    Family("mae", "MAE", {ONLY: _places("", "model", "state_dict", "")}, ONLY,
           {r"^decoder_": "decoder of the pretraining", r"^mask_token$": _MASK, r"^head\.": _HEAD},
           (r"^decoder_(pos_embed|embed\.weight)$",), "timm"),
    Family("clip", "CLIP's image tower: OpenAI, open_clip (its own towers and timm's)",
           {ONLY: (*_places("visual.trunk.", *_ANY), *_places("visual.", *_ANY), *_places("", *_ANY))}, ONLY,
           {r"^visual\.head\.": "projection to the text's space",
           r"^(text|transformer|token_embedding|ln_final|text_projection|positional_embedding|logit_scale|logit_bias"
           r"|context_length|vocab_size|input_resolution)(\.|$)": _TEXT},
           (r"^(visual\.)?class_embedding$", r"^visual\.trunk\.")),
    Family("transformers", "Hugging Face transformers: ViT, MAE, MSN, I-JEPA, DINOv2, DINOv3, CLIP, SigLIP, Swin, "
           "ConvNeXt, ResNet",
           {ONLY: tuple(place for prefix in _PREFIXES for place in _places(prefix, "", "state_dict", "model"))}, ONLY,
           {r"^(vision_model\.|\w+\.)?(classifier|pooler|visual_projection)\.": _HEAD, r"^decoder\.": "decoder",
           r"^(cls|distillation)_classifier\.": _HEAD, r"(^|\.)logit_(scale|bias)$": _TEXT,
           r"^(text_model|text_projection)\.": _TEXT},
           (r"(^|\.)(embeddings\.patch_embedding|embedder\.embedder\.|depthwise_conv\.)",),
           " ".join(f"transformers-{kind}" for kind in _KINDS)),
    Family("swin", "Swin and Swin V2 releases", {ONLY: _places("", *_ANY)}, ONLY,
           {r"^head\.": _HEAD}, (r"^layers\.0\.downsample\.",), "swin-release"),
    Family("convnext", "ConvNeXt and ConvNeXt V2 releases", {ONLY: _places("", *_ANY)}, ONLY,
           {r"^head\.": _HEAD}, (r"^downsample_layers\.0\.0\.",), "convnext-release"),
    # also what DINO, iBOT, MAE, MoCo v3 and DeiT export, and this project
    Family("named", "timm's own names: timm, exported ViTs of many methods, and this project",
           {ONLY: _places("", *_ANY)}, ONLY, {r"^(fc|head|head_dist|head_fc|classifier|last_linear)(\.|$)": _HEAD,
           r"^(mask_token|masked_embed)$": _MASK}, (), "timm"),
)  # fmt: skip


_QUEUE = {r"(^|\.)queue\w*$": "queue of negatives"}
_DINO_HEAD = r"^head\.(mlp|last_layer)\."
_DETECTOR_PARTS = {r"^backbone\.(?!bottom_up\.)": "feature pyramid",
                   r"^(proposal_generator|roi_heads|head|sem_seg_head)\.": "the detector's heads"}  # fmt: skip
#: Where detectors keep a network of timm: under an FPN, under a simple feature pyramid, a segmenter's by itself.
_IN_DETECTORS = (*_places("backbone.bottom_up.", "model", ""), *_places("backbone.net.", "model", ""),
                 *(Place(container, "backbone.", r"^sem_seg_head\.") for container in ("model", "")))  # fmt: skip

FAMILIES: tuple[Family, ...] = (
    Family("momentum-transfer", "this project's checkpoints",
           {STUDENT: (Place("model", "student.backbone."),), TEACHER: (Place("model", "teacher.backbone."),)}, TEACHER,
           {r"\.(alpha|pending_mean|pending_var|pending_count)$": "Momentum BN's training state",
           r"\.group_(mean|var)$": "statistics of virtual processes",
           r"(^|\.)(projector|predictor|head|fc|classifier|neck)\.": _HEAD, **_QUEUE},
           (r"^(student|teacher)\.backbone\.",)),
    Family("momentum2", "Momentum² Teacher", {TEACHER: _places("teacher_encoder.", "model", "state_dict", ""),
           STUDENT: _places("student_encoder.", "model", "state_dict", "")}, TEACHER, {_FC: _HEAD,
           r"^(predictor|projector)\.": _HEAD, r"\.(alpha|momentum_\w+)$": "Momentum BN's training state"},
           (r"^(teacher|student)_encoder\.",)),
    Family("rcf", "Revisiting Critical Factors: MoCo v2+, S-MoCo v2+, BYOL",
           {STUDENT: _places("online_encoder.", "model", "state_dict", ""),
           TEACHER: _places("target_encoder.", "model", "state_dict", "")}, STUDENT, {_FC: _HEAD,
           r"^(predictor|projector)\.": _HEAD, **_QUEUE}, (r"^(online|target)_encoder\.",)),
    Family("eman-byol", "BYOL and BYOL-EMAN of EMAN", {STUDENT: _places("online_net.backbone.", "state_dict", ""),
           TEACHER: _places("target_net.backbone.", "state_dict", "")}, STUDENT,
           {r"^(online_net|target_net)\.(?!backbone\.)": _HEAD, r"^predictor\.": "predictor", _FC: _HEAD},
           (r"^online_net\.backbone\.",)),
    Family("eman-fixmatch", "FixMatch and FixMatch-EMAN of EMAN",
           {STUDENT: _places("main.backbone.", "state_dict", ""), TEACHER: _places("ema.backbone.", "state_dict", "")},
           STUDENT, {r"^(main|ema)\.(?!backbone\.)": _HEAD, _FC: _HEAD}, (r"^main\.backbone\.",)),
    Family("moco", "MoCo v1, MoCo v2, PCL, and EMAN's MoCo",
           {STUDENT: _places("encoder_q.", "state_dict", ""), TEACHER: _places("encoder_k.", "state_dict", "")},
           STUDENT, {_FC: _HEAD, r"(^|\.)neck\.": "neck", r"(^|\.)predictor\.": "predictor", **_QUEUE},
           (r"^encoder_q\.",)),
    Family("mocov3", "MoCo v3", {STUDENT: _places("base_encoder.", "state_dict", ""),
           TEACHER: _places("momentum_encoder.", "state_dict", "")}, STUDENT, {_FC: _HEAD, r"(^|\.)head\.": _HEAD,
           r"^predictor\.": "predictor"}, (r"^base_encoder\.",)),
    Family("simsiam", "SimSiam", {STUDENT: _places("encoder.", "state_dict", "")}, STUDENT,
           {_FC: _HEAD, r"^predictor\.": "predictor"}, (r"^encoder\.",)),
    Family("swav", "SwAV, DeepCluster-v2", {ONLY: _places("", "state_dict", "")}, ONLY,
           {r"^projection_head\.": "projection head", r"^prototypes\.": "prototypes"},
           (r"^(projection_head|prototypes)\.",)),
    Family("barlow-twins", "Barlow Twins", {ONLY: _places("backbone.", "model", "")}, ONLY,
           {r"^projector\.": "projector", r"^bn\.": "BatchNorm of the projections", r"^backbone\.fc\.": _HEAD},
           (r"^bn\.(running_mean|num_batches_tracked|weight)$",)),
    Family("vicreg", "VICReg", {ONLY: _places("backbone.", "model", "")}, ONLY,
           {r"^projector\.": "projector", r"^backbone\.fc\.": _HEAD}, (r"^projector\.",)),
    Family("dino", "DINO, iBOT, and DINOv2's teacher checkpoints",
           {TEACHER: (Place("teacher", "backbone."), Place("teacher")),
           STUDENT: (Place("student", "backbone."), Place("student")),
           ONLY: (Place("", "backbone.", _DINO_HEAD), Place("state_dict", "backbone.", _DINO_HEAD))}, TEACHER,
           {r"^(head|dino_head|ibot_head)\.": _HEAD, r"^(backbone\.)?fc\.": _HEAD,
           r"(^|\.)masked_embed$": "mask token"}),
    Family("vissl", "VISSL",
           {ONLY: (*(Place("classy_state_dict.base_model.model.trunk", f"{start}_feature_blocks.")
                     for start in ("", "base_model.")),
                   *_places("_feature_blocks.", "model_state_dict", ""),
                   *_places("trunk._feature_blocks.", "model_state_dict", ""))},
           ONLY, {r"^heads\.": _HEAD, r"(^|\.)_feature_blocks\.fc\.": _HEAD}, (r"(^|\.)_feature_blocks\.",)),
    Family("solo-learn", "solo-learn",
           {STUDENT: (*_places("backbone.", "state_dict"), *_places("encoder.", "state_dict")),
           TEACHER: (*_places("momentum_backbone.", "state_dict"), *_places("momentum_encoder.", "state_dict"))},
           STUDENT, {r"^(momentum_)?(projector|predictor|classifier|prototypes|head)\b": _HEAD, **_QUEUE},
           (r"^(momentum_)?(projector|classifier)\.", r"^momentum_(backbone|encoder)\.")),
    Family("lightly", "lightly, torchvision names",
           {STUDENT: (*_places("backbone.vit.", "state_dict", ""), *_places("backbone.", "state_dict", "")),
           TEACHER: (*_places("backbone_momentum.vit.", "state_dict", ""),
                     *_places("backbone_momentum.", "state_dict", ""))}, STUDENT,
           {r"^(\w*(projection|prediction)_head\w*|prototypes)\.": _HEAD, r"^backbone\.fc\.": _HEAD,
           r"^criterion\.": "loss state"}, (r"^backbone\.(conv1|(vit\.)?patch_embed)\.",)),
    Family("lightly-numbered", "lightly, numbered Sequential",
           {STUDENT: (*_places("backbone.", "state_dict", ""), *_places("", "state_dict", "")),
           TEACHER: _places("backbone_momentum.", "state_dict", "")}, STUDENT,
           {r"^(\w*(projection|prediction)_head\w*|prototypes)\.": _HEAD, r"^criterion\.": "loss state",
           r"^(backbone(_momentum)?\.)?9\.": _HEAD}, (r"^(backbone\.)?0\.weight$",), "numbered"),
    Family("mmselfsup", "MMSelfSup, MMPretrain, DenseCL",
           {STUDENT: (*_places("backbone.", "state_dict", ""), *_places("encoder_q.0.", "state_dict", ""),
                      *_places("online_net.0.", "state_dict", "")),
           TEACHER: (*_places("encoder_k.0.", "state_dict", ""), *_places("target_net.0.", "state_dict", ""))}, STUDENT,
           {r"^(online_net|encoder_q)\.(?!0\.)": "neck of the student",
           r"^(target_net|encoder_k)\.(?!0\.)": "neck of the teacher",
           r"^(backbone\.)?(neck|head|bbox_head)\.(?!(mlp|last_layer)\.)": "neck or head",  # the exceptions are DINO's
           r"^data_preprocessor\.": "image normalisation", r"^backbone\.fc\.": _HEAD,
           r"^queue\w*$": "queue of negatives"}, (r"^(neck|head|data_preprocessor|encoder_k|target_net)\.",
           r"^(backbone|encoder_q\.0|online_net\.0)\.")),
    Family("timm", "timm and torchvision training checkpoints with averaged weights (EMA)",
           {TEACHER: _places("", "state_dict_ema", "model_ema"), STUDENT: _places("", "state_dict", "model")}, TEACHER,
           {r"^(fc|head|classifier)\.": _HEAD, r"^n_averaged$": "count of averaged steps"}, needs=TEACHER),
    # torchvision, timm, RCF's supervised baseline, and exported backbones of Barlow Twins, VICReg, DINO,
    # MMPretrain, DenseCL and this project
    Family("torchvision", "flat torchvision names: torchvision, timm, and exported backbones of many methods",
           {ONLY: _places("", *_ANY)}, ONLY, {r"^(fc|head|classifier)\.": _HEAD}, (r"^(conv1|bn1|layer[1-4])\.",),
           "torchvision"),
    Family("detectron2", "Detectron2 .pkl", {ONLY: _places("", "model", "")}, ONLY,
           {r"^(stem\.fc|linear|fc)\.": _HEAD}, (r"^(stem|res[2-5])\.",), "detectron2"),
    # C4 detectors' names are brought to these (``containers.py``)
    Family("detector", "finished detectors of both engines, Detectron2's names: the backbone as it was fine-tuned",
           {ONLY: _places("backbone.bottom_up.", "model", "")}, ONLY, _DETECTOR_PARTS,
           (r"^backbone\.bottom_up\.(stem\.conv1|res[2-5])\.",), "detectron2"),
    Family("torchvision-detector", "torchvision's detectors on a ResNet: the backbone as it was fine-tuned",
           {ONLY: _places("backbone.body.", *_ANY)}, ONLY, {r"^backbone\.fpn\.": "feature pyramid",
           r"^(rpn|roi_heads|head)\.": "the detector's heads"}, (r"^backbone\.body\.",), "torchvision"),
    Family("timm-detector", "finished detectors of both engines on a network of timm: as it was fine-tuned",
           {ONLY: _IN_DETECTORS}, ONLY, _DETECTOR_PARTS, (r"^backbone\.(bottom_up|net)\.(?!stem\.conv1\.|res[2-5]\.)",
           r"^sem_seg_head\."), "timm torchvision"),
    *_FAMILIES_OF_TIMM,
)  # fmt: skip

BY_NAME = {family.name: family for family in FAMILIES}
