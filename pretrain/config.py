"""Settings: fvcore CfgNode files with ``_BASE_``, merged onto typed defaults, every mistake named before any work.

``load_config`` serves all three rooms; ``get_cfg`` holds the defaults of pretraining.
"""

import difflib
from collections.abc import Iterator, Sequence
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import yaml
from fvcore.common.config import BASE_KEY, CfgNode

from pretrain.errors import InputError
from pretrain.files import sha256_of_text


def load_config(defaults: CfgNode, file: str | Path | None, overrides: Sequence[str] = ()) -> CfgNode:
    """Defaults, then the YAML ``file`` (and what its ``_BASE_`` names), then ``KEY VALUE`` pairs; frozen.

    Raises:
        InputError: the file is missing or no YAML mapping, a key is unknown (the nearest known key is named), or a
            value has another type than its default (a whole number is accepted where a float is expected).
    """
    cfg = defaults.clone()
    cfg.defrost()
    if file is not None:
        for key, value in _leaves(_read_yaml(Path(file)), defaults):
            _set(cfg, key, value, where=str(file))
    if len(overrides) % 2:
        raise InputError(
            f"expected KEY VALUE pairs after the options, found {len(overrides)} words: {' '.join(overrides)}; "
            "give every key one value, for example SOLVER.STEPS 100"
        )
    for key, value in zip(overrides[::2], overrides[1::2], strict=True):
        _set(cfg, key, value, where="command line")
    cfg.freeze()
    return cfg


def dump(cfg: CfgNode) -> str:
    """The whole configuration as YAML, keys in order: what a checkpoint stores."""
    return cfg.dump(sort_keys=True)


def config_hash(cfg: CfgNode) -> str:
    """Twelve hex digits that name a configuration in results."""
    return sha256_of_text(dump(cfg))[:12]


def value_of(cfg: CfgNode, key: str) -> Any:
    """The value, or the section, of a dotted key."""
    return reduce(getitem, key.split("."), cfg)


#: Settings of pretraining that change where and how long a run works, not a bit of what it learns: two parts of a run
#: may differ in them, and its hash leaves them out. What alters the arithmetic is not among them: RUN.PRECISION,
#: RUN.COMPILE, RUN.CHANNELS_LAST and RUN.DEVICE change the rounding, RUN.CALIBRATION_BATCHES the random baseline.
FREE_IN_PRETRAINING = ("OUTPUT_DIR", "DATA.ROOT", "DATA.WORKERS", "DATA.MAX_UNREADABLE", "RUN.CHECKPOINT_EVERY",
                       "RUN.KEEP", "RUN.LOG_EVERY", "RUN.KNN_EVERY", "RUN.KNN_SPLIT")  # fmt: skip


def learned_settings(text: str) -> dict[str, Any]:
    """Dotted key -> value of a pretraining configuration's YAML ``text``, without ``FREE_IN_PRETRAINING``.

    Raises:
        InputError: no YAML mapping of plain values; the text may come with a stranger's checkpoint, and aliases, which
            ``dump`` never writes, can unfold to any size.
    """
    try:
        aliased = any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, yaml.SafeLoader))
        tree = None if aliased else yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError):
        tree = None
    if not isinstance(tree, dict):
        raise InputError("expected the settings of a pretraining run as a YAML mapping, found other text")
    return {key: value for key, value in _flat(tree).items() if key not in FREE_IN_PRETRAINING}


def pretraining_hash(text: str) -> str:
    """Twelve hex digits of what a pretraining configuration, given as its YAML, teaches."""
    return sha256_of_text(repr(sorted(learned_settings(text).items())))[:12]


def _flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat = {}
    for key, value in tree.items():
        flat.update(_flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value})
    return flat


def _read_yaml(file: Path) -> dict[str, Any]:
    try:
        loaded = CfgNode.load_yaml_with_base(str(file))
    except FileNotFoundError as error:
        missing = error.filename or file
        hint = f" (named by {BASE_KEY} in {file})" if str(missing) != str(file) else ""
        raise InputError(f"config file not found: {missing}{hint}; see configs/ for the ones that ship") from error
    except (yaml.YAMLError, UnicodeDecodeError, IsADirectoryError, TypeError, AssertionError) as error:
        detail = " ".join(str(error).split())
        raise InputError(f"expected a YAML mapping in {file}, but it cannot be read: {detail}") from error
    if not isinstance(loaded, dict):
        raise InputError(f"expected a YAML mapping of settings in {file}, found {type(loaded).__name__}")
    return loaded


