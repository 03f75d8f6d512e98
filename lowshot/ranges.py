"""What every setting of the few-label evaluations may be, by key; the defaults are in ``lowshot/config.py``."""

from fvcore.common.config import CfgNode

from momentum_transfer.backbones.build import ArchitectureName
from momentum_transfer.backbones.resnet import STEMS
from momentum_transfer.core.neighbours import PRECISIONS as SEARCH_PRECISIONS
from momentum_transfer.core.ranges import (
    ANY_PATH,
    COUNT,
    PATH,
    POSITIVE,
    SEED,
    SHARE,
    Choice,
    Many,
    Momentum,
    Number,
    Rule,
    Words,
    check,
)
from momentum_transfer.images.datasets import DATASETS
from momentum_transfer.images.digits import VARIANTS
from momentum_transfer.lowshot import knn, presets
from momentum_transfer.lowshot.augment import LEVELS
from momentum_transfer.lowshot.features.extract import LAYERS, POOL, PRECISIONS
from momentum_transfer.lowshot.fixmatch import STUDENTS, TEACHERS
from momentum_transfer.lowshot.svm import lowshot_svm as svm

_WORKERS = Number(0, 1024, whole=True, unit="processes")
_PIXELS = Number(1, 2**13, whole=True, unit="px")
_PRESETS = "0: the preset's"


def _training(name: str, words: dict[str, object]) -> dict[str, Rule]:
    """What linear, finetune and fixmatch share."""
    shared: dict[str, Rule] = {
        "PRESET": Choice(words),
        "FRACTION": SHARE,
        "SPLIT_FILE": ANY_PATH,
        "TRIALS": COUNT,
        "LEARNING_RATES": Many(POSITIVE),
        "EPOCHS": Number(0, unit="epochs", note=_PRESETS),
        "BATCH_SIZE": Number(0, whole=True, unit="images", note=_PRESETS),
        "WORKERS": _WORKERS,
    }
    return {f"{name}.{key}": rule for key, rule in shared.items()}


#: Every key of the defaults but the switches.
RULES: dict[str, Rule] = {
    "OUTPUT_DIR": PATH,
    "SEED": SEED,
    "DATASETS.NAME": Choice((*DATASETS, "voc07")),
    "DATASETS.ROOT": ANY_PATH,
    "DATASETS.TRAIN": ANY_PATH,
    "DATASETS.TEST": ANY_PATH,
    "DATASETS.TRAIN_LIST": ANY_PATH,
    "DATASETS.TEST_LIST": ANY_PATH,
    "DATASETS.SPLIT": Number(0, 1, below=True, note="0: TEST is a set of its own"),
    "DATASETS.TITLE": Words(r"[^\0]*", "as text without NUL"),
    "DATASETS.VARIANT": Choice(VARIANTS),
    "DATASETS.DRAWINGS": Number(1, 1000, whole=True, unit="drawings"),
    "DATASETS.SEED": SEED,
    "DATASETS.LONG_TAIL": SHARE,
    "INPUT.IMAGE_SIZE": _PIXELS,
    "FEATURES.LAYER": Choice(LAYERS),
    "FEATURES.POOL": POOL,
    "FEATURES.PRECISION": Choice(PRECISIONS),
    "FEATURES.BATCH_SIZE": Number(1, whole=True, unit="images"),
    "FEATURES.WORKERS": _WORKERS,
    "FEATURES.CACHE": ANY_PATH,
    "SEARCH.PRECISION": Choice(SEARCH_PRECISIONS),
    "SEARCH.QUERY_CHUNK": Number(1, whole=True, unit="rows"),
    "SEARCH.DATABASE_CHUNK": Number(1, whole=True, unit="rows"),
    "KNN.PRESETS": Many(knn.PRESET_NAME),
    "RETRIEVAL.TOP": Number(1, whole=True, unit="neighbours"),
    "SVM.PROTOCOL": Choice(svm.PROTOCOLS),
    "SVM.SHOTS": svm.SHOTS,
    "SVM.DRAWS": COUNT,
    "SVM.COSTS": svm.COSTS,
    "SVM.SELECT_C": Choice(svm.SELECT_C),
    "SVM.HELD_OUT_PER_CLASS": Number(1, whole=True, unit="images"),
    "SVM.CLASS_WEIGHTS": Choice(("", *svm.CLASS_WEIGHTS)),
    "SVM.VOC_SHOTS": Choice(svm.VOC_SHOTS),
    "SVM.SOLVER": Choice(svm.SOLVERS),
    **_training("LINEAR", dict(presets.LINEAR)),
    **_training("FINETUNE", dict(presets.FINETUNE)),
    **_training("FIXMATCH", dict(presets.FIXMATCH)),
    "FIXMATCH.SCHEDULE": Choice(presets.FIXMATCH_SCHEDULES),
    "FIXMATCH.STUDENT_NORM": Choice(("", *STUDENTS)),
    "FIXMATCH.TEACHER_NORM": Choice(("", *TEACHERS)),
    "FIXMATCH.TEACHER_GROUP": Number(0, whole=True, unit="images", note="0: all of a process"),
    "FIXMATCH.WEAK_BATCHES": Many(Number(2, whole=True, unit="images")),
    "FIXMATCH.STRONG_LEVELS": Choice(("", *LEVELS)),
    "FIXMATCH.EVAL_EVERY": Number(0, whole=True, unit="steps", note="0: at the end only"),
    "FIXMATCH.STEPS": Number(0, whole=True, unit="steps", note="0: the schedule's epochs"),
    "FIXMATCH.UNLABELLED_RATIO": Number(0, whole=True, note=_PRESETS),
    "FIXMATCH.WEIGHT": Number(0, note=_PRESETS),
    "FIXMATCH.THRESHOLD": Number(0, 1, note=_PRESETS),
    "FIXMATCH.MOMENTUM": Momentum(note=_PRESETS),
    "FIXMATCH.BN_MOMENTUM": Momentum(note=_PRESETS),
    # 0 would keep the statistics of the first step for ever.
    "FIXMATCH.STATISTICS_MOMENTUM": Momentum(frozen=False, negative="the preset's", note="1: copies the student's"),
    "MODEL.ARCH": ArchitectureName(),
    "MODEL.WIDTH": Number(1, 4096, whole=True, unit="channels"),
    "MODEL.STEM": Choice(STEMS),
}


def check_settings(cfg: CfgNode) -> None:
    """Judge all that can be judged without data.

    Raises:
        InputError: names the key, its value and what would be right.
    """
    check(cfg, RULES)
