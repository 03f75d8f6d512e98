import re

import pytest

from momentum_transfer.backbones.norms import POLICIES, STUDENT_NORMS, TEACHER_NORMS
from momentum_transfer.backbones.resnet import DEPTHS, STEMS
from momentum_transfer.core.errors import InputError
from momentum_transfer.core.optimization import LR_SCHEDULES, MOMENTUM_SCHEDULES
from momentum_transfer.core.ranges import NOTHING, Choice, Many
from momentum_transfer.core.settings import FREE_IN_PRETRAINING
from momentum_transfer.images.augmentations import RECIPES, REMOVALS
from momentum_transfer.images.datasets import DATASETS
from momentum_transfer.images.digits import VARIANTS
from momentum_transfer.pretrain.config import SETTINGS, check_settings
from momentum_transfer.pretrain.methods import METHODS, virtual_processes
from momentum_transfer.pretrain.optimizers import OPTIMIZERS
from momentum_transfer.pretrain.plan import concerns, describe, learning_rate_at, make_plan
from momentum_transfer.pretrain.train import _AUTOCAST


def test_rates_follow_the_batch_and_are_printed(tiny_cfg):
    cfg = tiny_cfg(
        {
            "SOLVER.BATCH_SIZE": 1024,
            "SOLVER.BASE_BATCH_SIZE": 256,
            "TEACHER.SCALE_MOMENTUM": True,
            "SOLVER.STEPS": 0,
            "SOLVER.EPOCHS": 100,
            "SOLVER.WARMUP_EPOCHS": 10,
        }
    )
    plan = make_plan(cfg, 1_281_167, 1_281_167, 8)
    assert (plan.steps, plan.steps_per_epoch, plan.micro_batch, plan.warmup) == (125_100, 1251, 128, 12_510)
    assert plan.base_lr == pytest.approx(0.2)
    assert plan.momentum_base == pytest.approx(0.04)
    text = "\n".join(describe(plan, cfg, 8))
    assert "learning rate 0.2 = 0.05 x 4" in text
    assert "teacher momentum 0.04 (equivalence rule)" in text
    assert learning_rate_at(plan, cfg, 12_510) == pytest.approx(0.2)


def test_teacher_momentum_stays_without_the_rule_and_never_exceeds_one(tiny_cfg):
    settings = {"SOLVER.BATCH_SIZE": 64, "TEACHER.MOMENTUM_BASE": 0.5}
    assert make_plan(tiny_cfg(settings), 640, 640, 1).momentum_base == 0.5
    assert make_plan(tiny_cfg({**settings, "TEACHER.SCALE_MOMENTUM": True}), 640, 640, 1).momentum_base == 1


def test_a_subset_is_trained_for_the_iterations_of_the_whole(tiny_cfg):
    fixed = {"SOLVER.STEPS": 500, "SOLVER.EPOCHS": 10, "SOLVER.WARMUP_EPOCHS": 1}
    cfg = tiny_cfg({"SOLVER.STEPS": 0, "SOLVER.EPOCHS": 10, "SOLVER.WARMUP_EPOCHS": 1, "DATA.STRETCH_EPOCHS": True})
    subset, whole = make_plan(cfg, 160, 800, 1), make_plan(cfg, 800, 800, 1)
    assert (subset.steps, subset.warmup) == (whole.steps, whole.warmup) == (1000, 100)
    cfg = tiny_cfg({**fixed, "DATA.STRETCH_EPOCHS": True})
    assert make_plan(cfg, 160, 800, 1).warmup == make_plan(tiny_cfg(fixed), 160, 800, 1).warmup == 20


@pytest.mark.parametrize(
    ("processes", "accumulate"), [(3, 1), (1, 5), (8, 2)], ids=["processes", "micro-batches", "both"]
)
def test_a_batch_that_does_not_divide_is_refused(processes, accumulate, tiny_cfg):
    with pytest.raises(InputError, match=r"divisible by processes x SOLVER\.ACCUMULATE"):
        make_plan(tiny_cfg({"SOLVER.ACCUMULATE": accumulate}), 800, 800, processes)


@pytest.mark.parametrize(
    ("settings", "processes", "norms"),
    [
        ({"SOLVER.BATCH_SIZE": 1}, 1, "BN and MomentumBN"),
        ({"SOLVER.BATCH_SIZE": 4, "SOLVER.ACCUMULATE": 4, "NORM.STUDENT": "SyncBN"}, 1, "MomentumBN and SyncBN"),
        ({"SOLVER.BATCH_SIZE": 2, "METHOD.NAME": "simsiam"}, 2, "BN"),
    ],
)
def test_a_batch_normalisation_of_one_image_is_refused(settings, processes, norms, tiny_cfg):
    with pytest.raises(InputError, match=f"expected at least two images for each forward of {norms}, found one"):
        make_plan(tiny_cfg(settings), 800, 800, processes)