def _leaves(tree: dict[str, Any], defaults: CfgNode, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Pairs (dotted key, value). A mapping is a value itself only where the default is no section."""
    for key, value in tree.items():
        section = defaults.get(key) if isinstance(defaults, CfgNode) else None
        if isinstance(value, dict) and (isinstance(section, CfgNode) or section is None):
            yield from _leaves(value, section if section is not None else CfgNode(), f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _set(cfg: CfgNode, key: str, value: Any, where: str) -> None:
    *sections, last = key.split(".")
    node: Any = cfg
    for section in sections:
        node = node.get(section) if isinstance(node, CfgNode) else None
    if not isinstance(node, CfgNode) or last not in node:
        known = list(_keys(cfg))
        near = difflib.get_close_matches(key, known, n=1, cutoff=0.5) or difflib.get_close_matches(
            key.upper(), known, n=1, cutoff=0.0
        )
        raise InputError(f"unknown config key {key} ({where}); the nearest known key is {near[0]}")
    if isinstance(node[last], CfgNode):
        raise InputError(f"{key} ({where}) is a section, not a setting; set one of its keys: {', '.join(node[last])}")
    node[last] = _coerce(key, CfgNode._decode_cfg_value(value), node[last], where)


def _keys(cfg: CfgNode, prefix: str = "") -> Iterator[str]:
    for key, value in cfg.items():
        if isinstance(value, CfgNode):
            yield from _keys(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}"


def _coerce(key: str, value: Any, default: Any, where: str) -> Any:
    if default is None or (value is None and not isinstance(default, (bool, int, float, str))):
        return value
    if isinstance(default, float) and type(value) is int:
        return float(value)
    if isinstance(default, str) and type(value) in (int, float):
        return str(value)  # a name such as "10" on the command line
    if isinstance(default, (list, tuple)) and isinstance(value, (list, tuple)):
        return type(default)(value)
    if type(value) is type(default):
        return value
    raise InputError(
        f"config key {key} ({where}) expects {type(default).__name__} (default {default!r}), "
        f"found {type(value).__name__} {value!r}"
    )


def get_cfg() -> CfgNode:
    """The defaults of pretraining: Momentum² Teacher, ResNet-50, 100 epochs of ImageNet on one machine."""
    cfg = CfgNode()
    cfg.OUTPUT_DIR = "outputs/pretrain"
    cfg.SEED = 0
    cfg.METHOD = CfgNode({"NAME": "momentum2"})  # momentum2, byol, moco, simsiam, supervised, random
    cfg.MODEL = CfgNode({"ARCH": "resnet50", "WIDTH": 64, "STEM": "imagenet"})
    _add_head_and_teacher(cfg)
    _add_data(cfg)
    _add_solver(cfg)
    _add_run(cfg)
    return cfg


def _add_head_and_teacher(cfg: CfgNode) -> None:
    cfg.HEAD = CfgNode()
    cfg.HEAD.HIDDEN = 4096
    cfg.HEAD.OUTPUT = 256
    cfg.HEAD.PREDICTOR_HIDDEN = 0  # 0: as HIDDEN
    cfg.HEAD.PROJECTOR_NORM = True  # MoCo v2: False
    # Every momentum is the weight of the new value: RCF's and EMAN's .99 is .01 here.
    cfg.TEACHER = CfgNode()
    cfg.TEACHER.MOMENTUM_BASE = 0.01
    cfg.TEACHER.MOMENTUM_SCHEDULE = "cosine"  # to 0; or constant
    cfg.TEACHER.SCALE_MOMENTUM = False  # the equivalence rule: MOMENTUM_BASE holds at SOLVER.BASE_BATCH_SIZE
    cfg.TEACHER.MOVES = "before"  # the forwards (Momentum²), or after the optimiser step (BYOL, MoCo v2+)
    cfg.NORM = CfgNode()
    cfg.NORM.STUDENT = "BN"  # SyncBN, GN, IN, MomentumBN
    cfg.NORM.TEACHER = "MomentumBN"  # BN, SyncBN, ShuffleBN, GN, IN, EMAN, TeacherPN, StudentPN
    cfg.NORM.STUDENT_MOMENTUM = 0.1  # of running statistics
    cfg.NORM.STATISTICS_MOMENTUM = -1.0  # EMAN's own; below 0: that of the parameters
    cfg.NORM.PROXY_MOMENTUM = 0.1  # of TeacherPN
    cfg.NORM.ALPHA_BASE = 1.0  # Momentum BN's weight of the batch
    cfg.NORM.ALPHA_SCHEDULE = "cosine"  # to 0; or constant
    cfg.NORM.POLICY = "local"  # Momentum BN histories of several processes: local, broadcast, reduce
    cfg.MOCO = CfgNode()
    cfg.MOCO.QUEUE = 65536
    cfg.MOCO.TEMPERATURE = 0.2
    cfg.MOCO.SYMMETRIC = False
    cfg.MOCO.PREDICTOR = False
    cfg.MOCO.TEACHER_PREDICTOR = False


def _add_data(cfg: CfgNode) -> None:
    cfg.DATA = CfgNode()
    cfg.DATA.NAME = "imagefolder"
    cfg.DATA.ROOT = ""
    cfg.DATA.SPLIT = "train"
    cfg.DATA.FILE_LIST = ""
    cfg.DATA.IMAGE_SIZE = 224
    cfg.DATA.VARIANT = "placed"  # of digits
    cfg.DATA.CLASS_FRACTION = 1.0
    cfg.DATA.SAMPLE_FRACTION = 1.0
    cfg.DATA.LONG_TAIL = 1.0
    cfg.DATA.TAXONOMY = ""
    cfg.DATA.STRETCH_EPOCHS = False  # a subset is trained for the iterations of the whole
    cfg.DATA.MAX_UNREADABLE = 100
    cfg.DATA.VIEWS = "byol"  # rcf, mocov2, eman_byol, digits
    cfg.DATA.REMOVE = []  # of a recipe: solarize, blur, grayscale, color_jitter
    cfg.DATA.CROP_SCALE = []  # in the place of the recipe's
    cfg.DATA.VIEWS_ON = "workers"  # CPU workers; device: a whole batch in one pass
    cfg.DATA.CANVAS = 0  # side of the images sent to the device; 0: twice IMAGE_SIZE
    cfg.DATA.WORKERS = 8


def _add_solver(cfg: CfgNode) -> None:
    cfg.SOLVER = CfgNode()
    cfg.SOLVER.OPTIMIZER = "sgd"  # lars, adamw
    cfg.SOLVER.BATCH_SIZE = 256  # of all processes and micro-batches together
    cfg.SOLVER.ACCUMULATE = 1  # micro-batches a step
    cfg.SOLVER.EPOCHS = 100
    cfg.SOLVER.STEPS = 0  # above 0: in the place of EPOCHS
    cfg.SOLVER.BASE_LR = 0.05  # at BASE_BATCH_SIZE; scaled linearly to BATCH_SIZE
    cfg.SOLVER.BASE_BATCH_SIZE = 256
    cfg.SOLVER.SCHEDULE = "cosine"  # step
    cfg.SOLVER.MILESTONES = [0.6, 0.8]  # of the run, for step
    cfg.SOLVER.GAMMA = 0.1
    cfg.SOLVER.WARMUP_EPOCHS = 10.0
    cfg.SOLVER.WARMUP_FACTOR = 0.001
    cfg.SOLVER.FIXED_PREDICTOR_LR = False  # SimSiam
    cfg.SOLVER.MOMENTUM = 0.9
    cfg.SOLVER.WEIGHT_DECAY = 0.0001
    cfg.SOLVER.ETA = 0.001  # of LARS


def _add_run(cfg: CfgNode) -> None:
    """Settings that do not change what is learned, apart from rounding."""
    cfg.RUN = CfgNode()
    cfg.RUN.DEVICE = "auto"  # cuda where there is one, else cpu
    cfg.RUN.PRECISION = "float32"  # bf16, fp16: autocast
    cfg.RUN.CHANNELS_LAST = False
    cfg.RUN.COMPILE = False
    cfg.RUN.CHECKPOINT_EVERY = 1000  # steps
    cfg.RUN.KEEP = 2  # checkpoints
    cfg.RUN.LOG_EVERY = 10  # steps
    cfg.RUN.KNN_EVERY = 0.0  # epochs between kNN scores on the held-out split; 0: never
    cfg.RUN.KNN_SPLIT = "val"
    cfg.RUN.CALIBRATION_BATCHES = 20  # of the random baseline
