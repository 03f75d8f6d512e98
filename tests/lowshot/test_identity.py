from momentum_transfer.lowshot.config import get_cfg
from momentum_transfer.lowshot.identity import settings_hash


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


def test_the_hash_leaves_the_settings_as_they_are():
    cfg = get_cfg()
    cfg.OUTPUT_DIR = "elsewhere"
    settings_hash(cfg)
    assert cfg.OUTPUT_DIR == "elsewhere"
