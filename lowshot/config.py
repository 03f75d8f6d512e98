"""Settings of the few-label evaluations: typed defaults, the base of configs/lowshot and of the smoke files."""

from fvcore.common.config import CfgNode

#: Names of the evaluations: of features (evaluations.py), and those that train on images (image_evaluations.py).
EVALUATIONS = ("knn", "retrieval", "svm", "diagnostics", "linear", "finetune", "fixmatch")


def get_cfg() -> CfgNode:
    """Defaults of every evaluation: ImageNet-size images, the protocols of the papers."""
    cfg = CfgNode()
    cfg.OUTPUT_DIR = "outputs/lowshot"
    cfg.SEED = 0
    cfg.DATASETS = _datasets()
    cfg.INPUT = CfgNode({"IMAGE_SIZE": 224})  # of ResNets; a network of timm takes its own size (?img_size=N)
    cfg.FEATURES = _features()
    cfg.SEARCH = CfgNode()  # of kNN and retrieval
    cfg.SEARCH.PRECISION = "fp32"  # or bf16: meant for GPUs, the same neighbours (slower on CPUs)
    cfg.SEARCH.QUERY_CHUNK = 1024
    cfg.SEARCH.DATABASE_CHUNK = 16384
    cfg.KNN = CfgNode()
    cfg.KNN.PRESETS = ["eman", "dino"]  # or majority-K, weighted-K; lowshot/knn.py says what they are
    cfg.RETRIEVAL = CfgNode({"TOP": 1000})  # neighbours that count; at most the size of the training set
    cfg.SVM = _svm()
    cfg.LINEAR = _training("eman")
    cfg.LINEAR.CACHED = False  # classifiers on stored features, no augmentation: seconds, other numbers
    cfg.FINETUNE = _training("eman")
    cfg.FINETUNE.FRACTION = 0.01
    cfg.FIXMATCH = _fixmatch()
    # of --weights scratch: a ResNet of a width and a stem, or timm:NAME
    cfg.MODEL = CfgNode({"ARCH": "resnet50", "WIDTH": 64, "STEM": "imagenet"})
    return cfg


def _datasets() -> CfgNode:
    node = CfgNode()
    node.NAME = "imagefolder"  # a name that momentum_transfer.images.datasets knows, or voc07
    node.ROOT = ""
    node.TRAIN = "train"
    node.TEST = "val"
    node.TRAIN_LIST = ""  # of NAME filelist: a file of `path label` lines
    node.TEST_LIST = ""
    node.SPLIT = 0.0  # above 0: this share of TRAIN's images trains and the rest tests, stratified, by SEED below
    node.TITLE = ""  # what records call the test set; "": the folder's name, or NAME and TEST
    node.VARIANT = "placed"  # of the digits' drawings
    node.DRAWINGS = 1  # of each digit that tests
    node.SEED = 0  # of the digits' drawings
    node.LONG_TAIL = 1.0  # of the training set: the rarest class keeps this share (CIFAR-LT: 0.01)
    return node


def _features() -> CfgNode:
    node = CfgNode()
    node.LAYER = "pooled"  # or res2, res3, res4, res5: that stage's map, averaged over positions
    # as the network pools by itself; of a ViT also cls, patch_mean, cls+patch_mean, last-N-blocks
    node.POOL = "pooled"
    node.PRECISION = "bf16"  # autocast; or fp32
    node.BATCH_SIZE = 256
    node.WORKERS = 4
    node.CACHE = ""  # "" means the features folder of the cache root
    return node


def _svm() -> CfgNode:
    node = CfgNode()
    node.PROTOCOL = "imagenet"  # or voc07, voc07-sklearn, inaturalist, own: see lowshot/svm/lowshot_svm.py
    node.SHOTS = [1, 2, 4, 8, 16]  # labelled images per class
    node.DRAWS = 5
    node.COSTS = [2.0**power for power in range(-5, 6)]
    node.SELECT_C = "heldout"  # or test, the papers' habit: the best C in the mean over draws
    node.HELD_OUT_PER_CLASS = 20  # images that choose C; never fitted, never tested
    node.CLASS_WEIGHTS = ""  # instead of the protocol's: plain (1), vissl (positives weigh 2)
    node.VOC_SHOTS = "pcl"  # drawn images with all their labels; or vissl: k positives, sampled negatives
    node.SOLVER = "batched"  # or liblinear, the reference: the same problem, slower
    return node


def _training(preset: str) -> CfgNode:
    """What linear, finetune and fixmatch share. The presets are in lowshot/presets.py."""
    node = CfgNode()
    node.PRESET = preset
    node.FRACTION = 1.0  # of the labels, balanced over classes
    node.SPLIT_FILE = ""  # a list of image names, such as SimCLR's 1percent.txt, that is FRACTION of all
    node.TRIALS = 1  # seeds SEED, SEED + 1, …: another part of the labels and another start each
    node.LEARNING_RATES = []  # [] means the preset's; for the preset's batch size, scaled with the batch
    node.EPOCHS = 0.0  # 0 means the preset's; milestones and warm-up keep their share
    node.BATCH_SIZE = 0  # 0 means the preset's
    node.WORKERS = 4
    return node


def _fixmatch() -> CfgNode:
    node = _training("eman")
    node.FRACTION = 0.1
    node.SCHEDULE = "1x"  # or 3x
    node.STUDENT_NORM = ""  # instead of the preset's: BN, SyncBN, GN, IN
    node.TEACHER_NORM = ""  # instead of the preset's: a teacher's normalisation of pretrain/norms/__init__.py
    node.TEACHER_GROUP = 0  # weak views of one virtual process, with BN statistics of its own; 0: all of a process
    node.WEAK_BATCHES = []  # sizes n: held-out weak views labelled with the statistics of batches of n, at the end
    node.STRONG_LEVELS = ""  # instead of the preset's: eman, uniform (lowshot/augment.py)
    node.STEPS = 0  # instead of the schedule's epochs
    node.EVAL_EVERY = 0  # steps between accuracies on the test set in metrics.jsonl; 0: at the end only
    # 0 means the preset's in the next five, and -1 in the last
    node.UNLABELLED_RATIO = 0
    node.WEIGHT = 0.0
    node.THRESHOLD = 0.0
    # Every momentum is the weight of the new value: EMAN's .999 is 0.001.
    node.MOMENTUM = 0.0  # of the teacher
    node.BN_MOMENTUM = 0.0  # of running statistics
    node.STATISTICS_MOMENTUM = -1.0  # of EMAN's statistics; 1 copies the student's
    return node
