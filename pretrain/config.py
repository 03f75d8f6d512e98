"""Settings of pretraining: one table for defaults, checks, documentation and what a run's hash counts.

The upper ends of ranges catch slips of the keyboard, not large machines.
"""

from collections.abc import Iterator

from fvcore.common.config import CfgNode

from momentum_transfer.core.ranges import (
    ANY_PATH,
    ARCHITECTURE,
    BACKEND,
    DEVICE,
    FRACTION,
    MOMENTUM,
    PATH,
    POSITIVE,
    SEED,
    SWITCH,
    TRAINABLE,
    UNIT,
    Choice,
    Many,
    Momentum,
    Number,
    Setting,
    Words,
    add_defaults,
    check,
    refuse,
    table,
)
from momentum_transfer.core.settings import FREE_IN_PRETRAINING

#: Methods whose student has a teacher that follows it.
WITH_TEACHER = ("momentum2", "byol", "moco")
_MANY = 2**31 - 1
_MILESTONE = Number(0, 1, above=True, below=True, note="fractions of the run: divide epochs by SOLVER.EPOCHS")


def _count(high: int, unit: str, low: int = 1, note: str = "") -> Number:
    return Number(low, high, whole=True, unit=unit, note=note)


#: Every momentum of TEACHER and NORM is the weight of the new value: RCF's and EMAN's .99 is .01 here.
SETTINGS = table(
    Setting("OUTPUT_DIR", "outputs/pretrain", PATH, "folder of the run; outputs/NAME for a config that ships"),
    Setting("SEED", 0, SEED, "seed of weights, order of images and views"),
    Setting("METHOD.NAME", "momentum2", Choice(("momentum2", "byol", "moco", "simsiam", "supervised", "random")),
            "random: no training, only BN statistics"),
    Setting("MODEL.ARCH", "resnet50", ARCHITECTURE, "backbone"),
    Setting("MODEL.WIDTH", 64, _count(4096, "channels"), "width of a ResNet's stem"),
    Setting("MODEL.STEM", "imagenet", Choice(("imagenet", "small")),
            "stem of a ResNet; small: for images of about 32 px"),
    Setting("MODEL.WEIGHTS", "", ANY_PATH, "weights that student and teacher start from, any that convert reads"),
    Setting("MODEL.WEIGHTS_SHA256", "", Words(r"([0-9a-f]{64})?", "as 64 hexadecimal digits, or ''"),
            "digest of MODEL.WEIGHTS, filled in by the run; given, the weights must have it"),
    Setting("MODEL.TRAINABLE", "all", TRAINABLE, "part of the backbone that a start from weights trains"),
    Setting("HEAD.HIDDEN", 4096, _count(2**20, "units"), "hidden units of the projector"),
    Setting("HEAD.OUTPUT", 256, _count(2**20, "units"), "outputs of projector and predictor"),
    Setting("HEAD.PREDICTOR_HIDDEN", 0, _count(2**20, "units", low=0, note="0: as HEAD.HIDDEN"),
            "hidden units of the predictor"),
    Setting("HEAD.PROJECTOR_NORM", True, SWITCH, "normalise in the projector; MoCo v2: False"),
    Setting("TEACHER.MOMENTUM_BASE", 0.01, MOMENTUM, "momentum of the teacher's parameters at the start"),
    Setting("TEACHER.MOMENTUM_SCHEDULE", "cosine", Choice(("cosine", "constant")), "cosine: to 0"),
    Setting("TEACHER.SCALE_MOMENTUM", False, SWITCH,
            "the equivalence rule: MOMENTUM_BASE holds at SOLVER.BASE_BATCH_SIZE"),
    Setting("TEACHER.MOVES", "before", Choice(("before", "after")),
            "before the forward passes (Momentum²), or after the optimizer's step (BYOL, MoCo v2+)"),
    Setting("NORM.STUDENT", "BN", Choice(("BN", "SyncBN", "GN", "IN", "MomentumBN")), "normalisation of the student"),
    Setting("NORM.TEACHER", "MomentumBN",
            Choice(("BN", "SyncBN", "ShuffleBN", "GN", "IN", "EMAN", "TeacherPN", "StudentPN", "MomentumBN")),
            "normalisation of the teacher"),
    Setting("NORM.STUDENT_MOMENTUM", 0.1, MOMENTUM, "momentum of BN's running statistics"),
    Setting("NORM.WEIGHTS_STATISTICS", "moving", Choice(("moving", "estimated", "frozen")),
            "BN of a start from weights: moving: from the weights' statistics on; estimated: from those of "
            "RUN.CALIBRATION_BATCHES batches of the new images on; frozen: the weights' normalise throughout"),
    Setting("NORM.STATISTICS_MOMENTUM", -1.0, Momentum(negative="that of the parameters"),
            "momentum of EMAN's statistics"),
    Setting("NORM.PROXY_MOMENTUM", 0.1, MOMENTUM, "momentum of TeacherPN's history"),
    Setting("NORM.ALPHA_BASE", 1.0, Number(0, 1, note="the weight of the batch"), "alpha of Momentum BN at the start"),
    Setting("NORM.ALPHA_SCHEDULE", "cosine", Choice(("cosine", "constant")), "cosine: to 0"),
    Setting("NORM.HISTORY", "lazy", Choice(("lazy", "eager")),
            "Momentum BN's history moves once for a pair of views (lazy, the method), or with each view (eager)"),
    Setting("NORM.GROUP_SIZE", 0, _count(2**24, "images", low=0, note="0: the whole batch"),
            "images of one virtual process: BN sees groups of this size within a batch"),
    Setting("NORM.POLICY", "local", Choice(("local", "broadcast", "reduce")),
            "what several processes do with their Momentum BN histories"),
    Setting("MOCO.QUEUE", 65536, _count(2**26, "keys"), "length of the queue"),
    Setting("MOCO.TEMPERATURE", 0.2, POSITIVE, "temperature of the InfoNCE loss"),
    Setting("MOCO.SYMMETRIC", False, SWITCH, "each view is once the query and once the key"),
    Setting("MOCO.PREDICTOR", False, SWITCH, "the student has a predictor"),
    Setting("MOCO.TEACHER_PREDICTOR", False, SWITCH,
            "the teacher has a copy of the predictor, which follows the student's"),
    Setting("DATA.NAME", "imagefolder",
            Choice(("digits", "images", "imagefolder", "filelist", "stl10", "cifar10", "cifar100", "mnist",
                    "fashion-mnist", "kmnist", "inaturalist")),
            "data set; images: all below DATA.ROOT, without labels"),
    Setting("DATA.ROOT", "", ANY_PATH, "folder of the data set"),
    Setting("DATA.SPLIT", "train", PATH, "part of the data set that trains"),
    Setting("DATA.FILE_LIST", "", ANY_PATH, "DATA.NAME filelist: a file of `path label` lines"),
    Setting("DATA.IMAGE_SIZE", 224, _count(2**13, "px"), "side of a view"),
    Setting("DATA.VARIANT", "placed", Choice(("placed", "written", "strokes")), "how digits are rendered"),
    Setting("DATA.CLASS_FRACTION", 1.0, FRACTION, "fraction of the classes that is kept"),
    Setting("DATA.SAMPLE_FRACTION", 1.0, FRACTION, "fraction of each class's images that is kept"),
    Setting("DATA.LONG_TAIL", 1.0, FRACTION, "fraction of its images that the rarest class keeps"),
    Setting("DATA.TAXONOMY", "", ANY_PATH, "file of coarse classes, for supervised pretraining"),
    Setting("DATA.STRETCH_EPOCHS", False, SWITCH, "train a subset for as many iterations as the whole set"),
    Setting("DATA.MAX_UNREADABLE", 100, _count(_MANY, "images", low=0),
            "unreadable images that are replaced before the run ends with an error"),
    Setting("DATA.VIEWS", "byol", Choice(("byol", "rcf", "mocov2", "eman_byol", "digits")), "augmentation recipe"),
    Setting("DATA.REMOVE", [], Many(Choice(("solarize", "blur", "grayscale", "color_jitter"))),
            "augmentations left out of the recipe"),
    Setting("DATA.CROP_SCALE", [], Many(FRACTION, lengths=(0, 2)), "crop scale [low, high] instead of the recipe's"),
    Setting("DATA.VIEWS_ON", "workers", Choice(("workers", "device", "auto")),
            "workers: on CPUs; device: a whole batch in one pass; auto: the faster, by a measurement"),
    Setting("DATA.BACKEND", "pillow", BACKEND,
            "what makes views on CPUs: pillow, as the papers; opencv: the same random numbers, several times faster"),
    Setting("DATA.CANVAS", 0, _count(2**14, "px", low=0, note="0: twice DATA.IMAGE_SIZE"),
            "side of the images sent to the device"),
    Setting("DATA.WORKERS", -1, _count(1024, "processes", low=-1, note="-1: measured in the first steps"),
            "processes that read images"),
    Setting("DATA.MEMORY_FRACTION", 0.25, Number(0, 1, note="of the free memory"),
            "memory for decoded images; 0: files are read each time"),
    Setting("SOLVER.OPTIMIZER", "sgd", Choice(("sgd", "lars", "adamw")), "optimizer"),
    Setting("SOLVER.BATCH_SIZE", 256, _count(2**24, "images"), "batch of all processes and micro-batches together"),
    Setting("SOLVER.ACCUMULATE", 1, _count(2**24, "micro-batches"), "micro-batches per step"),
    Setting("SOLVER.EPOCHS", 100, _count(_MANY, "epochs"), "length of the run"),
    Setting("SOLVER.STEPS", 0, _count(_MANY, "steps", low=0, note="0: SOLVER.EPOCHS count"), "length of the run"),
    Setting("SOLVER.BASE_LR", 0.05, POSITIVE, "learning rate at BASE_BATCH_SIZE; scaled linearly to BATCH_SIZE"),
    Setting("SOLVER.BASE_BATCH_SIZE", 256, _count(2**24, "images"), "batch size that BASE_LR is given for"),
    Setting("SOLVER.SCHEDULE", "cosine", Choice(("cosine", "step")), "schedule of the learning rate"),
    Setting("SOLVER.MILESTONES", [0.6, 0.8], Many(_MILESTONE, ascending=True), "where SCHEDULE step lowers the rate"),
    Setting("SOLVER.GAMMA", 0.1, UNIT, "factor of the rate at a milestone"),
    Setting("SOLVER.WARMUP_EPOCHS", 10.0, Number(0, 1e9, unit="epochs"), "linear warm-up"),
    Setting("SOLVER.WARMUP_FACTOR", 0.001, UNIT, "factor of the rate at the first step"),
    Setting("SOLVER.LAYER_DECAY", 0.8, Number(0, 1, above=True),
            "factor of the rate from each layer to the one below it, in a start from weights; 1: all alike"),
    Setting("SOLVER.HEAD_WARMUP", 0.0, Number(0, 1, below=True, note="of the run"),
            "fraction in which only the new heads are trained, in a start from weights"),
    Setting("SOLVER.FIXED_PREDICTOR_LR", False, SWITCH, "the predictor's rate does not fall (SimSiam)"),
    Setting("SOLVER.MOMENTUM", 0.9, Number(0, 1, note="of the gradients that came before, as in torch's SGD"),
            "momentum of SGD and LARS"),
    Setting("SOLVER.WEIGHT_DECAY", 0.0001, Number(0, 1e9), "weight decay"),
    Setting("SOLVER.ETA", 0.001, POSITIVE, "LARS's trust coefficient"),
    Setting("RUN.DEVICE", "auto", DEVICE, "auto: cuda where there is one, else cpu"),
    Setting("RUN.MINUTES", 0.0, Number(0, 1e6, unit="minutes", note="0: SOLVER's length"),
            "budget from which sizes, batch and steps follow, unless they are given"),
    Setting("RUN.PRECISION", "float32", Choice(("float32", "bf16", "fp16")),
            "bf16, fp16: autocast; float32: GPUs convolve in TF32, as PyTorch does by default"),
    Setting("RUN.CHANNELS_LAST", False, SWITCH, "memory layout of images and convolutions"),
    Setting("RUN.COMPILE", False, SWITCH, "torch.compile"),
    Setting("RUN.CHECKPOINT_EVERY", 1000, _count(_MANY, "steps"), "steps between checkpoints"),
    Setting("RUN.KEEP", 2, _count(_MANY, "checkpoints"), "checkpoints that stay on disk"),
    Setting("RUN.LOG_EVERY", 10, _count(_MANY, "steps"), "steps between lines of metrics.jsonl"),
    Setting("RUN.EXPORT_EVERY", 0.0, Number(0, 1e9, unit="epochs", note="0: the last backbone only"),
            "epochs between backbones kept in OUTPUT_DIR/exports"),
    Setting("RUN.KNN_EVERY", 0.0, Number(0, 1e9, unit="epochs", note="0: never"),
            "epochs between kNN scores on the held-out split"),
    Setting("RUN.KNN_SPLIT", "val", PATH, "held-out split of the kNN scores"),
    Setting("RUN.CALIBRATION_BATCHES", 20, _count(_MANY, "batches"),
            "batches that give the random baseline, or NORM.WEIGHTS_STATISTICS estimated, its statistics"),
    free=FREE_IN_PRETRAINING,
)  # fmt: skip


