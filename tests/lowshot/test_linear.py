from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from momentum_transfer.backbones.resnet import Architecture, build_resnet
from momentum_transfer.core.errors import InputError
from momentum_transfer.images.views import eval_transform
from momentum_transfer.lowshot import classifier, linear
from momentum_transfer.lowshot.classifier import Setup, accuracy
from momentum_transfer.lowshot.features.extract import StageFeatures
from momentum_transfer.lowshot.features.feature_set import FeatureSet
from momentum_transfer.lowshot.labelled_data import LabelledData, Stream
from momentum_transfer.lowshot.presets import LINEAR, LinearPreset, Schedule
from tests.lowshot.toy_data import bright_or_dark

CPU = torch.device("cpu")


def clusters(seed, count, classes=4, dim=8):
    centres = np.random.default_rng(99).standard_normal((classes, dim))
    generator = np.random.default_rng(seed)
    labels = np.arange(count) % classes
    features = centres[labels] + 0.5 * generator.standard_normal((count, dim))
    return FeatureSet(features.astype(np.float32), labels, f"set {seed}", "0" * 64)


TRAIN, TEST = clusters(1, 80), clusters(2, 60)
SOURCE = linear.from_cache(TRAIN, TEST, 16)
SHORT = LinearPreset(Schedule(4, "step", (0.5, 0.75)), (0.5,), batch_size=16)
ROWS = np.arange(80)


def setup(folder, rows=ROWS, batch=16):
    return Setup(rows, batch, 0, folder, CPU)


def test_presets_are_those_of_the_papers():
    assert LINEAR["m2"] == LinearPreset(Schedule(80), (0.2,), normalized=True)
    assert LINEAR["rcf-sgd"] == LinearPreset(Schedule(100, "step", (0.6, 0.8)), (30.0,))
    assert LINEAR["rcf-lars"] == LinearPreset(Schedule(80), (0.8,), 1024, nesterov=True)
    assert LINEAR["eman"] == LinearPreset(Schedule(50, "step", (0.6, 0.8)), (15.0, 30.0, 60.0))


def test_training_equals_plain_sgd_written_out(tmp_path):
    """The loop, the schedule and the scaling of the rate against a few lines of torch."""
    found = linear._train(SOURCE, SHORT, (0.5,), setup(tmp_path, batch=8))
    head = linear._Heads(1, 8, 4, False, 0).heads[0]
    optimizer = torch.optim.SGD(head.parameters(), lr=0.25, momentum=0.9)
    total = 40
    for step, places in enumerate(Stream(ROWS, 8, total, 0)):
        optimizer.param_groups[0]["lr"] = 0.25 * (1 if step < 20 else 0.1 if step < 30 else 0.01)
        rows = [row for _, row in places]
        optimizer.zero_grad()
        cross_entropy(head(torch.from_numpy(TRAIN.features[rows])), torch.from_numpy(TRAIN.labels[rows])).backward()
        optimizer.step()
    assert torch.allclose(found.heads[0].weight, head.weight, atol=1e-6)


def test_heads_trained_side_by_side_equal_heads_trained_alone(tmp_path):
    together = linear._train(SOURCE, SHORT, (0.1, 2.0), setup(tmp_path / "both"))
    for index, rate in enumerate((0.1, 2.0)):
        alone = linear._train(SOURCE, SHORT, (rate,), setup(tmp_path / str(rate)))
        assert torch.allclose(together.heads[index].weight, alone.heads[0].weight, atol=1e-6)


def test_search_takes_the_rate_that_learns(tmp_path):
    preset = LinearPreset(Schedule(5), (1e-9, 1.0), batch_size=16)
    found = linear.evaluate_linear(SOURCE, preset, setup(tmp_path))
    assert found.learning_rate == 1.0
    assert found.top1 > 0.9


def test_search_without_two_images_of_a_class_is_refused(tmp_path):
    preset = LinearPreset(Schedule(5), (0.1, 1.0), batch_size=4)
    with pytest.raises(InputError, match="the learning rate cannot be searched"):
        linear.evaluate_linear(SOURCE, preset, setup(tmp_path, np.arange(4), 4))


def watched(source):
    """The source, and what was asked of it in order: ("train" or "held", rows), ("test", None)."""
    asked = []

    def note(kind, found, rows=None):
        asked.append((kind, rows))
        return found

    return replace(
        source,
        training=lambda stream: note("train", source.training(stream), stream.rows),
        held_out=lambda rows: note("held", source.held_out(rows), rows),
        testing=lambda: note("test", source.testing()),
    ), asked


def test_search_sees_held_out_labelled_images_and_never_the_test_set(tmp_path):
    source, asked = watched(SOURCE)
    linear.evaluate_linear(source, replace(SHORT, learning_rates=(0.01, 0.5)), setup(tmp_path, ROWS[::2]))
    assert [kind for kind, _ in asked] == ["train", "held", "train", "test"]
    (_, fitted), (_, held), (_, final), _ = asked
    assert not set(fitted) & set(held)
    assert sorted([*fitted, *held]) == sorted(final) == ROWS[::2].tolist()


