"""Checkpoint families: where each published project keeps its backbone, one rule a family, as data.

Names are compared after wrapper components (``module.`` of DataParallel, ``_orig_mod.`` of torch.compile) are removed.
Families that write exactly the same names share one rule: a file cannot tell them apart, and nothing hangs on it.
A family says where the tensors are; how they are named inside is told by layouts (``timm_layout_tables``), so that a
MoCo v3 or DINO file may hold a ResNet or a ViT.
"""

from __future__ import annotations

from momentum_transfer.backbones.families_of_timm import FAMILIES_OF_TIMM
from momentum_transfer.backbones.family import ONLY, STUDENT, TEACHER, Family, Place, normalise, places

__all__ = ["BY_NAME", "FAMILIES", "ONLY", "STUDENT", "TEACHER", "Family", "Place", "normalise", "places"]

_FC = r"(^|\.)fc\."
_HEAD = "classification or projection head"
_QUEUE = {r"(^|\.)queue\w*$": "queue of negatives"}
_DINO_HEAD = r"^head\.(mlp|last_layer)\."
_ANY = ("state_dict", "model", "")
_DETECTOR_PARTS = {r"^backbone\.(?!bottom_up\.)": "feature pyramid",
                   r"^(proposal_generator|roi_heads|head|sem_seg_head)\.": "the detector's heads"}  # fmt: skip
#: Where detectors keep a network of timm: under an FPN, under a simple feature pyramid, a segmenter's by itself.
_IN_DETECTORS = (*places("backbone.bottom_up.", "model", ""), *places("backbone.net.", "model", ""),
                 *(Place(container, "backbone.", r"^sem_seg_head\.") for container in ("model", "")))  # fmt: skip