def get_cfg() -> CfgNode:
    """The defaults of pretraining: Momentum² Teacher, ResNet-50, 100 epochs of ImageNet on one machine."""
    return add_defaults(CfgNode(), SETTINGS)


def norms(cfg: CfgNode) -> set[str]:
    """Names of the normalisations that a run has: the student's, and the teacher's where the method has one."""
    return {cfg.NORM.STUDENT, cfg.NORM.TEACHER if cfg.METHOD.NAME in WITH_TEACHER else cfg.NORM.STUDENT}


def norms_of_own_batch(cfg: CfgNode) -> list[str]:
    """Norms whose batch statistics depend on the number of processes; NORM.GROUP_SIZE fixes how many they see."""
    from momentum_transfer.backbones.norms import OWN_BATCH  # imports torch, which takes seconds, as below

    return sorted(norms(cfg).intersection(OWN_BATCH)) if cfg.METHOD.NAME != "random" else []


def check_settings(cfg: CfgNode) -> None:
    """Check all that can be checked without data.

    Raises:
        InputError: names the key, its value and what would be right.
    """
    from momentum_transfer.backbones.build import named_architecture
    from momentum_transfer.backbones.norms import check_norms
    from momentum_transfer.core.devices import check_device

    check(cfg, SETTINGS)
    named_architecture(cfg.MODEL.ARCH, cfg.MODEL.WIDTH, cfg.MODEL.STEM)
    check_device(cfg.RUN.DEVICE, "RUN.DEVICE")
    check_norms(cfg.NORM.STUDENT, cfg.NORM.TEACHER if cfg.METHOD.NAME in WITH_TEACHER else None)
    refuse(_contradictions(cfg))