@pytest.mark.parametrize(
    ("settings", "processes"),
    [
        ({"NORM.STUDENT": "GN", "NORM.TEACHER": "GN"}, 1),
        ({"METHOD.NAME": "random"}, 1),
        ({"NORM.STUDENT": "SyncBN", "NORM.TEACHER": "SyncBN", "SOLVER.BATCH_SIZE": 2}, 2),
    ],
)
def test_one_image_a_forward_is_enough_where_no_process_normalises_it_alone(settings, processes, tiny_cfg):
    assert make_plan(tiny_cfg({"SOLVER.BATCH_SIZE": 1, **settings}), 800, 800, processes).micro_batch == 1


SHUFFLE = {"METHOD.NAME": "moco", "NORM.TEACHER": "ShuffleBN"}


@pytest.mark.parametrize("settings", [{}, {"NORM.GROUP_SIZE": 8}, {"NORM.GROUP_SIZE": 4, "SOLVER.ACCUMULATE": 2}])
def test_shuffle_bn_with_nothing_to_shuffle_between_is_refused_as_the_plain_bn_that_it_would_be(settings, tiny_cfg):
    with pytest.raises(InputError, match=r"NORM.GROUP_SIZE images of a virtual one, .* found one process .* plain BN"):
        make_plan(tiny_cfg({**SHUFFLE, **settings}), 800, 800, 1)


@pytest.mark.parametrize(
    ("batch", "advice"), [(256, "NORM.GROUP_SIZE 32 "), (16, "NORM.GROUP_SIZE 8 "), (48, "NORM.GROUP_SIZE 24 "),
                          (7, "SOLVER.BATCH_SIZE to a multiple of 4")],
)  # fmt: skip
def test_a_group_size_that_divides_the_batch_is_suggested(batch, advice, tiny_cfg):
    with pytest.raises(InputError, match=advice):
        make_plan(tiny_cfg({**SHUFFLE, "SOLVER.BATCH_SIZE": batch}), 800, 800, 1)


@pytest.mark.parametrize(("settings", "processes"), [({"NORM.GROUP_SIZE": 4}, 1), ({}, 2), ({"NORM.GROUP_SIZE": 4}, 2)])
def test_shuffle_bn_has_other_groups_or_processes_to_shuffle_with(settings, processes, tiny_cfg):
    assert make_plan(tiny_cfg({**SHUFFLE, **settings}), 800, 800, processes).micro_batch == 8 // processes


def protocol_lines(cfg, processes, preset=None):
    return concerns(make_plan(cfg, 800, 800, processes), cfg, processes, preset)


@pytest.mark.parametrize("processes", [1, 2, 4])
def test_a_pinned_group_is_the_same_protocol_on_any_number_of_processes(processes, tiny_cfg):
    cfg = tiny_cfg({"NORM.GROUP_SIZE": 2})
    assert protocol_lines(cfg, processes, preset=cfg) == []


@pytest.mark.parametrize(
    ("settings", "processes", "pinned", "line"),
    [
        ({"NORM.GROUP_SIZE": 0}, 1, 2, "BN and MomentumBN of 2 images in the config, as its paper had, of 8 in this"),
        ({"NORM.GROUP_SIZE": 0}, 2, 2, "of 2 images in the config, as its paper had, of 4 in this run"),
        ({"NORM.GROUP_SIZE": 4}, 1, 2, "of 2 images in the config, as its .* of 4 in this run .NORM.GROUP_SIZE 4"),
        ({"NORM.TEACHER": "EMAN"}, 2, 0, "another protocol: BN of 8 images in one process, of 4 in this run"),
        ({"SOLVER.ACCUMULATE": 4}, 1, 0, "of 8 images in one process, of 2 in this run .* 1 process x 4 micro"),
    ],
)
def test_other_images_per_bn_than_the_configs_are_said_in_one_line(settings, processes, pinned, line, tiny_cfg):
    (found,) = protocol_lines(tiny_cfg(settings), processes, preset=tiny_cfg({"NORM.GROUP_SIZE": pinned}))
    assert re.search(line, found)
    assert "\n" not in found