FAMILIES: tuple[Family, ...] = (
    Family(
        "momentum-transfer", "this project's checkpoints",
        {STUDENT: (Place("model", "student.backbone."),), TEACHER: (Place("model", "teacher.backbone."),)}, TEACHER,
        {r"\.(alpha|pending_mean|pending_var|pending_count)$": "Momentum BN's training state",
         r"\.group_(mean|var)$": "statistics of virtual processes",
         r"(^|\.)(projector|predictor|head|fc|classifier|neck)\.": _HEAD,
         **_QUEUE},
        (r"^(student|teacher)\.backbone\.",),
    ),
    Family(
        "momentum2", "Momentum² Teacher",
        {TEACHER: places("teacher_encoder.", "model", "state_dict", ""),
         STUDENT: places("student_encoder.", "model", "state_dict", "")}, TEACHER,
        {_FC: _HEAD, r"^(predictor|projector)\.": _HEAD, r"\.(alpha|momentum_\w+)$": "Momentum BN's training state"},
        (r"^(teacher|student)_encoder\.",),
    ),
    Family(
        "rcf", "Revisiting Critical Factors: MoCo v2+, S-MoCo v2+, BYOL",
        {STUDENT: places("online_encoder.", "model", "state_dict", ""),
         TEACHER: places("target_encoder.", "model", "state_dict", "")}, STUDENT,
        {_FC: _HEAD, r"^(predictor|projector)\.": _HEAD, **_QUEUE},
        (r"^(online|target)_encoder\.",),
    ),
    Family(
        "eman-byol", "BYOL and BYOL-EMAN of EMAN",
        {STUDENT: places("online_net.backbone.", "state_dict", ""),
         TEACHER: places("target_net.backbone.", "state_dict", "")}, STUDENT,
        {r"^(online_net|target_net)\.(?!backbone\.)": _HEAD, r"^predictor\.": "predictor", _FC: _HEAD},
        (r"^online_net\.backbone\.",),
    ),
    Family(
        "eman-fixmatch", "FixMatch and FixMatch-EMAN of EMAN",
        {STUDENT: places("main.backbone.", "state_dict", ""), TEACHER: places("ema.backbone.", "state_dict", "")},
        STUDENT,
        {r"^(main|ema)\.(?!backbone\.)": _HEAD, _FC: _HEAD},
        (r"^main\.backbone\.",),
    ),
    Family(
        "moco", "MoCo v1, MoCo v2, PCL, and EMAN's MoCo",
        {STUDENT: places("encoder_q.", "state_dict", ""), TEACHER: places("encoder_k.", "state_dict", "")}, STUDENT,
        {_FC: _HEAD, r"(^|\.)neck\.": "neck", r"(^|\.)predictor\.": "predictor", **_QUEUE},
        (r"^encoder_q\.",),
    ),
    Family(
        "mocov3", "MoCo v3",
        {STUDENT: places("base_encoder.", "state_dict", ""), TEACHER: places("momentum_encoder.", "state_dict", "")},
        STUDENT,
        {_FC: _HEAD, r"(^|\.)head\.": _HEAD, r"^predictor\.": "predictor"},
        (r"^base_encoder\.",),
    ),
    Family(
        "simsiam", "SimSiam",
        {STUDENT: places("encoder.", "state_dict", "")}, STUDENT,
        {_FC: _HEAD, r"^predictor\.": "predictor"},
        (r"^encoder\.",),
    ),
    Family(
        "swav", "SwAV, DeepCluster-v2",
        {ONLY: places("", "state_dict", "")}, ONLY,
        {r"^projection_head\.": "projection head", r"^prototypes\.": "prototypes"},
        (r"^(projection_head|prototypes)\.",),
    ),
    Family(
        "barlow-twins", "Barlow Twins",
        {ONLY: places("backbone.", "model", "")}, ONLY,
        {r"^projector\.": "projector", r"^bn\.": "BatchNorm of the projections", r"^backbone\.fc\.": _HEAD},
        (r"^bn\.(running_mean|num_batches_tracked|weight)$",),
    ),
    Family(
        "vicreg", "VICReg",
        {ONLY: places("backbone.", "model", "")}, ONLY,
        {r"^projector\.": "projector", r"^backbone\.fc\.": _HEAD},
        (r"^projector\.",),
    ),
    Family(
        "dino", "DINO, iBOT, and DINOv2's teacher checkpoints",
        {TEACHER: (Place("teacher", "backbone."), Place("teacher")),
         STUDENT: (Place("student", "backbone."), Place("student")),
         ONLY: (Place("", "backbone.", _DINO_HEAD), Place("state_dict", "backbone.", _DINO_HEAD))}, TEACHER,
        {r"^(head|dino_head|ibot_head)\.": _HEAD, r"^(backbone\.)?fc\.": _HEAD, r"(^|\.)masked_embed$": "mask token"},
    ),
    Family(
        "vissl", "VISSL",
        {ONLY: (Place("classy_state_dict.base_model.model.trunk", "_feature_blocks."),
                Place("classy_state_dict.base_model.model.trunk", "base_model._feature_blocks."),
                *places("_feature_blocks.", "model_state_dict", ""),
                *places("trunk._feature_blocks.", "model_state_dict", ""))}, ONLY,
        {r"^heads\.": _HEAD, r"(^|\.)_feature_blocks\.fc\.": _HEAD},
        (r"(^|\.)_feature_blocks\.",),
    ),
    Family(
        "solo-learn", "solo-learn",
        {STUDENT: (*places("backbone.", "state_dict"), *places("encoder.", "state_dict")),
         TEACHER: (*places("momentum_backbone.", "state_dict"), *places("momentum_encoder.", "state_dict"))},
        STUDENT,
        {r"^(momentum_)?(projector|predictor|classifier|prototypes|head)\b": _HEAD, **_QUEUE},
        (r"^(momentum_)?(projector|classifier)\.", r"^momentum_(backbone|encoder)\."),
    ),
    Family(
        "lightly", "lightly, torchvision names",
        {STUDENT: (*places("backbone.vit.", "state_dict", ""), *places("backbone.", "state_dict", "")),
         TEACHER: (*places("backbone_momentum.vit.", "state_dict", ""),
                   *places("backbone_momentum.", "state_dict", ""))},
        STUDENT,
        {r"^(\w*(projection|prediction)_head\w*|prototypes)\.": _HEAD, r"^backbone\.fc\.": _HEAD,
         r"^criterion\.": "loss state"},
        (r"^backbone\.(conv1|(vit\.)?patch_embed)\.",),
    ),
    Family(
        "lightly-numbered", "lightly, numbered Sequential",
        {STUDENT: (*places("backbone.", "state_dict", ""), *places("", "state_dict", "")),
         TEACHER: places("backbone_momentum.", "state_dict", "")}, STUDENT,
        {r"^(\w*(projection|prediction)_head\w*|prototypes)\.": _HEAD, r"^criterion\.": "loss state",
         r"^(backbone(_momentum)?\.)?9\.": _HEAD},
        (r"^(backbone\.)?0\.weight$",), "numbered",
    ),
    Family(
        "mmselfsup", "MMSelfSup, MMPretrain, DenseCL",
        {STUDENT: (*places("backbone.", "state_dict", ""), *places("encoder_q.0.", "state_dict", ""),
                   *places("online_net.0.", "state_dict", "")),
         TEACHER: (*places("encoder_k.0.", "state_dict", ""), *places("target_net.0.", "state_dict", ""))}, STUDENT,
        {r"^(online_net|encoder_q)\.(?!0\.)": "neck of the student",
         r"^(target_net|encoder_k)\.(?!0\.)": "neck of the teacher",
         r"^(backbone\.)?(neck|head|bbox_head)\.(?!(mlp|last_layer)\.)": "neck or head",  # those two are DINO's
         r"^data_preprocessor\.": "image normalisation",
         r"^backbone\.fc\.": _HEAD, r"^queue\w*$": "queue of negatives"},
        (r"^(neck|head|data_preprocessor|encoder_k|target_net)\.", r"^(backbone|encoder_q\.0|online_net\.0)\."),
    ),
    Family(
        "timm", "timm and torchvision training checkpoints with averaged weights (EMA)",
        {TEACHER: places("", "state_dict_ema", "model_ema"), STUDENT: places("", "state_dict", "model")}, TEACHER,
        {r"^(fc|head|classifier)\.": _HEAD, r"^n_averaged$": "count of averaged steps"}, needs=TEACHER,
    ),
    Family(
        # torchvision, timm, RCF's supervised baseline, and exported backbones of Barlow Twins, VICReg, DINO,
        # MMPretrain, DenseCL and this project
        "torchvision", "flat torchvision names: torchvision, timm, and exported backbones of many methods",
        {ONLY: places("", *_ANY)}, ONLY,
        {r"^(fc|head|classifier)\.": _HEAD},
        (r"^(conv1|bn1|layer[1-4])\.",), "torchvision",
    ),
    Family(
        "detectron2", "Detectron2 .pkl",
        {ONLY: places("", "model", "")}, ONLY,
        {r"^(stem\.fc|linear|fc)\.": _HEAD},
        (r"^(stem|res[2-5])\.",), "detectron2",
    ),
    Family(
        # C4 detectors' names are brought to these (``containers.py``)
        "detector", "finished detectors of both engines, Detectron2's names: the backbone as it was fine-tuned",
        {ONLY: places("backbone.bottom_up.", "model", "")}, ONLY, _DETECTOR_PARTS,
        (r"^backbone\.bottom_up\.(stem\.conv1|res[2-5])\.",), "detectron2",
    ),
    Family(
        "timm-detector", "finished detectors of both engines on a network of timm: as it was fine-tuned",
        {ONLY: _IN_DETECTORS}, ONLY, _DETECTOR_PARTS,
        (r"^backbone\.(bottom_up|net)\.(?!stem\.conv1\.|res[2-5]\.)", r"^sem_seg_head\."), "timm torchvision",
    ),
    *FAMILIES_OF_TIMM,
)  # fmt: skip

BY_NAME = {family.name: family for family in FAMILIES}
