"""Settings of the few-label evaluations: typed defaults, the base of configs/lowshot and of the smoke files."""

from fvcore.common.config import CfgNode


def get_cfg() -> CfgNode:
    """Defaults of every evaluation: ImageNet-size images, the protocols of the papers."""
    cfg = CfgNode()
    cfg.OUTPUT_DIR = "outputs/lowshot"
    cfg.SEED = 0

    cfg.DATASETS = CfgNode()
    cfg.DATASETS.NAME = "imagefolder"  # a name that pretrain.images knows
    cfg.DATASETS.ROOT = ""
    cfg.DATASETS.TRAIN = "train"
    cfg.DATASETS.TEST = "val"
    cfg.DATASETS.TITLE = ""  # what records call the test set; "" means NAME and TEST
    cfg.DATASETS.VARIANT = "placed"  # of the digits' drawings
    cfg.DATASETS.SEED = 0  # of the digits' drawings

    cfg.INPUT = CfgNode({"IMAGE_SIZE": 224})

    cfg.FEATURES = CfgNode()
    cfg.FEATURES.LAYER = "pooled"  # or res2, res3, res4, res5: that stage's map, averaged over positions
    cfg.FEATURES.PRECISION = "bf16"  # autocast; or fp32
    cfg.FEATURES.BATCH_SIZE = 256
    cfg.FEATURES.WORKERS = 4
    cfg.FEATURES.CACHE = ""  # "" means the features folder of the cache root

    cfg.KNN = CfgNode()
    cfg.KNN.PRESETS = ["eman", "dino"]  # lowshot/knn.py says what they are

    cfg.RETRIEVAL = CfgNode({"TOP": 1000})  # neighbours that count; at most the size of the training set

    cfg.SEARCH = CfgNode()  # of kNN and retrieval
    cfg.SEARCH.PRECISION = "fp32"  # or bf16: faster on large databases, the same neighbours
    cfg.SEARCH.QUERY_CHUNK = 1024
    cfg.SEARCH.DATABASE_CHUNK = 16384

    cfg.SVM = CfgNode()
    cfg.SVM.PROTOCOL = "imagenet"  # or voc07, inaturalist: lowshot/svm.py says what they are
    cfg.SVM.SHOTS = [1, 2, 4, 8, 16]  # labelled images per class
    cfg.SVM.DRAWS = 5
    cfg.SVM.COSTS = [2.0**power for power in range(-5, 6)]
    cfg.SVM.SELECT_C = "heldout"  # or test, as the papers did
    cfg.SVM.HELD_OUT_PER_CLASS = 20  # images that choose C; never fitted, never tested
    cfg.SVM.SOLVER = "batched"  # or liblinear, the reference: the same problem, slower
    return cfg
