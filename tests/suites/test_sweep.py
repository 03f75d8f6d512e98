import json
from pathlib import Path

import pytest
import yaml

from momentum_transfer.core.errors import InputError
from momentum_transfer.suites.local import run_local
from momentum_transfer.suites.planning import plan
from momentum_transfer.suites.suite import load_suite
from momentum_transfer.suites.sweep import PlotRequest, read_plots, read_sweep
from momentum_transfer.suites.task import PRETRAIN
from tests.suites.suite_files import write_suite, write_weights

#: A pretraining that writes its overrides to OUTPUT_DIR/run.json; "fail" ends badly.
TRAINER = """
import json, pathlib, sys
words = sys.argv[4:]
settings = dict(zip(words[::2], words[1::2]))
folder = pathlib.Path(settings["OUTPUT_DIR"])
folder.mkdir(parents=True, exist_ok=True)
runs = folder / "run.json"
count = json.loads(runs.read_text())["count"] + 1 if runs.exists() else 1
runs.write_text(json.dumps({**settings, "count": count, "resume": sys.argv[3]}))
sys.exit(3 if settings.get("A.B") == "fail" else 0)
"""


@pytest.fixture
def sweep_suite(tmp_path):
    """``sweep_suite(**pretrain)`` -> a suite whose one task notes the checkpoint it was given."""

    def make(**pretrain) -> Path:
        trainer, config = tmp_path / "trainer.py", tmp_path / "base.yaml"
        trainer.write_text(TRAINER, encoding="utf-8")
        config.write_text("A: 1\n", encoding="utf-8")
        path = write_suite(tmp_path, {"word": "{weights}"})
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        content["pretrain"] = {"config": str(config), "command": f"'{trainer}'", **pretrain}
        path.write_text(yaml.safe_dump(content), encoding="utf-8")
        return path

    return make


def test_every_combination_is_trained_with_every_seed_and_then_evaluated(sweep_suite, tmp_path):
    suite = load_suite(sweep_suite(grid={"A.B": [1, "x"], "C": [True]}, seeds=[0, 3], settings={"D": [1, 2]}))
    jobs = plan(suite, [], tmp_path / "out")
    assert [job.title for job in jobs[:4]] == [
        "1-True_seed0: pretrain", "1-True_seed0: task0", "1-True_seed3: pretrain", "1-True_seed3: task0",
    ]  # fmt: skip
    assert jobs[1].needs == (jobs[0],)
    outcomes = run_local(jobs)
    assert all(outcome.well for outcome in outcomes)
    run = json.loads((tmp_path / "out/pretrained/x-True_seed3/run.json").read_text())
    assert {key: run[key] for key in ("A.B", "C", "D", "SEED")} == {"A.B": "x", "C": "True", "D": "[1, 2]", "SEED": "3"}
    evaluated = (tmp_path / "out/results.jsonl").read_text().split()
    assert evaluated == [str(tmp_path / "out/pretrained" / job.weights) for job in jobs if job.task.name == PRETRAIN]
    assert run_local(plan(suite, [], tmp_path / "out"))[0].status == "done before"
    assert json.loads((tmp_path / "out/pretrained/1-True_seed0/run.json").read_text())["count"] == 1


def test_a_command_may_have_the_seed_of_its_pretraining(sweep_suite, tmp_path):
    path = sweep_suite(variants={"a": {}}, seeds=[5, 7])
    content = yaml.safe_load(path.read_text())
    content["tasks"][0]["command"] += " SEED {seed}"
    path.write_text(yaml.safe_dump(content))
    jobs = [job for job in plan(load_suite(path), ["pixels"], tmp_path / "out") if job.task.name == "task0"]
    assert [job.command[-1] for job in jobs] == ["5", "7", "0"]


def test_a_task_that_reads_another_pretraining_waits_for_it_and_is_repeated_with_it(sweep_suite, tmp_path):
    def planned(setting):
        path = sweep_suite(variants={"a": {}, "z": {"A.B": setting}}, seeds=[5, 7])
        content = yaml.safe_load(path.read_text())
        content["tasks"][0]["command"] += " {folder}/../../pretrained/z_seed5"
        path.write_text(yaml.safe_dump(content))
        return {job.title: job for job in plan(load_suite(path), [], tmp_path / "out")}

    jobs, changed = planned(1), planned(2)
    order = list(jobs)
    for name in ("a_seed5", "a_seed7", "z_seed7"):
        job = jobs[f"{name}: task0"]
        assert [need.title for need in job.needs] == [f"{name}: pretrain", "z_seed5: pretrain"]
        assert order.index("z_seed5: pretrain") < order.index(job.title)
        assert changed[job.title].key != job.key
    assert [need.title for need in jobs["z_seed5: task0"].needs] == ["z_seed5: pretrain"]
    assert changed["a_seed5: pretrain"].key == jobs["a_seed5: pretrain"].key


