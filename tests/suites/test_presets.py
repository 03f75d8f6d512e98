"""Each checkpoint is evaluated with its paper's settings: by method, by family, or as asked for."""

import pytest
import torch
import yaml

from momentum_transfer.backbones.families import BY_NAME
from momentum_transfer.backbones.resnet import Architecture, build_resnet
from momentum_transfer.core.errors import InputError
from momentum_transfer.core.shipped import CONFIGS
from momentum_transfer.suites.planning import plan
from momentum_transfer.suites.suite import OF_FAMILY, load_suite, preset_of, read_choices, read_presets
from momentum_transfer.transfer.config import load

FULL = CONFIGS / "suites" / "full.yaml"
COMMAND = "tools/lowshot.py knn --config {made_with} --weights {weights} --results {results} {more}"
PRESETS = {
    "m2": {"made_with": "configs/lowshot/momentum2_linear.yaml", "more": ""},
    "eman-byol": {"made_with": "configs/lowshot/eman_table2_linear_100.yaml", "more": "LINEAR.TRIALS 2"},
}


def own_checkpoint(folder, method, norm="BN", optimizer="sgd"):
    """A file of this project's checkpoint format, as pretraining leaves it, called as its folder."""
    folder.mkdir()
    state = build_resnet(Architecture("resnet10", 4)).state_dict()
    model = {f"{who}.backbone.{name}": tensor for who in ("student", "teacher") for name, tensor in state.items()}
    config = yaml.safe_dump({"SOLVER": {"OPTIMIZER": optimizer}, "NORM": {"TEACHER": norm}})
    path = folder / f"{folder.name}.pt"
    torch.save({"format": "momentum-transfer/1", "method": method, "step": 1, "config": config, "model": model}, path)
    return str(path)


def suite(folder):
    content = {"name": "small", "presets": PRESETS, "tasks": [{"name": "knn", "command": COMMAND}]}
    path = folder / "suite.yaml"
    path.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    return load_suite(path)


@pytest.mark.parametrize(
    ("metadata", "preset"),
    [
        ({"method": "momentum2", "optimizer": "lars"}, "m2"),
        ({"method": "byol", "norm_teacher": "EMAN", "optimizer": "lars"}, "eman-byol"),
        ({"method": "moco", "norm_teacher": "EMAN", "optimizer": "sgd"}, "eman-moco"),
        ({"method": "byol", "norm_teacher": "SyncBN", "optimizer": "lars"}, "rcf-lars"),
        ({"method": "byol", "norm_teacher": "SyncBN", "optimizer": "sgd"}, "rcf-sgd"),
        ({"method": "moco", "norm_teacher": "MomentumBN", "optimizer": "sgd"}, "rcf-sgd"),
        ({"method": "simsiam", "optimizer": "sgd"}, "simsiam"),
        ({"method": "supervised", "optimizer": "sgd"}, ""),
    ],
)
def test_method_of_the_metadata_tells_the_paper(metadata, preset):
    assert preset_of("momentum2", metadata)[0] == preset  # whatever the layout


def test_family_tells_the_paper_where_there_is_no_metadata():
    assert {family: preset_of(family, {})[0] for family in OF_FAMILY} == OF_FAMILY
    assert preset_of("swav", {})[0] == ""
    assert set(OF_FAMILY) <= set(BY_NAME)


def test_full_suite_has_the_presets_that_can_be_told():
    methods = [{"method": m, "norm_teacher": n, "optimizer": o} for m in ("momentum2", "byol", "moco")
               for n in ("BN", "EMAN") for o in ("sgd", "lars")]  # fmt: skip
    presets = {preset_of("", metadata)[0] for metadata in methods} | set(OF_FAMILY.values())
    assert presets == set(load_suite(FULL).presets)


@pytest.mark.parametrize(
    ("method", "norm", "optimizer", "linear", "finetune", "rates"),
    [
        ("momentum2", "MomentumBN", "sgd", "momentum2_linear", "momentum2_table12_1", False),
        ("byol", "EMAN", "lars", "eman_table2_linear_100", "eman_table2_finetune_1", True),
        ("moco", "EMAN", "sgd", "eman_table2_linear_100", "eman_table2_finetune_1", False),
        ("byol", "SyncBN", "lars", "rcf_fig2_imagenet_lars", "eman_table2_finetune_1", False),
        ("moco", "ShuffleBN", "sgd", "rcf_fig2_imagenet_sgd", "eman_table2_finetune_1", False),
        ("simsiam", "", "sgd", "simsiam_linear", "momentum2_table12_1", False),
        ("supervised", "", "sgd", "momentum2_linear", "momentum2_table12_1", False),
    ],
)
def test_full_suite_evaluates_a_checkpoint_with_the_settings_of_its_paper(
    tmp_path, method, norm, optimizer, linear, finetune, rates
):
    weights = own_checkpoint(tmp_path / "run", method, norm, optimizer)
    jobs = {job.task.name: job.command for job in plan(load_suite(FULL), [weights], tmp_path / "out")}
    assert f"configs/lowshot/{linear}.yaml" in jobs["linear"]
    assert f"configs/lowshot/{finetune}.yaml" in jobs["finetune_1"]
    assert (jobs["linear"][-2:] == ("LINEAR.LEARNING_RATES", "[0.2,0.4,0.8]")) == rates
    assert (jobs["linear_1"][-1] == "[0.2,0.4,0.8]") == (optimizer == "lars")


