import pytest

from momentum_transfer.backbones.norms import TEACHER_NORMS
from momentum_transfer.backbones.resnet import DEPTHS, STEMS
from momentum_transfer.core.errors import InputError
from momentum_transfer.core.neighbours import PRECISIONS
from momentum_transfer.core.settings import load_config, value_of
from momentum_transfer.images.datasets import DATASETS
from momentum_transfer.images.digits import VARIANTS
from momentum_transfer.lowshot import presets
from momentum_transfer.lowshot.augment import LEVELS
from momentum_transfer.lowshot.config import KNN_PRESET, SETTINGS, check_settings, get_cfg
from momentum_transfer.lowshot.evaluations import _check_batch, _fixmatch_protocol
from momentum_transfer.lowshot.fixmatch import STUDENTS
from momentum_transfer.lowshot.knn import PRESETS
from momentum_transfer.lowshot.presets import finetune_preset, fixmatch_setting, linear_preset
from momentum_transfer.lowshot.svm import lowshot_svm as svm


def test_defaults_pass():
    check_settings(get_cfg())


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("SEED", "-1", "expected SEED between 0 and 2147483647, found -1"),
        ("DATASETS.SEED", "-1", r"expected DATASETS\.SEED between 0"),
        ("INPUT.IMAGE_SIZE", "0", r"expected INPUT\.IMAGE_SIZE between 1 and 8192 px, found 0"),
        ("FEATURES.BATCH_SIZE", "0", r"expected FEATURES\.BATCH_SIZE of at least 1 images, found 0"),
        ("FEATURES.WORKERS", "-2", r"expected FEATURES\.WORKERS between 0 and 1024 processes"),
        ("SEARCH.QUERY_CHUNK", "0", r"expected SEARCH\.QUERY_CHUNK of at least 1"),
        ("SEARCH.DATABASE_CHUNK", "-5", r"expected SEARCH\.DATABASE_CHUNK of at least 1"),
        ("RETRIEVAL.TOP", "0", r"expected RETRIEVAL\.TOP of at least 1"),
        ("SVM.TRIALS", "0", r"expected SVM\.TRIALS of at least 1"),
        ("SVM.HELD_OUT_PER_CLASS", "0", r"expected SVM\.HELD_OUT_PER_CLASS of at least 1"),
        ("SVM.SHOTS", "[1, 2.5]", r"SHOTS as a list of one or more whole numbers of at least 1, found \[1, 2\.5\]"),
        ("SVM.SHOTS", "['all']", r"expected SVM\.SHOTS .*, found \['all'\]"),
        ("SVM.SHOTS", "[]", r"expected SVM\.SHOTS as a list of one or more .*, found \[\]"),
        ("KNN.PRESETS", "['eman', 'majority-0']", r"KNN\.PRESETS as a list of words of eman, dino, majority-K"),
        ("OUTPUT_DIR", "a/" + "b" * 256, "expected OUTPUT_DIR as a path"),
        (
            "SVM.COSTS",
            "[1.0, 0.0]",
            r"expected SVM\.COSTS as a list of one or more numbers above 0, found \[1\.0, 0\.0\]",
        ),
    ],
)
def test_sizes_that_nothing_can_be_computed_with_are_refused(key, value, message):
    with pytest.raises(InputError, match=message):
        check_settings(load_config(get_cfg(), None, [key, value]))


