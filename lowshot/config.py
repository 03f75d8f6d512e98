"""Settings of the few-label evaluations: one table for defaults, checks, documentation and identity."""

from collections.abc import Iterable

from fvcore.common.config import CfgNode

from momentum_transfer.core.ranges import (
    ANY_PATH,
    ARCHITECTURE,
    BACKEND,
    COUNT,
    FRACTION,
    NOTHING,
    PATH,
    POSITIVE,
    SEED,
    SWITCH,
    TRAINABLE,
    Choice,
    Many,
    Momentum,
    Number,
    Setting,
    Words,
    add_defaults,
    check,
    table,
)

#: Names of the evaluations: those of ``ON_FEATURES``, then those of ``ON_IMAGES`` in ``evaluations.py``.
EVALUATIONS = ("knn", "retrieval", "svm", "diagnostics", "linear", "finetune", "fixmatch")

KNN_PRESET = Words(r"eman|dino|(majority|weighted)-0*[1-9]\d{0,8}", "of eman, dino, majority-K, weighted-K")
_WORKERS = Number(0, 1024, whole=True, unit="processes")
_ROWS = Number(1, whole=True, unit="rows")
_PRESET = "0: the preset's"


def _training(name: str, names: Iterable[str], fraction: float) -> tuple[Setting, ...]:
    """Settings of linear, finetune and fixmatch alike."""
    return (
        Setting(f"{name}.PRESET", "eman", Choice(names), "protocol of a paper, see lowshot/presets.py"),
        Setting(f"{name}.FRACTION", fraction, FRACTION, "fraction of the labels that trains, balanced over classes"),
        Setting(f"{name}.SPLIT_FILE", "", ANY_PATH,
                "file of image names, such as SimCLR's 1percent.txt, that is FRACTION of all"),
        Setting(f"{name}.TRIALS", 1, COUNT,
                "number of seeds SEED, SEED + 1, …: each has other labels and another start", NOTHING),
        Setting(f"{name}.LEARNING_RATES", [], Many(POSITIVE),
                "[]: the preset's; for the preset's batch size, scaled with the batch size"),
        Setting(f"{name}.EPOCHS", 0.0, Number(0, unit="epochs", note=_PRESET),
                "length of training; milestones and warm-up keep their fraction of it"),
        Setting(f"{name}.BATCH_SIZE", 0, Number(0, whole=True, unit="images", note=_PRESET), "batch of all processes"),
        Setting(f"{name}.WORKERS", 4, _WORKERS, "processes that read images", NOTHING),
    )  # fmt: skip


