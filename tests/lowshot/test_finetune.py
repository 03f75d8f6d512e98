import os
import signal
from dataclasses import replace

import numpy as np
import pytest
import torch

from momentum_transfer.backbones.resnet import Architecture, build_resnet
from momentum_transfer.core import distributed
from momentum_transfer.core.checkpoints import load
from momentum_transfer.core.command import Stopped
from momentum_transfer.images.views import eval_transform
from momentum_transfer.lowshot import finetune
from momentum_transfer.lowshot.classifier import Classifier, Run, Setup, accuracy
from momentum_transfer.lowshot.finetune import evaluate_finetune, recompute_statistics
from momentum_transfer.lowshot.labelled_data import LabelledData
from momentum_transfer.lowshot.presets import FINETUNE, FinetunePreset, Schedule
from tests.lowshot.toy_data import bright_or_dark
from tests.two_processes import in_two_processes

CPU = torch.device("cpu")


VIEW = eval_transform("digits", 16)
DATA = LabelledData(bright_or_dark(32, 0), bright_or_dark(20, 1), VIEW, VIEW)


def build():
    torch.manual_seed(0)
    return build_resnet(Architecture("resnet10", 4, "small"))


def setup(folder, rows=32, batch=8):
    return Setup(np.arange(rows), batch, 0, folder, CPU)


def test_presets_are_those_of_the_papers():
    m2, eman = FINETUNE["m2"], FINETUNE["eman"]
    assert [m2.schedule(0.01), m2.schedule(0.1)] == [Schedule(20), Schedule(15)]
    assert (m2.batch_size, m2.learning_rates, m2.rate_of_head(0.08, 0.1)) == (1024, (0.08,), 0.08)
    assert eman.schedule(0.01) == eman.schedule(0.1) == Schedule(50, "step", (0.6, 0.8))
    assert (eman.batch_size, eman.learning_rates) == (256, (1e-4, 1e-3, 1e-2))
    assert [eman.rate_of_head(1e-3, fraction) for fraction in (0.01, 0.1)] == [1.0, 0.1]
    assert (eman.weight_decay, eman.nesterov, eman.recompute) == (1e-4, False, False)
    assert (m2.weight_decay, m2.nesterov, m2.recompute) == (0.0, True, True)


def test_supervised_row_is_trained_at_supervised_rates():
    """Rate .1 at batch 256 for weights and classifier alike, times .1 after 30 and 60 of 90 epochs."""
    preset = FINETUNE["supervised"]
    assert (preset.learning_rates, preset.batch_size, preset.rate_of_head(0.1, 1.0)) == ((0.1,), 256, 0.1)
    assert (preset.weight_decay, preset.nesterov, preset.recompute) == (1e-4, False, False)
    schedule = preset.schedule(1.0)
    assert [part * schedule.epochs for part in schedule.milestones] == pytest.approx([30, 60])
    assert (schedule.epochs, schedule.shape, schedule.warmup) == (90, "step", 0)


def test_finetuning_learns_and_takes_the_rate_that_does(tmp_path):
    preset = FinetunePreset((8, 8), (1e-9, 0.05), (1e-9, 0.05), batch_size=8)
    found = evaluate_finetune(DATA, build, 0.1, preset, setup(tmp_path))
    assert found.top1 > 0.8
    assert found.top5 == 1.0
    assert (tmp_path / "search_0.05").is_dir()


def test_search_sees_held_out_labelled_images_and_never_the_test_set(tmp_path, monkeypatch):
    asked = []

    class Watched(LabelledData):
        def training(self, stream):
            asked.append(("train", set(stream.rows)))
            return super().training(stream)

        def held_out(self, rows, batch):
            asked.append(("held", set(rows)))
            return super().held_out(rows, batch)

        def testing(self, batch):
            asked.append(("test", set()))
            return super().testing(batch)

    data, rows = Watched(DATA.train, DATA.test, VIEW, VIEW), np.arange(0, 32, 2) + np.arange(16) % 2
    monkeypatch.setattr(finetune, "recompute_statistics", lambda model, images, count: list(images))
    preset = FinetunePreset((1, 1), (0.01, 0.02), (0.01, 0.01), batch_size=8, recompute=True)
    evaluate_finetune(data, build, 0.1, preset, replace(setup(tmp_path), rows=rows))
    # a rate is fitted, its statistics are recomputed on the same images, then it is scored
    assert [kind for kind, _ in asked] == ["train", "train", "held"] * 2 + ["train", "train", "test"]
    fitted, held = asked[0][1], asked[2][1]
    assert all(asked[index][1] == fitted for index in (0, 1, 3, 4))
    assert not fitted & held
    assert fitted | held == asked[6][1] == asked[7][1] == set(rows)