@pytest.mark.parametrize(
    ("key", "names"),
    [
        ("DATASETS.NAME", (*DATASETS, "voc07")),
        ("DATASETS.VARIANT", VARIANTS),
        ("SEARCH.PRECISION", PRECISIONS),
        ("SVM.PRESET", svm.PROTOCOLS),
        ("SVM.CLASS_WEIGHTS", ("", *svm.CLASS_WEIGHTS)),
        ("SVM.SOLVER", svm.SOLVERS),
        ("LINEAR.PRESET", presets.LINEAR),
        ("FINETUNE.PRESET", presets.FINETUNE),
        ("FIXMATCH.PRESET", presets.FIXMATCH),
        ("FIXMATCH.SCHEDULE", presets.FIXMATCH_SCHEDULES),
        ("FIXMATCH.STUDENT_NORM", ("", *STUDENTS)),
        ("FIXMATCH.TEACHER_NORM", ("", *TEACHER_NORMS)),
        ("FIXMATCH.STRONG_LEVELS", ("", *LEVELS)),
        ("MODEL.ARCH", (*DEPTHS, "timm:NAME")),
        ("MODEL.STEM", STEMS),
    ],
)
def test_names_in_the_table_are_those_that_the_code_has(key, names):
    assert SETTINGS[key].rule.words == tuple(names)


def test_presets_of_knn_in_the_table_are_those_that_the_code_has():
    assert str(KNN_PRESET) == f"of {', '.join(PRESETS)}, majority-K, weighted-K"
    assert all(map(KNN_PRESET.holds, PRESETS))


def test_what_changes_no_number_decides_nothing():
    assert {key for key, setting in SETTINGS.items() if setting.decides == "nothing"} == {
        "OUTPUT_DIR", "FEATURES.WORKERS", "FEATURES.CACHE",
        *(f"{name}.{key}" for name in ("LINEAR", "FINETUNE", "FIXMATCH") for key in ("WORKERS", "TRIALS")),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "key", "value", "message"),
    [
        ("LINEAR", "PRESET", "best", r"expected LINEAR\.PRESET of m2, rcf-sgd"),
        ("LINEAR", "TRIALS", "0", r"expected LINEAR\.TRIALS of at least 1"),
        ("LINEAR", "LEARNING_RATES", "['a']", r"expected LINEAR\.LEARNING_RATES as a list of numbers above 0, found"),
        ("FINETUNE", "EPOCHS", "-1.0", r"expected FINETUNE\.EPOCHS of at least 0"),
        ("FINETUNE", "WORKERS", "-1", r"expected FINETUNE\.WORKERS between 0"),
        (
            "FIXMATCH",
            "THRESHOLD",
            "2.0",
            r"expected FIXMATCH\.THRESHOLD between 0 and 1 \(0: the preset's\), found 2\.0",
        ),
        (
            "FIXMATCH",
            "STATISTICS_MOMENTUM",
            "1.5",
            r"expected FIXMATCH\.STATISTICS_MOMENTUM as the weight of the new value, .*found 1\.5",
        ),
        ("FIXMATCH", "STATISTICS_MOMENTUM", "0.0", r"above 0 and at most 0\.5, or 1 \(1: copies the student's"),
        ("FIXMATCH", "STATISTICS_MOMENTUM", "0.9", r"fraction that is kept, as papers write it; if so, write 0\.1"),
        ("FIXMATCH", "MOMENTUM", "0.999", r"FIXMATCH\.MOMENTUM as the weight of the new value.* if so, write 0\.001"),
        ("FIXMATCH", "BN_MOMENTUM", "0.9", r"FIXMATCH\.BN_MOMENTUM as the weight of the new value"),
        ("FIXMATCH", "MOMENTUM", "-0.1", r"FIXMATCH\.MOMENTUM as the weight of the new value, .*found -0\.1"),
        ("FIXMATCH", "SCHEDULE", "2x", r"expected FIXMATCH\.SCHEDULE of 1x, 3x"),
        ("FIXMATCH", "LEARNING_RATES", "[0.1,0.2]", "nothing is searched here"),
        ("FIXMATCH", "PRESET", "ema-bn FIXMATCH.STATISTICS_MOMENTUM 0.1", "which is EMAN's, for teacher BN"),
        ("FIXMATCH", "PRESET", "gn FIXMATCH.BN_MOMENTUM 0.01", "for student GN, which keeps no statistics"),
        ("FIXMATCH", "STRONG_LEVELS", "10", r"expected FIXMATCH\.STRONG_LEVELS of .*eman, uniform, found '10'"),
        ("FIXMATCH", "TEACHER_NORM", "LN", r"expected FIXMATCH\.TEACHER_NORM of .*BN, SyncBN"),
    ],
)
def test_training_settings_outside_their_range_are_refused(name, key, value, message):
    cfg = load_config(get_cfg(), None, [f"{name}.{key}", *value.split()])
    build = {
        "LINEAR": linear_preset,
        "FINETUNE": finetune_preset,
        "FIXMATCH": lambda node: fixmatch_setting(node, False),
    }
    with pytest.raises(InputError, match=message):
        check_settings(cfg)
        build[name](cfg[name])