def test_a_preset_can_be_asked_for_by_checkpoint_or_for_all(tmp_path):
    paths = [own_checkpoint(tmp_path / name, "momentum2") for name in ("one", "other")]

    def configs(*choice):
        return [job.command[3].rpartition("/")[2] for job in plan(suite(tmp_path), paths, tmp_path, choice)]

    m2, eman = "momentum2_linear.yaml", "eman_table2_linear_100.yaml"
    assert configs() == [m2, m2]
    assert configs("eman-byol") == [eman, eman]
    assert configs("other=eman-byol") == [m2, eman]
    assert configs("eman-byol", "one=m2") == [m2, eman]


def test_another_preset_is_another_job(tmp_path):
    weights = own_checkpoint(tmp_path / "run", "momentum2")
    jobs = [plan(suite(tmp_path), [weights], tmp_path, [name])[0] for name in PRESETS]
    assert jobs[0].key != jobs[1].key
    assert jobs[1].command[-2:] == ("LINEAR.TRIALS", "2")
    assert jobs[0].command[-2] == "--results"


def test_what_cannot_be_read_gets_the_first_preset_and_its_task_tells(tmp_path):
    (tmp_path / "broken.pt").write_text("no checkpoint", encoding="utf-8")
    (job,) = plan(suite(tmp_path), [str(tmp_path / "broken.pt")], tmp_path / "out")
    assert job.command[3].endswith("momentum2_linear.yaml")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([], r"presets: expected a mapping, found \[\]"),
        ({"m2": {}}, "presets: expected every value as a mapping of at least one"),
        ({"m2": {"a": "x"}, "rcf": {"b": "y"}}, "expected the places a in every preset, found b in rcf"),
        ({"m2": {"a": 3}}, r"expected every value as text, found {'m2': {'a': 3}}"),
        ({"m2": {"weights": "x"}}, r"expected places .* other than .*, found 'weights'"),
    ],
)
def test_presets_that_mean_nothing_are_refused(content, message):
    with pytest.raises(InputError, match=message):
        read_presets(content, "suite.yaml", ("weights", "results"))


@pytest.mark.parametrize(
    ("word", "presets", "message"),
    [
        ("m3", PRESETS, "expected --preset of m2, eman-byol, found 'm3'"),
        ("mine=m2", PRESETS, "expected --preset CHECKPOINT=m2 of yours, found 'mine'"),
        ("m2", {}, "expected no --preset for a suite without presets"),
    ],
)
def test_choices_that_mean_nothing_are_refused(word, presets, message):
    with pytest.raises(InputError, match=message):
        read_choices([word], presets, ["yours"])


def test_an_variant_names_the_preset_of_its_checkpoints_and_no_setting_is_made_of_it(tmp_path):
    content = {"name": "swept", "presets": PRESETS, "tasks": [{"name": "knn", "command": COMMAND}]}
    config = "configs/smoke/momentum2_digits.yaml"
    content["pretrain"] = {"config": config, "variants": {"a": {"preset": "eman-byol"}, "b": {"SOLVER.STEPS": 2}}}
    path = tmp_path / "suite.yaml"
    path.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    commands = {job.title: job.command for job in plan(load_suite(path), [], tmp_path)}
    assert commands["a_seed0: knn"][-2:] == ("LINEAR.TRIALS", "2")
    assert "LINEAR.TRIALS" not in commands["b_seed0: knn"]  # the suite's first preset
    assert not {"preset", "eman-byol"} & set(commands["a_seed0: pretrain"])
    content["pretrain"]["variants"]["a"]["preset"] = "m3"
    path.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    with pytest.raises(InputError, match=r"a variant.s preset among presets .m2, eman-byol., found 'm3'"):
        load_suite(path)


def test_table_7_of_rcf_fine_tunes_each_depth_as_itself_on_both_sets_of_voc(tmp_path):
    jobs = plan(load_suite(CONFIGS / "suites" / "rcf_table7.yaml"), [], tmp_path)
    found = {(job.weights, job.task.name): job.command for job in jobs if job.task.name.startswith("voc")}
    assert len(found) == 2 * 3 * 2  # depths, methods, sets
    for (weights, task), command in found.items():
        depth = int(weights.partition("_")[0].removeprefix("r"))
        overrides = command[command.index("--resume") + 1 :]
        cfg = load(f"transfer/{task}", overrides)
        assert (depth, task) == (cfg.MODEL.RESNETS.DEPTH, cfg.PROTOCOL)
        assert (64 if depth == 18 else 256) == cfg.MODEL.RESNETS.RES2_OUT_CHANNELS
        assert depth in (18, 101)
