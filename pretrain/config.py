"""Settings of pretraining: the defaults."""

from fvcore.common.config import CfgNode


def get_cfg() -> CfgNode:
    """The defaults of pretraining: Momentum² Teacher, ResNet-50, 100 epochs of ImageNet on one machine."""
    cfg = CfgNode()
    cfg.OUTPUT_DIR = "outputs/pretrain"
    cfg.SEED = 0
    cfg.METHOD = CfgNode({"NAME": "momentum2"})  # momentum2, byol, moco, simsiam, supervised, random
    cfg.MODEL = CfgNode({"ARCH": "resnet50", "WIDTH": 64, "STEM": "imagenet"})  # the last two of ResNets; or timm:NAME
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
    # Every momentum is the weight of the new value: RCF's and EMAN's .99 is .01 here. (SOLVER.MOMENTUM is SGD's own.)
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
    cfg.NORM.GROUP = 0  # images of one virtual process: BN in groups of so many within a batch; 0: the whole batch
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
    cfg.DATA.VIEWS_ON = "workers"  # CPU workers; device: a whole batch in one pass; auto: the faster, by a measurement
    cfg.DATA.CANVAS = 0  # side of the images sent to the device; 0: twice IMAGE_SIZE
    cfg.DATA.WORKERS = -1  # processes that read images; -1: as many as the first steps show to be fastest
    cfg.DATA.MEMORY_SHARE = 0.25  # of the free memory that decoded images may take; 0: files are read each time


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
    cfg.RUN.DEVICE = "auto"  # cuda where there is one, else cpu; or cuda, cuda:N, cpu
    cfg.RUN.PRECISION = "float32"  # bf16, fp16: autocast
    cfg.RUN.CHANNELS_LAST = False
    cfg.RUN.COMPILE = False
    cfg.RUN.CHECKPOINT_EVERY = 1000  # steps
    cfg.RUN.KEEP = 2  # checkpoints
    cfg.RUN.LOG_EVERY = 10  # steps
    cfg.RUN.EXPORT_EVERY = 0.0  # epochs between backbones kept in OUTPUT_DIR/exports; 0: the last one only
    cfg.RUN.KNN_EVERY = 0.0  # epochs between kNN scores on the held-out split; 0: never
    cfg.RUN.KNN_SPLIT = "val"
    cfg.RUN.CALIBRATION_BATCHES = 20  # of the random baseline
