import numpy as np
import torch

from lowshot.classifier import Classifier
from lowshot.finetune import evaluate_finetune, recompute_statistics
from lowshot.labelled_data import LabelledData
from lowshot.presets import FINETUNE, FinetunePreset, Schedule
from pretrain import distributed
from pretrain.backbones import Architecture, build_backbone
from pretrain.views import eval_transform
from tests.lowshot.toy_data import bright_or_dark
from tests.lowshot.two_processes import in_two_processes

CPU = torch.device("cpu")


VIEW = eval_transform("digits", 16)
DATA = LabelledData(bright_or_dark(32, 0), bright_or_dark(20, 1), VIEW, VIEW)


def build():
    torch.manual_seed(0)
    return build_backbone(Architecture("resnet10", 4, "small"))


def test_presets_are_those_of_the_papers():
    m2, eman = FINETUNE["m2"], FINETUNE["eman"]
    assert [m2.schedule(0.01), m2.schedule(0.1)] == [Schedule(20), Schedule(15)]
    assert (m2.batch_size, m2.learning_rates, m2.rate_of_head(0.08, 0.1)) == (1024, (0.08,), 0.08)
    assert eman.schedule(0.01) == eman.schedule(0.1) == Schedule(50, "step", (0.6, 0.8))
    assert (eman.batch_size, eman.learning_rates) == (256, (1e-4, 1e-3, 1e-2))
    assert [eman.rate_of_head(1e-3, fraction) for fraction in (0.01, 0.1)] == [1.0, 0.1]


def test_finetuning_learns_and_takes_the_rate_that_does(tmp_path):
    preset = FinetunePreset((8, 8), (1e-9, 0.05), (1e-9, 0.05), batch_size=8)
    found = evaluate_finetune(DATA, build, np.arange(32), 0.1, preset, 0, tmp_path, CPU)
    assert found.top1 > 0.8
    assert found.top5 == 1.0
    assert (tmp_path / "search_0.05").is_dir()


def test_backbone_and_head_move_with_their_own_rates(tmp_path):
    frozen = FinetunePreset((1, 1), (0.0,), (0.0, 1.0), batch_size=8)
    before = build().state_dict()
    evaluate_finetune(DATA, build, np.arange(16), 0.1, frozen, 0, tmp_path, CPU)
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
    world = distributed.world_size()
    model = Classifier(build(), 2, 0)
    recompute_statistics(model, iter(batches[distributed.rank() :: world]), len(batches) // world)
    return {name: buffer.numpy() for name, buffer in model.named_buffers() if "running" in name}


def test_statistics_of_two_processes_are_those_of_one_over_all_batches():
    batches = [torch.randn(6, 3, 16, 16, generator=torch.Generator().manual_seed(seed)) + seed for seed in range(4)]
    alone = _recomputed(batches)
    for found in in_two_processes(6, _recomputed, batches):
        assert all(np.allclose(found[name], alone[name], rtol=1e-5, atol=1e-6) for name in alone)


def _finetuned(folder):
    preset = FinetunePreset((2, 2), (0.05,), (0.05, 0.05), batch_size=8)
    found = evaluate_finetune(DATA, build, np.arange(32), 0.1, preset, 0, folder, CPU)
    state = torch.load(next((folder / "final").glob("step_*.pt")), weights_only=True)["modules"]["model"]
    return found.top1, state["fc.weight"].numpy()


def test_two_processes_agree_on_the_network_and_its_score(tmp_path):
    """Each normalises with its own half of a batch, as per-GPU BN does, so the score is not exactly one process's."""
    (top1, weight), (other_top1, other_weight) = in_two_processes(7, _finetuned, tmp_path)
    assert top1 == other_top1 > 0.5
    assert np.array_equal(weight, other_weight)