def test_run_follows_the_preset_and_scales_the_rate_with_the_batch(tmp_path, monkeypatch):
    runs = []
    monkeypatch.setattr(linear, "fit", lambda run, *_: runs.append(run))
    for preset in (LINEAR["rcf-lars"], LINEAR["m2"]):
        linear.evaluate_linear(SOURCE, preset, setup(tmp_path))
    assert [run.groups[0]["lr"] for run in runs] == pytest.approx([0.8 * 16 / 1024, 0.2 * 16 / 256])
    assert [run.nesterov for run in runs] == [True, False]
    assert [run.weight_decay for run in runs] == [0, 0]
    assert [run.total for run in runs] == [80 * 80 // 16] * 2


def test_classifiers_are_scored_in_evaluation_mode(tmp_path, monkeypatch):
    modes = []
    monkeypatch.setattr(linear, "accuracy", lambda heads, *_: modes.append(heads.training) or accuracy(heads, *_))
    linear.evaluate_linear(SOURCE, replace(SHORT, normalized=True), setup(tmp_path))
    assert modes == [False]


def test_normalised_logits_have_a_batch_norm_and_no_other_preset_has():
    heads = linear._Heads(1, 8, 4, True, 0)
    assert isinstance(heads.heads[0][1], torch.nn.BatchNorm1d)
    out = heads(torch.from_numpy(TRAIN.features))[0]
    assert torch.allclose(out.mean(0), torch.zeros(4), atol=1e-5)


def test_diverging_loss_is_an_error_that_names_the_step(tmp_path):
    preset = LinearPreset(Schedule(5), (1e38,), batch_size=16)
    with pytest.raises(InputError, match=r"the loss is (nan|inf) at step \d+; lower the learning rate"):
        linear.evaluate_linear(SOURCE, preset, setup(tmp_path))


def image_source(network):
    view = eval_transform("digits", 16)
    data = LabelledData(bright_or_dark(24, 0), bright_or_dark(16, 1), view, view)
    return linear.from_images(data, network, network.backbone.num_features, 8)


def test_classifier_on_a_frozen_backbone_learns_and_leaves_it_bit_equal(tmp_path):
    torch.manual_seed(0)
    network = StageFeatures(build_resnet(Architecture("resnet10", 8, "small")))
    before = {name: tensor.clone() for name, tensor in network.backbone.state_dict().items()}
    preset = LinearPreset(Schedule(10), (1.0,), batch_size=8)
    found = linear.evaluate_linear(image_source(network), preset, setup(tmp_path, np.arange(24), 8))
    assert found.top1 > 0.8
    linear.check_frozen(network.backbone, before)


@pytest.mark.parametrize("name", ["layer1.0.conv1.weight", "bn1.running_mean"])
def test_frozen_check_fails_when_a_tensor_moves(name):
    backbone = build_resnet(Architecture("resnet10", 8))
    before = {key: tensor.clone() for key, tensor in backbone.state_dict().items()}
    backbone.state_dict()[name].view(-1)[0] += 1e-6
    with pytest.raises(InputError, match=f"the frozen backbone has changed during linear evaluation: {name}"):
        linear.check_frozen(backbone, before)


def test_accuracy_of_several_heads_equals_counting(tmp_path):
    heads = linear._Heads(3, 8, 4, False, 5)
    found, hits = accuracy(heads, SOURCE.testing(), CPU)
    logits = heads(torch.from_numpy(TEST.features))
    expected = (logits.argmax(-1) == torch.from_numpy(TEST.labels)).float().mean(1)
    assert torch.allclose(found["top1"], expected)
    assert np.allclose(hits["top1"].mean(1), expected)
    assert torch.equal(found["top5"], torch.ones(3))


def test_simsiams_preset_trains_by_lars_at_its_own_rate(tmp_path):
    preset = LINEAR["simsiam"]
    assert (preset.schedule.epochs, preset.schedule.shape, preset.batch_size) == (90, "cosine", 4096)
    assert preset.learning_rates == (pytest.approx(0.02 * 4096 / 256),)
    weight = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
    run = classifier.Run({}, [{"params": [weight], "lr": 0.5}], preset.schedule, 10, tmp_path, optimizer_name="lars")
    run.set_rates(0)
    weight.grad = torch.tensor([0.0, 2.0])
    run.optimizer.step()
    # |w| = 5, |g| = 2: the trust ratio .001 x 5/2 scales the step
    torch.testing.assert_close(weight.detach(), torch.tensor([3.0, 4.0 - 0.5 * 0.001 * 2.5 * 2.0]))