def _contradictions(cfg: CfgNode) -> Iterator[str]:
    crop, moco = cfg.DATA.CROP_SCALE, cfg.MOCO
    if crop and crop[0] > crop[1]:
        yield f"expected DATA.CROP_SCALE [low, high], found {list(crop)}"
    micro, rest = divmod(cfg.SOLVER.BATCH_SIZE, cfg.SOLVER.ACCUMULATE)
    if cfg.NORM.GROUP_SIZE and not rest and micro % cfg.NORM.GROUP_SIZE:
        yield (
            f"expected NORM.GROUP_SIZE to divide a micro-batch of {micro} images, found {cfg.NORM.GROUP_SIZE}; give "
            f"NORM.GROUP_SIZE {micro}, or another batch"
        )
    if cfg.DATA.NAME == "images" and cfg.METHOD.NAME == "supervised":
        yield "expected a method without labels with DATA.NAME images, found supervised; take DATA.NAME imagefolder"
    if cfg.MODEL.WEIGHTS and cfg.METHOD.NAME == "random":
        yield "expected no weights with METHOD.NAME random, whose network is random, found some; leave --weights out"
    if cfg.MODEL.TRAINABLE.startswith(("frozen", "lora")):
        yield (
            f"expected MODEL.TRAINABLE of all, last-K, norms in pretraining, found {cfg.MODEL.TRAINABLE}: the teacher "
            "follows trained weights of the student's own; choose one of these"
        )
    if cfg.MODEL.WEIGHTS and cfg.NORM.STUDENT in ("GN", "IN"):
        yield (
            f"expected NORM.STUDENT of BN, SyncBN, MomentumBN with weights, found {cfg.NORM.STUDENT}: another function "
            "than the weights were trained as; choose one of these"
        )
    if cfg.METHOD.NAME == "moco" and moco.TEACHER_PREDICTOR and not moco.PREDICTOR:
        yield "expected MOCO.PREDICTOR True under MOCO.TEACHER_PREDICTOR, found False: the teacher's is a copy of it"
