from dataclasses import replace

import numpy as np

from momentum_transfer.backbones.resnet import Architecture
from momentum_transfer.lowshot.config import get_cfg
from momentum_transfer.lowshot.identity import Score, Subject, about_network, settings_hash


def test_where_and_how_an_evaluation_works_is_no_other_experiment():
    cfg = get_cfg()
    before = settings_hash(cfg)
    cfg.OUTPUT_DIR, cfg.FEATURES.WORKERS, cfg.FEATURES.CACHE = "elsewhere", 1, "there"
    cfg.LINEAR.WORKERS, cfg.FINETUNE.TRIALS, cfg.FIXMATCH.TRIALS = 1, 5, 5
    assert settings_hash(cfg) == before
    cfg.FINETUNE.EPOCHS = 3.0
    assert settings_hash(cfg) != before


def test_map_with_and_without_the_envelope_are_two_experiments():
    cfg = get_cfg()
    cfg.SVM.PRESET = "voc07"
    enveloped = settings_hash(cfg)
    cfg.SVM.PRESET = "voc07-sklearn"
    assert settings_hash(cfg) != enveloped


def test_a_resnet_in_another_style_is_another_network_in_records():
    assert about_network(Architecture("resnet50")) == {}
    assert about_network(Architecture("resnet50", style="caffe")) == {"architecture": "resnet50?style=caffe"}


def test_the_hash_leaves_the_settings_as_they_are():
    cfg = get_cfg()
    cfg.OUTPUT_DIR = "elsewhere"
    settings_hash(cfg)
    assert cfg.OUTPUT_DIR == "elsewhere"


def test_scores_with_outcomes_of_images_can_be_compared_and_shown():
    one, other = (Score("knn", "top1", 50.0, "eman", items=np.array(hits)) for hits in ([True, False], [False, True]))
    assert one == other
    assert one != Score("knn", "top1", 50.5, "eman")
    assert "items" not in repr(one)


def test_records_of_a_network_that_training_made_name_the_one_it_began_with():
    counts = {"images": 9, "classes": 3}
    subject = Subject({"name": "a", "sha256": "0" * 64}, "teacher", "digits", "c0ffee", counts, get_cfg(), "/cls",
                      {"architecture": "timm:x"}, overlap=0)  # fmt: skip
    plain = subject.record(Score("knn", "top1", 50.0, "eman", details={"k": 20}))
    assert (plain["network"], plain["protocol"], plain["k"], plain["architecture"]) == (
        "teacher",
        "eman/cls",
        20,
        "timm:x",
    )
    assert plain["overlap"] == 0
    assert not {"items", "start_network"} & set(plain)
    made = replace(subject, overlap=None).record(Score("f", "top1", 5.0, "eman", network="student"), {"file": "x"})
    assert (made["network"], made["start_network"], made["items"]) == ("student", "teacher", {"file": "x"})
    assert "overlap" not in made


def test_the_lists_that_settings_name_are_part_of_the_hash(tmp_path):
    cfg = get_cfg()
    plain = settings_hash(cfg)
    for node, key in ((cfg.DATASETS, "TRAIN_LIST"), (cfg.DATASETS, "TEST_LIST"), (cfg.LINEAR, "SPLIT_FILE")):
        file = tmp_path / key
        file.write_text("a 0\n")
        node[key] = str(file)
        before = settings_hash(cfg)
        file.write_text("a 1\n")
        assert len({plain, before, settings_hash(cfg)}) == 3
        node[key] = ""
    assert settings_hash(cfg) == plain