@pytest.mark.parametrize(
    "settings",
    [
        {"NORM.STUDENT": "SyncBN", "NORM.TEACHER": "SyncBN"},
        {"NORM.STUDENT": "GN", "NORM.TEACHER": "IN"},
        {"NORM.STUDENT": "SyncBN", "NORM.TEACHER": "EMAN"},
        {"METHOD.NAME": "simsiam", "NORM.STUDENT": "SyncBN"},
    ],
)
def test_normalisations_of_the_whole_batch_or_of_one_image_are_the_same_on_any_number_of_processes(settings, tiny_cfg):
    assert protocol_lines(tiny_cfg(settings), 2) == []


@pytest.mark.parametrize("settings", [{"NORM.STUDENT": "SyncBN"}, {"NORM.TEACHER": "SyncBN"}])
def test_sync_bn_of_fewer_images_than_the_configs_batch_is_said_where_micro_batches_make_it_so(settings, tiny_cfg):
    settings = {**settings, "NORM.GROUP_SIZE": 2, "SOLVER.ACCUMULATE": 4}
    preset = tiny_cfg({**settings, "SOLVER.ACCUMULATE": 1})
    for processes, micro_batches in ((1, 4), (2, 2)):
        cfg = tiny_cfg({**settings, "SOLVER.ACCUMULATE": micro_batches})
        (found,) = protocol_lines(cfg, processes, preset)
        assert f"SyncBN of 8 images in the config, of {8 // micro_batches} in this run (SOLVER.ACC" in found
    assert protocol_lines(tiny_cfg(settings), 1, preset=tiny_cfg(settings)) == []


def test_a_micro_batch_without_whole_groups_is_refused_with_what_the_protocol_and_the_run_have(tiny_cfg, monkeypatch):
    monkeypatch.setattr("momentum_transfer.core.distributed.world_size", lambda: 4)
    with pytest.raises(
        InputError, match=r"divide the 2 images .* 4 processes .* found 4, the images per BN of the pro"
    ):
        virtual_processes(tiny_cfg({"NORM.GROUP_SIZE": 4}))


@pytest.mark.parametrize(("steps", "epochs", "fraction"), [(400, 1.5, "29%"), (50, 1.5, "98%"), (50, 0.075, "12%")])
def test_a_warm_up_of_more_than_a_tenth_of_the_run_is_said(steps, epochs, fraction, tiny_cfg):
    cfg = tiny_cfg({"SOLVER.STEPS": steps, "SOLVER.BATCH_SIZE": 16, "SOLVER.WARMUP_EPOCHS": epochs})
    plan = make_plan(cfg, 1257, 1257, 1)  # 78 steps an epoch
    (line,) = concerns(plan, cfg, 1)
    assert f"{plan.warmup} of {steps} steps are warm-up ({fraction}; usual: at most 10%)" in line
    lower = float(re.search(r"WARMUP_EPOCHS to ([\d.]+)", line)[1])
    assert round(lower * 78) == steps // 10
    shorter = tiny_cfg({"SOLVER.STEPS": steps, "SOLVER.BATCH_SIZE": 16, "SOLVER.WARMUP_EPOCHS": lower})
    assert concerns(make_plan(shorter, 1257, 1257, 1), shorter, 1) == []


@pytest.mark.parametrize(
    ("key", "names"),
    [
        ("METHOD.NAME", METHODS),
        ("MODEL.ARCH", (*DEPTHS, "timm:NAME")),
        ("MODEL.STEM", STEMS),
        ("TEACHER.MOMENTUM_SCHEDULE", MOMENTUM_SCHEDULES),
        ("NORM.STUDENT", STUDENT_NORMS),
        ("NORM.TEACHER", TEACHER_NORMS),
        ("NORM.ALPHA_SCHEDULE", MOMENTUM_SCHEDULES),
        ("NORM.POLICY", POLICIES),
        ("DATA.NAME", (DATASETS[0], "images", *DATASETS[1:])),
        ("DATA.VARIANT", VARIANTS),
        ("DATA.VIEWS", (*RECIPES, "digits")),
        ("SOLVER.OPTIMIZER", OPTIMIZERS),
        ("SOLVER.SCHEDULE", LR_SCHEDULES),
        ("RUN.PRECISION", ("float32", *_AUTOCAST)),
    ],
)
def test_names_in_the_table_are_those_that_the_code_has(key, names):
    assert SETTINGS[key].rule.words == tuple(names)


