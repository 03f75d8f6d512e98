"""The table of architectures: a row is scored by every group, a refusal is a reason and not an end."""

import json

import pytest
import timm

from benchmarks.architectures import NETWORKS, row


@pytest.mark.slow
def test_a_row_has_its_scores_seconds_and_reasons():
    found = row("ConvNeXt", "timm:test_convnext?img_size=32", ["probes", "tokens"])
    count = sum(parameter.numel() for parameter in timm.create_model("test_convnext", num_classes=0).parameters())
    assert (found["maps"], found["parameters"]) == ("4 8 16 32", count)
    assert all(0 <= float(found["values"][column]) <= 100 for column in ("kNN", "SVM k=4", "linear"))
    assert found["values"]["kNN cls+patch"] == "refused"
    assert found["refused"].keys() == {"tokens"}
    assert "has no tokens" in found["refused"]["tokens"]
    assert json.loads(json.dumps(found)) == found
    assert len(NETWORKS) >= 12