@pytest.mark.parametrize("recompute", [True, False])
def test_statistics_are_recomputed_where_the_preset_asks_and_the_network_scored_in_evaluation_mode(
    tmp_path, monkeypatch, recompute
):
    events = []
    fit, compute = finetune.fit, finetune.recompute_statistics
    monkeypatch.setattr(finetune, "fit", lambda *a: (fit(*a), events.append("fitted")))
    monkeypatch.setattr(finetune, "recompute_statistics", lambda *a: (compute(*a), events.append(f"{a[2]} batches")))
    monkeypatch.setattr(
        finetune, "accuracy", lambda model, *_: events.append(f"training: {model.training}") or accuracy(model, *_)
    )
    preset = FinetunePreset((2, 2), (0.01,), None, batch_size=8, recompute=recompute)
    evaluate_finetune(DATA, build, 0.1, preset, setup(tmp_path))
    assert events == ["fitted", *["4 batches"] * recompute, "training: False"]


def test_run_follows_the_preset_and_scales_both_rates_with_the_batch(tmp_path, monkeypatch):
    runs = []
    monkeypatch.setattr(finetune, "fit", lambda run, *_: runs.append(run))
    for fraction in (0.01, 0.1):
        preset = replace(FINETUNE["eman"], learning_rates=(1e-2,))
        evaluate_finetune(DATA, build, fraction, preset, setup(tmp_path, batch=16))
    evaluate_finetune(DATA, build, 0.01, FINETUNE["m2"], setup(tmp_path, batch=16))
    rates = [[group["lr"] for group in run.groups] for run in runs]
    eman, m2 = 16 / 256, 16 / 1024
    assert rates == [pytest.approx([1e-2 * eman, 1.0 * eman]), pytest.approx([1e-2 * eman, 0.1 * eman]),
                     pytest.approx([0.08 * m2, 0.08 * m2])]  # fmt: skip
    assert [(run.nesterov, run.weight_decay) for run in runs] == [(False, 1e-4), (False, 1e-4), (True, 0.0)]
    assert [run.total for run in runs] == [100, 100, 40]


def test_backbone_and_head_move_with_their_own_rates(tmp_path):
    frozen = FinetunePreset((1, 1), (0.0,), (0.0, 1.0), batch_size=8)
    before = build().state_dict()
    evaluate_finetune(DATA, build, 0.1, frozen, setup(tmp_path, 16))
    state = torch.load(next((tmp_path / "final").glob("step_*.pt")), weights_only=True)["modules"]["model"]
    assert torch.equal(state["backbone.conv1.weight"], before["conv1.weight"])
    assert not torch.equal(state["fc.weight"], Classifier(build(), 2, 0).fc.weight)


def test_statistics_are_those_of_the_given_images():
    torch.manual_seed(1)
    model = Classifier(build(), 2, 0)
    images = torch.randn(12, 3, 16, 16)
    recompute_statistics(model, iter([images[:6], images[6:]]), 2)
    with torch.no_grad():
        maps = model.backbone.conv1(images)
    assert torch.allclose(model.backbone.bn1.running_mean, maps.mean((0, 2, 3)), atol=1e-5)
    assert torch.allclose(model.backbone.bn1.running_var, maps.var((0, 2, 3), unbiased=False), rtol=2e-3)
    assert not any(module.training for module in model.modules())


