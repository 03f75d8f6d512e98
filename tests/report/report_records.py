"""Fixed records for the tests of the report."""

from momentum_transfer.core.records import make_record


def record(name: str, task: str, metric: str, value: float, trial: int = 0, **more) -> dict:
    details = {"protocol": "imagenet/heldout", "dataset": "digits", "engine": "scikit-learn", **more}
    return make_record(task, metric, value, checkpoint={"name": name, "sha256": "ab" * 32}, trial=trial, **details)


def small_records() -> list[dict]:
    """Two checkpoints, low-shot with three trials and a detector with one trial."""
    records = []
    for name, start in (("momentum2_digits", 60.0), ("random_digits", 10.0)):
        for k in (1, 4):
            records += [record(name, f"svm/k={k}", "top1", start + k + d, trial=i) for i, d in enumerate((-1, 0, 1))]
        for metric, value in (("AP", start / 2), ("AP50", start / 1.5)):
            more = {"protocol": "mask_rcnn_fpn_1x", "dataset": "coco_2017_val", "engine": "torchvision"}
            more["data"] = {"images": 5000, "classes": 80}
            records.append(record(name, "coco/bbox", metric, value, **more))
    return records