def test_removals_in_the_table_are_those_that_the_code_has():
    assert SETTINGS["DATA.REMOVE"].rule == Many(Choice(REMOVALS))


def test_where_and_how_long_a_run_works_decides_nothing():
    assert {key for key, setting in SETTINGS.items() if setting.decides == NOTHING} == set(FREE_IN_PRETRAINING)


def test_zero_settings_are_refused(tiny_cfg):
    with pytest.raises(InputError, match=r"RUN.KEEP between 1 and 2147483647 checkpoints, found 0; correct the config"):
        check_settings(tiny_cfg({"RUN.KEEP": 0}))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("SOLVER.STEPS", -5),
        ("SOLVER.WARMUP_EPOCHS", -1.0),
        ("SOLVER.WEIGHT_DECAY", -0.1),
        ("SOLVER.WARMUP_FACTOR", 2.0),
        ("SOLVER.MOMENTUM", -0.5),
        ("NORM.STATISTICS_MOMENTUM", 5.0),
        ("NORM.ALPHA_BASE", 1.5),
    ],
)
def test_settings_outside_their_range_are_refused(key, value, tiny_cfg):
    with pytest.raises(InputError, match=f"expected {key} .* found {value}"):
        check_settings(tiny_cfg({key: value}))


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("SOLVER.ETA", 0.0, "SOLVER.ETA above 0"),
        ("SOLVER.GAMMA", -1.0, "SOLVER.GAMMA between 0 and 1, found -1"),
        ("SOLVER.GAMMA", 2.0, "SOLVER.GAMMA between 0 and 1, found 2"),
        ("SOLVER.BASE_LR", float("nan"), "SOLVER.BASE_LR above 0"),
        ("SOLVER.BASE_LR", float("inf"), "SOLVER.BASE_LR above 0"),
        ("SOLVER.WEIGHT_DECAY", float("nan"), "SOLVER.WEIGHT_DECAY between 0 and"),
        ("SOLVER.WARMUP_EPOCHS", float("inf"), "SOLVER.WARMUP_EPOCHS"),
        ("NORM.STATISTICS_MOMENTUM", float("nan"), "NORM.STATISTICS_MOMENTUM"),
        ("NORM.STATISTICS_MOMENTUM", 0.9, "the fraction that is kept, as papers write it; if so, write 0.1"),
        ("TEACHER.MOMENTUM_BASE", 0.996, "the weight of the new value, .* if so, write 0.004"),
        ("NORM.PROXY_MOMENTUM", 0.999, "if so, write 0.001"),
        ("SOLVER.MILESTONES", [0.9, 0.1], "ascending numbers above 0 and below 1 .fractions of the run"),
        ("SOLVER.MILESTONES", [30, 60], "divide epochs by SOLVER.EPOCHS"),
        ("SOLVER.MILESTONES", ["x"], r"SOLVER.MILESTONES as a list of ascending numbers .* found \['x'\]"),
        ("DATA.REMOVE", [1], "DATA.REMOVE as a list of words of solarize, blur, grayscale, color_jitter"),
        ("DATA.CROP_SCALE", [[1], [2]], "DATA.CROP_SCALE"),
        ("DATA.CANVAS", -1, "DATA.CANVAS between 0 and 16384 px .0: twice DATA.IMAGE_SIZE.*found -1"),
        ("DATA.MAX_UNREADABLE", -1, "DATA.MAX_UNREADABLE between 0"),
        ("HEAD.PREDICTOR_HIDDEN", -1, "HEAD.PREDICTOR_HIDDEN between 0"),
        ("MODEL.WIDTH", 10**9, "MODEL.WIDTH between 1 and 4096 channels"),
        ("SEED", 10**30, "SEED between 0 and 2147483647"),
        ("OUTPUT_DIR", "", "OUTPUT_DIR as a path"),
        ("OUTPUT_DIR", "a" * 300, "at most 255 bytes a name"),
        ("DATA.ROOT", "a\0b", "DATA.ROOT as a path or '' .*no NUL"),
        ("DATA.CROP_SCALE", [0.9, 0.2], r"DATA.CROP_SCALE \[low, high\]"),
        ("SOLVER.OPTIMIZER", "adam", "SOLVER.OPTIMIZER of sgd, lars, adamw, found 'adam'; the nearest is adamw"),
    ],
)
def test_values_outside_their_range_are_named(key, value, message, tiny_cfg):
    cfg = tiny_cfg().clone()
    cfg.defrost()
    cfg.merge_from_list([key, value])
    with pytest.raises(InputError, match=message):
        check_settings(cfg)