def _recomputed(batches):
    """BN tensors after precise BN over this process's batches; over all of them where there is one process."""
    count = distributed.world_size()
    model = Classifier(build(), 2, 0)
    recompute_statistics(model, iter(batches[distributed.rank() :: count]), len(batches) // count)
    return {name: buffer.numpy() for name, buffer in model.named_buffers() if "running" in name}


def test_statistics_of_two_processes_are_those_of_one_over_all_batches():
    batches = [torch.randn(6, 3, 16, 16, generator=torch.Generator().manual_seed(seed)) + seed for seed in range(4)]
    alone = _recomputed(batches)
    for found in in_two_processes(_recomputed, batches):
        assert all(np.allclose(found[name], alone[name], rtol=1e-5, atol=1e-6) for name in alone)


def _finetuned(folder):
    preset = FinetunePreset((2, 2), (0.05,), (0.05, 0.05), batch_size=8)
    found = evaluate_finetune(DATA, build, 0.1, preset, setup(folder))
    state = torch.load(next((folder / "final").glob("step_*.pt")), weights_only=True)["modules"]["model"]
    return found.top1, state["fc.weight"].numpy(), found.hits["top1"]


def test_two_processes_agree_on_the_network_and_its_score(tmp_path):
    """Each normalises with its own half of a batch, as per-GPU BN does, so the score is not exactly one process's."""
    (top1, weight, hits), (other_top1, other_weight, other_hits) = in_two_processes(_finetuned, tmp_path)
    assert top1 == other_top1 > 0.5
    assert np.array_equal(weight, other_weight)
    assert np.array_equal(hits, other_hits)
    assert len(hits) == len(DATA.test)
    assert hits.mean() == pytest.approx(top1)


def _hits_in_order(total):
    """Of images that are right where their number is divisible by 3; this process has every second one."""
    own = torch.arange(total)[distributed.rank() :: distributed.world_size()]
    logits = torch.stack([own % 3 == 0, own % 3 != 0], dim=1).float()
    batches = zip(logits.split(2), torch.zeros_like(own).split(2), strict=True)
    return accuracy(lambda part: part, batches, CPU)[1]["top1"]


def test_hits_that_processes_had_in_turn_come_back_in_the_test_sets_order():
    for found in in_two_processes(_hits_in_order, 7):
        assert np.array_equal(found, np.arange(7) % 3 == 0)


def _stopped_at(step, monkeypatch):
    """Sends SIGTERM to this process at the end of that step of a classifier's training."""
    original = Run.set_rates

    def set_rates(self, number):
        original(self, number)
        if number == step:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(Run, "set_rates", set_rates)


@pytest.mark.parametrize(
    ("part", "trained"),
    [
        ("frozen", lambda name: False),
        ("last-1", lambda name: name.startswith("layer4")),
        ("norms", lambda name: "bn" in name or "downsample.1" in name),
    ],
)
def test_the_part_that_is_trained_moves_alone_and_a_killed_run_goes_on_bit_for_bit(
    part, trained, tmp_path, monkeypatch
):
    preset = FinetunePreset((2, 2), (0.05,), (0.05, 0.05), batch_size=8)
    whole = finetune._train(DATA, build, 0.1, preset, 0.05, setup(tmp_path / "whole"), part=part)
    given = build().state_dict()
    moved = {name for name, value in whole.backbone.state_dict().items() if not torch.equal(value, given[name])}
    assert moved == {name for name in given if trained(name)}
    _stopped_at(3, monkeypatch)
    with pytest.raises(Stopped):
        finetune._train(DATA, build, 0.1, preset, 0.05, setup(tmp_path / "parts"), part=part)
    monkeypatch.undo()
    (file,) = (tmp_path / "parts").glob("step_*.pt")
    held = load(file)["modules"]["model"]
    assert {name for name in held if name.startswith("backbone.")} == {f"backbone.{name}" for name in moved}
    parts = finetune._train(DATA, build, 0.1, preset, 0.05, setup(tmp_path / "parts"), part=part)
    assert all(torch.equal(value, parts.state_dict()[name]) for name, value in whole.state_dict().items())