def test_variants_meet_every_combination_of_the_grid_and_may_have_a_config_of_their_own():
    variants = {"byol": {"config": "byol.yaml", "LR": 0.1}, "moco": {"config": "moco.yaml"}}
    sweep = read_sweep({"variants": variants, "grid": {"DATA.REMOVE": [[], ["blur"]]}, "seeds": [1]}, "suite")
    runs = {run.name: run for run in sweep.runs()}
    assert list(runs) == ["byol-none_seed1", "byol-blur_seed1", "moco-none_seed1", "moco-blur_seed1"]
    run = runs["byol-blur_seed1"]
    assert run.command[1:5] == ("--config", "byol.yaml", "--resume", "LR")
    assert (run.variant, run.settings) == ("byol", {"LR": 0.1, "DATA.REMOVE": ["blur"]})
    assert sweep.keys() == ["DATA.REMOVE", "LR", "SEED"]


def test_checkpoints_on_the_way_are_evaluated_each_under_its_own_name(sweep_suite, tmp_path):
    suite = load_suite(sweep_suite(variants={"a": {}}, exports={"every": 0.5, "last": 1}))
    jobs = plan(suite, [], tmp_path / "out")
    assert [job.title for job in jobs] == ["a_seed0: pretrain", "a_seed0_epoch0.5: task0", "a_seed0_epoch1: task0"]
    assert jobs[0].command[-4:-2] == ("RUN.EXPORT_EVERY", "0.5")
    assert jobs[1].command[2] == str(tmp_path / "out/pretrained/a_seed0/exports/a_seed0_epoch0.5.safetensors")
    suite.write_description(tmp_path)
    runs = json.loads((tmp_path / "suite.json").read_text())["runs"]
    assert {name: run["settings"] for name, run in runs.items()} == {
        "a_seed0": {}, "a_seed0_epoch0.5": {"EPOCH": 0.5}, "a_seed0_epoch1": {"EPOCH": 1.0}
    }  # fmt: skip


def test_another_setting_of_one_variant_repeats_that_variant_alone(sweep_suite, tmp_path):
    def keys(value: int) -> dict[str, str]:
        suite = load_suite(sweep_suite(variants={"one": {"A.B": 1}, "two": {"A.B": value}}))
        return {job.title: job.key for job in plan(suite, [], tmp_path / "out")}

    before, after = keys(2), keys(5)
    changed = {title for title in before if before[title] != after[title]}
    assert changed == {"two_seed0: pretrain", "two_seed0: task0"}


def test_a_failed_pretraining_stops_its_evaluations_alone(sweep_suite, tmp_path):
    suite = load_suite(sweep_suite(grid={"A.B": ["fail", 2]}))
    outcomes = {outcome.job.title: outcome.status for outcome in run_local(plan(suite, [], tmp_path / "out"))}
    assert outcomes == {
        "fail_seed0: pretrain": "failed",
        "fail_seed0: task0": "not run",
        "2_seed0: pretrain": "done",
        "2_seed0: task0": "done",
    }


def test_given_checkpoints_are_evaluated_beside_the_suites_own(sweep_suite, tmp_path):
    suite = load_suite(sweep_suite(grid={"A.B": [1]}))
    names = [job.weights for job in plan(suite, write_weights(tmp_path), tmp_path / "out")]
    assert names == ["1_seed0", "1_seed0", "momentum2", "random"]


def test_the_description_says_what_each_run_was_and_what_is_to_be_drawn(sweep_suite, tmp_path):
    path = sweep_suite(variants={"slow": {"SOLVER.STEPS": 5}}, seeds=[7])
    plot = {"title": "t", "y": "knn top1", "x": "SOLVER.STEPS"}
    path.write_text(path.read_text() + yaml.safe_dump({"plots": [plot]}), encoding="utf-8")
    load_suite(path).write_description(tmp_path)
    content = json.loads((tmp_path / "suite.json").read_text())
    assert content["runs"] == {"slow_seed7": {"variant": "slow", "settings": {"SOLVER.STEPS": 5}, "seed": 7}}
    assert {key: content["plots"][0][key] for key in plot} == plot


