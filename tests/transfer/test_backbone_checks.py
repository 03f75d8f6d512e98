"""What keeps a network of timm from being a detector's backbone, a line for each reason; no numbers are computed."""

import pytest

from momentum_transfer.transfer.backbone_checks import problems
from tests.transfer.test_any_backbone import CONVNEXT, DINOV2, REGNET, VIT, config_of


def found(architecture: str, *words: str) -> list[str]:
    return list(problems(config_of(architecture, *words)))


SQUARE = ("MODEL.BACKBONE.SQUARE", "64", "INPUT.MAX_SIZE_TRAIN", "64", "INPUT.MAX_SIZE_TEST", "64")


@pytest.mark.parametrize(
    ("architecture", "words"),
    [
        (CONVNEXT, ()),
        (REGNET, ("MODEL.BACKBONE.NORM", "FrozenBN")),
        (REGNET, ("TEST.PRECISE_BN.ENABLED", "True")),
        (CONVNEXT, ("TEST.PRECISE_BN.ENABLED", "True", "MODEL.FPN.NORM", "BN")),
        (CONVNEXT, ("TEST.PRECISE_BN.ENABLED", "True", "MODEL.ROI_BOX_HEAD.NORM", "SyncBN")),
        (CONVNEXT, ("TEST.PRECISE_BN.ENABLED", "True", "MODEL.ROI_MASK_HEAD.NORM", "BN")),
        (VIT, ("MODEL.VIT.FORM", "vitdet", "MODEL.VIT.WINDOW", "2")),
        (DINOV2, ()),
        (VIT, SQUARE),
    ],
)
def test_networks_that_can_carry_a_detector(architecture, words):
    assert found(architecture, "mask_rcnn", *words) == []


@pytest.mark.parametrize(
    ("architecture", "words", "said"),
    [
        (CONVNEXT, ("MODEL.BACKBONE.FREEZE_AT", "2"), "FREEZE_AT 0 with timm:convnext"),
        (CONVNEXT, ("MODEL.BACKBONE.NORM", "FrozenBN"), "BatchNorms for MODEL.BACKBONE.NORM FrozenBN, found none"),
        (CONVNEXT, ("TEST.PRECISE_BN.ENABLED", "True"), "a BatchNorm for TEST.PRECISE_BN.ENABLED, found none"),
        (CONVNEXT, ("MODEL.VIT.FORM", "vitdet"), "MODEL.VIT settings with a plain ViT"),
        (CONVNEXT, ("MODEL.VIT.WINDOW", "2"), "MODEL.VIT settings with a plain ViT"),
        (VIT, ("MODEL.VIT.WINDOW", "2"), "MODEL.VIT.FORM vitdet with windows"),
        (VIT, ("MODEL.VIT.RELATIVE_POSITIONS", "True"), "MODEL.VIT.FORM vitdet with windows"),
        (VIT, ("MODEL.FPN.NORM", ""), "MODEL.FPN.NORM for a simple feature pyramid"),
        (VIT, ("MODEL.BACKBONE.SQUARE", "64", "INPUT.MAX_SIZE_TRAIN", "64", "INPUT.MAX_SIZE_TEST", "65"),
         "images within MODEL.BACKBONE.SQUARE 64, found INPUT.MAX_SIZE_… 65"),
        (CONVNEXT, ("MODEL.BACKBONE.SQUARE", "80", "INPUT.MAX_SIZE_TRAIN", "64", "INPUT.MAX_SIZE_TEST", "64"),
         "MODEL.BACKBONE.SQUARE as a multiple of 32, found 80"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_said(architecture, words, said):
    assert any(said in line for line in found(architecture, "mask_rcnn", *words))


@pytest.mark.parametrize("detector", ["retinanet", "fcos"])
def test_dense_detectors_have_norms_of_their_own(detector):
    section = "RETINANET" if detector == "retinanet" else "FCOS"
    precise = ("TEST.PRECISE_BN.ENABLED", "True", "MODEL.ROI_BOX_HEAD.NORM", "BN", "MODEL.FCOS.NORM", "")
    assert any("TEST.PRECISE_BN" in line for line in found(CONVNEXT, detector, *precise))
    assert found(CONVNEXT, detector, *precise, f"MODEL.{section}.NORM", "BN") == []


def test_c4_detectors_want_a_resnet():
    assert any("a ResNet for a C4 detector" in line for line in found(CONVNEXT, "mask_rcnn_c4"))
    assert not any("C4" in line for line in found(CONVNEXT, "mask_rcnn"))