@pytest.mark.parametrize(
    ("batch", "processes", "message"),
    [
        (65, 1, r"expected FINETUNE\.BATCH_SIZE of at most 64 \(the images to train on\), found 65"),
        (1, 1, "at least two images a process"),
        (9, 2, "the same number on each of 2, found 9"),
        (2, 2, "at least two images a process"),
    ],
)
def test_batch_that_cannot_be_filled_or_divided_is_refused(batch, processes, message):
    _check_batch("FINETUNE.BATCH_SIZE", 64, 64, processes)
    with pytest.raises(InputError, match=message):
        _check_batch("FINETUNE.BATCH_SIZE", batch, 64, processes)


def fixmatch(**settings):
    words = [str(word) for key, value in settings.items() for word in (f"FIXMATCH.{key}", value)]
    return load_config(get_cfg(), None, words).FIXMATCH


def test_normalisations_are_switches_and_the_protocol_names_them():
    node = fixmatch(PRESET="eman", STUDENT_NORM="SyncBN")
    preset = fixmatch_setting(node, pretrained=True).preset
    assert (preset.student, preset.teacher) == ("SyncBN", "EMAN")
    assert _fixmatch_protocol(node) == "eman-1x/student=SyncBN"
    assert _fixmatch_protocol(fixmatch(TEACHER_NORM="EMAN")) == "eman-1x"
    with pytest.raises(InputError, match=r"expected a preset with a teacher under FIXMATCH\.TEACHER_NORM"):
        fixmatch_setting(fixmatch(PRESET="fixmatch", TEACHER_NORM="EMAN"), pretrained=False)


def test_shuffle_bn_of_one_process_needs_groups_to_shuffle_between():
    with pytest.raises(InputError, match=r"found one process .* plain BN; take FIXMATCH.TEACHER_GROUP 40"):
        fixmatch_setting(fixmatch(PRESET="shufflebn"), pretrained=False)
    assert fixmatch_setting(fixmatch(PRESET="shufflebn", TEACHER_GROUP=40), False).preset.teacher_groups == 8


def test_levels_of_the_strong_view_are_a_switch_and_the_protocol_names_them():
    assert fixmatch_setting(fixmatch(), pretrained=False).preset.strong_levels == "eman"
    assert fixmatch_setting(fixmatch(STRONG_LEVELS="uniform"), pretrained=False).preset.strong_levels == "uniform"
    assert _fixmatch_protocol(fixmatch(STRONG_LEVELS="uniform")) == "eman-1x/strong_levels=uniform"


def test_settings_override_the_presets_numbers_and_keep_fractions_of_the_schedule():
    setting = fixmatch_setting(fixmatch(EPOCHS=20.0, UNLABELLED_RATIO=3), pretrained=True)
    assert (setting.schedule.epochs, setting.schedule.warmup, setting.schedule.milestones) == (20, 1, (0.6, 0.8))
    assert (setting.preset.unlabelled_ratio, setting.rate) == (3, 0.003)


def test_what_counts_things_is_whole():
    for key, setting in SETTINGS.items():
        if type(setting.default) is int:
            cfg = get_cfg()
            section, _, name = key.rpartition(".")
            (value_of(cfg, section) if section else cfg)[name] = setting.default + 0.5
            with pytest.raises(InputError, match=f"expected {key} "):
                check_settings(cfg)