def test_a_suite_without_checkpoints_of_its_own_asks_for_some(tmp_path):
    with pytest.raises(InputError, match="expected --weights"):
        plan(load_suite(write_suite(tmp_path, {})), [], tmp_path / "out")


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("x", "pretrain: expected a mapping, found 'x'"),
        ({"config": "c"}, "grid of settings, variants, or both; found neither"),
        ({"variants": {"a": {"config": "c"}, "b": {}}}, "or one in every variant"),
        ({"grid": {"A": [1]}}, "expected the config of the pretrainings"),
        ({"config": "c", "grid": {"A": []}}, "every value of grid as a list of at least one"),
        ({"config": "c", "grid": {"A": 1}}, "every value of grid as a list, found"),
        ({"config": "c", "variants": {"a b": {}}}, "variants: expected a name of letters, .* found 'a b'"),
        ({"config": "c", "variants": {"a": 1}}, "every value of variants as a mapping"),
        ({"config": "c", "grid": {"A": [1]}, "seeds": [1, 1]}, "each seed once"),
        ({"config": "c", "grid": {"A": [1]}, "seeds": [True]}, r"expected seeds\[0\] as a whole number, found True"),
        ({"config": "c", "grid": {"A": [1]}, "seeds": []}, "expected seeds as a list of at least one"),
        ({"config": "c", "grid": {"SEED": [1, 2]}}, "under `seeds`"),
        ({"config": "c", "grid": {"A": [1, 2]}, "variants": {"a": {"A": 3}}}, "grid or in variants, found A in both"),
        ({"config": "c", "grid": {"config": ["d", "e"]}}, "expected config under variants, found it in the grid"),
        ({"config": "c", "variants": {"a": {"SEED": 1}}}, "under `seeds`"),
        ({"config": "c", "grid": {"A": [1]}, "settings": {"SEED": 1}}, "under `seeds`"),
        ({"config": "c", "grid": {"A": ["x y", "x_y"]}}, "two runs are called x_y_seed0"),
        ({"config": "c", "grid": {"A": [1]}, "exports": {"every": 50}}, "every: EPOCHS, last: EPOCHS"),
        ({"config": "c", "grid": {"A": [1]}, "exports": {"every": 50, "last": 120}}, "where every divides last"),
        ({"config": "c", "grid": {"A": [1]}, "exports": {"every": 0, "last": 100}}, "where every divides last"),
        ({"config": "c", "grid": {"A": [1]}, "sedes": [0]}, "unknown key 'sedes'"),
        ({"config": "c", "grid": {"A": [1]}, "settings": [1]}, "expected settings as a mapping"),
    ],
)
def test_a_sweep_that_means_nothing_is_refused(entry, message):
    with pytest.raises(InputError, match=message):
        read_sweep(entry, "suite.yaml, pretrain")


KNOWN = {"NORM.GROUP_SIZE": None, "SEED": None}


def test_plots_over_settings_measures_and_steps_are_read():
    asked = [
        {"title": "a", "y": "svm/k=16 top1", "x": "NORM.GROUP_SIZE", "by": "variant", "log": True},
        {"title": "b", "y": "finetune top1 @ CIFAR-10-LT", "x": "linear top1"},
        {"title": "c", "curve": "knn_top1", "x": "seconds", "by": "NORM.GROUP_SIZE"},
    ]
    assert read_plots(asked, "suite", KNOWN) == tuple(PlotRequest(**entry) for entry in asked)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"y": "a b", "x": "c d"}, "expected at least title"),
        ({"title": "t", "y": "a b", "x": "NORM.TEACHER"}, r"the pretrainings differ in \(NORM.GROUP_SIZE, SEED\)"),
        ({"title": "t", "y": "a b", "x": "c d", "by": "LR"}, "expected by as variant or a setting"),
        ({"title": "t", "y": "knn", "x": "variant"}, "expected y as TASK METRIC"),
        ({"title": "t", "y": "knn top1 @ ", "x": "variant"}, "expected y as TASK METRIC"),
        ({"title": "t", "y": "knn top1", "x": "linear"}, "expected x as TASK METRIC"),
        ({"title": "t"}, "either y, a measure, or curve"),
        ({"title": "t", "y": "a b", "curve": "loss"}, "either y, a measure, or curve"),
        ({"title": "t", "curve": "loss", "x": "epochs"}, "step or seconds"),
        ({"title": "t", "y": "a b", "x": "variant", "log": 1}, "expected log as true or false, found 1"),
        ({"title": "t", "y": 3, "x": "variant"}, "expected y as text"),
        ({"title": "t", "z": "a b"}, "unknown key 'z'"),
    ],
)
def test_a_plot_that_means_nothing_is_refused(entry, message):
    with pytest.raises(InputError, match=message):
        read_plots([entry], "suite.yaml", KNOWN)
