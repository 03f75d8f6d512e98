"""The variants of the study of norms: which are the original again, within rounding, and a training from two."""

import json

import pytest
import torch

from momentum_transfer.backbones.read import load_backbone
from momentum_transfer.backbones.resnet import Architecture
from momentum_transfer.core.errors import InputError
from studies.norm_variants import VARIANTS, main, make_variants, parser
from tests.backbones.test_synthetic_lars import sample
from tests.tools.in_process import run_tool

TINY = Architecture("resnet10", 8)


@pytest.fixture
def original(tmp_path):
    torch.save(sample(TINY)[0], tmp_path / "sgd.pth")
    return tmp_path / "sgd.pth"


def test_under_normrescale_every_variant_is_the_original_within_rounding_and_no_other_is(original, tmp_path):
    made = make_variants(str(original), tmp_path, list(VARIANTS))
    state = load_backbone(original).state
    for name, file in made.items():
        variant = load_backbone(file).state
        learned = {key: tensor for key, tensor in variant.items() if "running" not in key and "batches" not in key}
        apart = max(float((tensor - state[key]).norm() / state[key].norm()) for key, tensor in learned.items())
        same = name in ("original", "x10_constant") or name.endswith("_normrescale")
        assert (apart < 1e-6) == same, name
        if name.endswith("_normrescale"):
            torch.testing.assert_close(variant["bn1.running_var"], state["bn1.running_var"], rtol=1e-6, atol=0)


def test_an_unknown_variant_is_refused_before_anything_is_written(original, tmp_path):
    args = parser().parse_args(["finetune", "--config", "configs/smoke/lowshot_digits.yaml", "--weights", str(original),
                                "--results", str(tmp_path / "out" / "r.jsonl"), "--variants", "x11"])  # fmt: skip
    with pytest.raises(InputError, match=r"expected variants of original, x3, .* found 'x11'"):
        main(args)
    assert not (tmp_path / "out").exists()


def test_variants_are_fine_tuned_by_the_same_seeds_under_their_own_names(original, tmp_path):
    words = ["finetune", "--config", "configs/smoke/lowshot_digits.yaml", "--weights", original, "--results",
             tmp_path / "r.jsonl", "--variants", "original", "x10_normrescale", "--trials", 1,
             "OUTPUT_DIR", tmp_path / "o", "FINETUNE.PRESET", "m2", "FINETUNE.LEARNING_RATES", "[1.6]",
             "FINETUNE.EPOCHS", 0.5]  # fmt: skip
    done = run_tool("studies/norm_variants", *words)
    assert done.returncode == 0, done.stderr
    records = [json.loads(line) for line in (tmp_path / "r.jsonl").read_text().splitlines()]
    found = {(r["checkpoint"]["name"], r["metric"]): (r["seed"], r["trial"]) for r in records}
    assert found == {
        (variant, metric): (0, 0) for variant in ("original", "x10_normrescale") for metric in ("top1", "top5")
    }
