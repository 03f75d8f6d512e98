"""Two gloo processes with torchrun's environment against one process that does both their parts."""

import itertools
import json

import numpy as np
import pytest
import torch

from momentum_transfer.core import records as results
from momentum_transfer.core.samplers import RepeatedPasses
from momentum_transfer.transfer.data.detection_datasets import get_dataset
from momentum_transfer.transfer.torchvision_engine.data import annotated_images
from momentum_transfer.transfer.torchvision_engine.detection_run import mapper_of
from momentum_transfer.transfer.torchvision_engine.detectors import export_state
from momentum_transfer.transfer.torchvision_engine.engine import TorchvisionEngine
from momentum_transfer.transfer.torchvision_engine.models import build_detector
from tests.transfer.torchvision_engine.test_semantic import labels_config, write_labels
from tests.transfer.torchvision_engine.tiny import predict_tiny, shapes_config, train_tiny, write_shapes
from tests.transfer.torchvision_engine.two_processes import FROZEN, RESUMED, STEPS, main
from tests.two_processes import as_torchrun


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where both processes left their trainings."""
    out = tmp_path_factory.mktemp("two")
    write_shapes(out / "data")
    write_labels(out / "labels/data")
    as_torchrun(main, out)
    return out


def model(file):
    return torch.load(file, weights_only=True)["model"]


@pytest.mark.parametrize("name", ["mask_rcnn", "retinanet"])
def test_each_process_trains_on_its_share_and_gradients_are_averaged(name, folder):
    cfg = shapes_config(name, folder, *RESUMED)
    pictures, mapper = annotated_images(get_dataset(cfg.DATASETS.TRAIN[0])), mapper_of(cfg, train=True)
    order = [index for _, index in itertools.islice(RepeatedPasses(torch.ones(len(pictures)), 3).places(0), 8)]
    detectors, generators = [], []
    for process in range(2):
        torch.manual_seed(3)
        detectors.append(build_detector(cfg))
        generators.append(torch.Generator().manual_seed(3 + process).get_state())
    parameters = [dict(detector.named_parameters()) for detector in detectors]
    velocity: dict[str, torch.Tensor] = {}
    for step in range(2):
        for process, detector in enumerate(detectors):
            places = [place for place in range(4 * step, 4 * step + 4) if place % 2 == process]
            samples = [mapper.train(pictures[order[place]], np.random.default_rng((3, place))) for place in places]
            torch.set_rng_state(generators[process])
            detector.zero_grad()
            sum(detector(samples).values()).backward()
            generators[process] = torch.get_rng_state()
        for key in parameters[0]:
            decay = 0.0 if "bn" in key or "downsample.1" in key or "norm" in key else 1e-4
            gradient = (parameters[0][key].grad + parameters[1][key].grad) / 2 + decay * parameters[0][key].detach()
            velocity[key] = 0.9 * velocity[key] + gradient if key in velocity else gradient
            for own in parameters:
                own[key].data -= 0.01 * velocity[key]
    expected, found = export_state(detectors[0]), model(folder / name / "whole/model_final.pth")
    assert set(found) == set(expected)
    for key, value in expected.items():
        assert torch.allclose(found[key], value, rtol=1e-4, atol=1e-5), key


def test_the_joined_batch_of_both_gives_the_same_network(folder, tmp_path):
    cfg = labels_config("stride16", tmp_path, *STEPS, *FROZEN)
    alone = model(train_tiny(TorchvisionEngine(), cfg, 0, tmp_path / "alone").weights)
    together = model(folder / "joined/model_final.pth")
    for key, value in alone.items():
        torch.testing.assert_close(
            together[key], value, rtol=1e-4, atol=1e-6, msg=lambda text, key=key: f"{key}: {text}"
        )


@pytest.mark.parametrize("name", ["mask_rcnn", "retinanet"])
def test_stopping_one_process_stops_both_and_resuming_equals_uninterrupted_bit_for_bit(name, folder):
    whole, parts = (model(folder / name / part / "model_final.pth") for part in ("whole", "parts"))
    assert all(torch.equal(whole[key], parts[key]) for key in whole)
    state = torch.load(folder / name / "parts/checkpoints/step_0000002.pth", weights_only=True)
    assert not torch.equal(state["random"][0], state["random"][1])


def test_each_image_is_predicted_once_and_each_record_written_once(folder, tmp_path):
    cfg = shapes_config("mask_rcnn", folder, *STEPS, "MODEL.ROI_HEADS.SCORE_THRESH_TEST", "0.0")
    file = next((folder / "scored").glob("results_*.json"))
    together = json.loads(file.read_text())
    alone = predict_tiny(TorchvisionEngine(), cfg, folder / "scored/model_final.pth", tmp_path)[0]
    assert together == json.loads(alone.results.read_text())
    assert {entry["image_id"] for entry in together} == {1, 2, 3, 4}
    assert list((folder / "scored").glob("*.part*")) == []
    records, problems = results.read(folder / "scored/results.jsonl")
    assert problems == []
    keys = [(record["task"], record["metric"]) for record in records]
    assert len(keys) == len(set(keys)) == 24
    assert len((folder / "scored/metrics.jsonl").read_text().splitlines()) == 2  # the first and the last
