import os
import signal

import numpy as np
import pytest
import torch

from momentum_transfer.core import distributed
from momentum_transfer.core.command import Stopped
from momentum_transfer.core.errors import InputError
from momentum_transfer.core.loggers import read
from momentum_transfer.lowshot import linear
from momentum_transfer.lowshot.classifier import Run, Setup, fit
from momentum_transfer.lowshot.features.feature_set import FeatureSet
from momentum_transfer.lowshot.presets import LinearPreset, Schedule
from tests.two_processes import in_two_processes

CPU = torch.device("cpu")


def run(folder, total=6, **options):
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    arguments = {"checkpoint_every": 2, "nesterov": True, "weight_decay": 0.01, **options}
    return model, Run({"model": model}, [{"params": list(model.parameters()), "lr": 0.1}], Schedule(6, "cosine", (), 1),
                      total, folder, **arguments)  # fmt: skip


def batches(start, total=6):
    generator = np.random.default_rng(0)
    data = torch.from_numpy(generator.standard_normal((total, 4, 3)).astype(np.float32))
    return [data[step] for step in range(start, total)]


def loss_of(model):
    return lambda batch: (model(batch).square().sum(), {"norm": 1.0})


def train(folder, **options):
    model, described = run(folder, **options)
    fit(described, batches, loss_of(model), "a test")
    return model.state_dict()


def test_six_steps_equal_a_stop_and_a_resume_bit_for_bit(tmp_path):
    whole = train(tmp_path / "whole")

    def stop(step):
        if step == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Stopped, match="saved after step 3"):
        train(tmp_path / "stopped", after_step=stop)
    resumed = train(tmp_path / "stopped")
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


def test_kill_between_checkpoints_repeats_steps_and_ends_the_same(tmp_path):
    whole = train(tmp_path / "whole")

    def die(step):
        if step == 4:
            raise RuntimeError("power cut")

    with pytest.raises(RuntimeError, match="power cut"):
        train(tmp_path / "killed", after_step=die)
    resumed = train(tmp_path / "killed")
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


def test_finished_run_is_loaded_and_not_trained_again(tmp_path):
    whole = train(tmp_path)
    again = train(tmp_path, metrics=tmp_path)
    assert not (tmp_path / "metrics.jsonl").exists()
    assert all(torch.equal(whole[name], again[name]) for name in whole)


def test_log_sees_every_step_with_its_numbers(tmp_path):
    train(tmp_path, metrics=tmp_path)
    lines = read(tmp_path / "metrics.jsonl")
    assert [line["step"] for line in lines] == list(range(1, 7))
    assert all(set(line) == {"step", "loss", "norm", "lr", "seconds"} for line in lines)
    assert lines[1]["lr"] == pytest.approx(0.1)  # the second step is the first after the warm-up


def test_log_of_a_killed_run_is_cut_where_it_goes_on(tmp_path):
    train(tmp_path / "whole", metrics=tmp_path / "whole")

    def die(step):
        if step == 4:
            raise RuntimeError("power cut")

    with pytest.raises(RuntimeError, match="power cut"):
        train(tmp_path / "killed", after_step=die, metrics=tmp_path / "killed")
    with open(tmp_path / "killed/metrics.jsonl", "a") as stream:
        stream.write('{"step": 5, "loss": 9.0}\n{"step": 6, "lo')
    train(tmp_path / "killed", metrics=tmp_path / "killed")
    whole, resumed = (
        [{**line, "seconds": 0} for line in read(tmp_path / name / "metrics.jsonl")] for name in ("whole", "killed")
    )
    assert resumed == whole


def test_rates_warm_up_then_follow_the_cosine(tmp_path):
    _, described = run(tmp_path)
    rates = []
    for step in range(6):
        described.set_rates(step)
        rates.append(described.optimizer.param_groups[0]["lr"])
    assert rates[0] == pytest.approx(1e-4)
    assert rates[1:] == pytest.approx([0.1 * (1 + np.cos(np.pi * step / 5)) / 2 for step in range(5)])


def test_checkpoint_of_another_run_is_refused(tmp_path):
    train(tmp_path)
    model, described = run(tmp_path, total=7)
    with pytest.raises(InputError, match="belongs to another run"):
        fit(described, batches, loss_of(model), "a test")


def test_another_number_of_processes_is_refused_where_bn_sees_the_images_of_one(tmp_path, monkeypatch):
    for name, layer in (("plain", torch.nn.Identity()), ("bn", torch.nn.BatchNorm1d(2))):
        _, described = run(tmp_path / name)
        described.modules["norm"] = layer
        described.save(3)
        assert described.resume() == 3
    monkeypatch.setattr(distributed, "world_size", lambda: 2)
    with pytest.raises(InputError, match=r"expected 1 process, as .* had, found 2: .* go on with 1, or delete"):
        described.resume()
    described.folder, described.modules["norm"] = tmp_path / "plain", torch.nn.Identity()
    assert described.resume() == 3


def _linear(folder):
    generator = np.random.default_rng(0)
    labels = np.arange(40) % 4
    data = FeatureSet(generator.standard_normal((40, 8)).astype(np.float32), labels, "data", "0" * 64)
    preset = LinearPreset(Schedule(3), (0.5,), batch_size=8)
    heads = linear._train(linear.from_cache(data, data, 8), preset, (0.5,), Setup(np.arange(40), 8, 0, folder, CPU))
    return heads.heads[0].weight.detach().numpy()


def test_two_processes_train_the_classifier_of_one(tmp_path):
    first, second = in_two_processes(_linear, tmp_path / "two")
    assert np.array_equal(first, second)
    assert np.allclose(first, _linear(tmp_path / "one"), atol=1e-6)