#: Every momentum is the weight of the new value: EMAN's .999 is 0.001.
SETTINGS = table(
    Setting("OUTPUT_DIR", "outputs/lowshot", PATH,
            "folder of records; outputs/lowshot/NAME for a config that ships", NOTHING),
    Setting("SEED", 0, SEED, "seed of the samples of labelled images and of training"),
    Setting("DATASETS.NAME", "imagefolder",
            Choice(("digits", "imagefolder", "filelist", "stl10", "cifar10", "cifar100", "mnist", "fashion-mnist",
                    "kmnist", "inaturalist", "voc07")), "data set"),
    Setting("DATASETS.ROOT", "", ANY_PATH, "folder of the data set"),
    Setting("DATASETS.TRAIN", "train", ANY_PATH, "part of the data set that trains"),
    Setting("DATASETS.TEST", "val", ANY_PATH, "part of the data set that tests"),
    Setting("DATASETS.TRAIN_LIST", "", ANY_PATH, "NAME filelist: a file of `path label` lines"),
    Setting("DATASETS.TEST_LIST", "", ANY_PATH, "as TRAIN_LIST"),
    Setting("DATASETS.SPLIT", 0.0, Number(0, 1, below=True, note="0: TEST is a set of its own"),
            "fraction of TRAIN's images that trains; the rest tests, stratified, by DATASETS.SEED"),
    Setting("DATASETS.TITLE", "", Words(r"[^\0]*", "as text without NUL"),
            "what records call the test set; empty: the folder's name, or NAME and TEST"),
    Setting("DATASETS.VARIANT", "placed", Choice(("placed", "written", "strokes")), "how digits are rendered"),
    Setting("DATASETS.RENDERINGS", 1, Number(1, 1000, whole=True, unit="renderings"),
            "renderings of each digit that tests; under SPLIT one"),
    Setting("DATASETS.SEED", 0, SEED, "seed of the digits' renderings, SPLIT and LONG_TAIL"),
    Setting("DATASETS.LONG_TAIL", 1.0, FRACTION,
            "fraction of its training images that the rarest class keeps (CIFAR-LT: 0.01)"),
    Setting("INPUT.IMAGE_SIZE", 224, Number(1, 2**13, whole=True, unit="px"),
            "side of images for ResNets; a network of timm takes its own size (?img_size=N)"),
    Setting("INPUT.BACKEND", "pillow", BACKEND,
            "what crops training images: pillow, as the papers; opencv: the same random numbers, faster"),
    Setting("FEATURES.LAYER", "pooled", Choice(("pooled", "res2", "res3", "res4", "res5")),
            "res2 … res5: that stage's map, averaged over positions"),
    Setting("FEATURES.POOL", "pooled",
            Words(r"pooled|cls|patch_mean|cls\+patch_mean|last-[1-9]\d?-blocks",
                  "of pooled, cls, patch_mean, cls+patch_mean, last-N-blocks"),
            "pooled: as the network pools by itself; the others are of ViTs"),
    Setting("FEATURES.PRECISION", "bf16", Choice(("bf16", "fp32")), "bf16: autocast"),
    Setting("FEATURES.BATCH_SIZE", 256, Number(1, whole=True, unit="images"), "batch of a forward pass"),
    Setting("FEATURES.WORKERS", 4, _WORKERS, "processes that read images", NOTHING),
    Setting("FEATURES.CACHE", "", ANY_PATH, "empty: the features folder of the cache root", NOTHING),
    Setting("SEARCH.PRECISION", "fp32", Choice(("fp32", "bf16")),
            "of kNN and retrieval; bf16: meant for GPUs, the same neighbours (slower on CPUs)"),
    Setting("SEARCH.QUERY_CHUNK", 1024, _ROWS, "rows of test features searched at once"),
    Setting("SEARCH.DATABASE_CHUNK", 16384, _ROWS, "rows of training features searched at once"),
    Setting("KNN.PRESETS", ["eman", "dino"], Many(KNN_PRESET), "k and weights of neighbours, see lowshot/knn.py"),
    Setting("RETRIEVAL.TOP", 1000, Number(1, whole=True, unit="neighbours"),
            "neighbours that count; at most all of TRAIN"),
    Setting("SVM.PRESET", "imagenet", Choice(("imagenet", "inaturalist", "own", "voc07", "voc07-sklearn")),
            "protocol of a paper, see lowshot/svm/lowshot_svm.py"),
    Setting("SVM.SHOTS", [1, 2, 4, 8, 16], Many(COUNT, least=1), "labelled images per class"),
    Setting("SVM.TRIALS", 5, COUNT, "number of samples of labelled images"),
    Setting("SVM.COSTS", [2.0**power for power in range(-5, 6)], Many(POSITIVE, least=1), "values of C; one is chosen"),
    Setting("SVM.SELECT_C", "heldout", Choice(("heldout", "test")),
            "test: the papers' habit, the best C in the mean over trials"),
    Setting("SVM.HELD_OUT_PER_CLASS", 20, Number(1, whole=True, unit="images"),
            "images of a class that choose C; never fitted, never tested"),
    Setting("SVM.CLASS_WEIGHTS", "", Choice(("", "plain", "vissl")),
            "instead of the preset's: plain (1), vissl (positives weigh 2)"),
    Setting("SVM.VOC_SHOTS", "pcl", Choice(("pcl", "vissl")),
            "pcl: sampled images with all their labels; vissl: k positives, sampled negatives"),
    Setting("SVM.SOLVER", "batched", Choice(("batched", "liblinear")),
            "liblinear: the reference, the same problem, slower"),
    *_training("LINEAR", ("m2", "rcf-sgd", "rcf-lars", "eman", "simsiam", "own"), 1.0),
    Setting("LINEAR.CACHED", False, SWITCH, "classifiers on stored features, no augmentation: seconds, other numbers"),
    *_training("FINETUNE", ("m2", "supervised", "eman", "own"), 0.01),
    Setting("FINETUNE.TRAINABLE", "all", TRAINABLE,
            "part of the backbone that is trained; frozen: linear evaluation with this protocol's schedule"),
    *_training("FIXMATCH", (
        "fixmatch", "eman", "ema-bn", "syncbn", "shufflebn", "gn", "in", "eman-0.9", "eman-0.99999", "teacher-pn",
        "teacher-pn-0.999", "student-pn", "student-pn-0.999", "momentum-bn",
    ), 0.1),
    Setting("FIXMATCH.SCHEDULE", "1x", Choice(("1x", "3x")), "length of training"),
    Setting("FIXMATCH.STUDENT_NORM", "", Choice(("", "BN", "SyncBN", "GN", "IN")), "instead of the preset's"),
    Setting("FIXMATCH.TEACHER_NORM", "",
            Choice(("", "BN", "SyncBN", "ShuffleBN", "GN", "IN", "EMAN", "TeacherPN", "StudentPN", "MomentumBN")),
            "instead of the preset's"),
    Setting("FIXMATCH.TEACHER_GROUP", 0, Number(0, whole=True, unit="images", note="0: all of a process"),
            "weak views of one virtual process, with BN statistics of their own"),
    Setting("FIXMATCH.WEAK_BATCHES", [], Many(Number(2, whole=True, unit="images")),
            "sizes n: held-out weak views labelled with the statistics of batches of n, at the end"),
    Setting("FIXMATCH.STRONG_LEVELS", "", Choice(("", "eman", "uniform")),
            "instead of the preset's (lowshot/augment.py)"),
    Setting("FIXMATCH.STEPS", 0, Number(0, whole=True, unit="steps", note="0: the schedule's epochs"),
            "length of training"),
    Setting("FIXMATCH.EVAL_EVERY", 0, Number(0, whole=True, unit="steps", note="0: at the end only"),
            "steps between accuracies on the test set in metrics.jsonl"),
    Setting("FIXMATCH.UNLABELLED_RATIO", 0, Number(0, whole=True, note=_PRESET),
            "unlabelled images per labelled image"),
    Setting("FIXMATCH.WEIGHT", 0.0, Number(0, note=_PRESET), "weight of the unlabelled images' loss"),
    Setting("FIXMATCH.THRESHOLD", 0.0, Number(0, 1, note=_PRESET), "confidence from which a pseudo-label counts"),
    Setting("FIXMATCH.MOMENTUM", 0.0, Momentum(note=_PRESET), "momentum of the teacher"),
    Setting("FIXMATCH.BN_MOMENTUM", 0.0, Momentum(note=_PRESET), "momentum of BN's running statistics"),
    # 0 would keep the statistics of the first step for ever
    Setting("FIXMATCH.STATISTICS_MOMENTUM", -1.0,
            Momentum(frozen=False, negative="the preset's", note="1: copies the student's"),
            "momentum of EMAN's statistics"),
    Setting("MODEL.ARCH", "resnet50", ARCHITECTURE, "network of --weights scratch"),
    Setting("MODEL.WIDTH", 64, Number(1, 4096, whole=True, unit="channels"), "width of a ResNet's stem"),
    Setting("MODEL.STEM", "imagenet", Choice(("imagenet", "small")),
            "stem of a ResNet; small: for images of about 32 px"),
)  # fmt: skip


def get_cfg() -> CfgNode:
    """Defaults of every evaluation: ImageNet-size images, the protocols of the papers."""
    return add_defaults(CfgNode(), SETTINGS)


def check_settings(cfg: CfgNode) -> None:
    """InputError, with key and value, for what is wrong whatever the data."""
    from momentum_transfer.backbones.build import named_architecture  # imports torch, which takes seconds

    check(cfg, SETTINGS)
    named_architecture(cfg.MODEL.ARCH, cfg.MODEL.WIDTH, cfg.MODEL.STEM)
