"""Configuration: bases, overrides, and every mistake named with the nearest key."""

import pytest
from fvcore.common.config import CfgNode

from momentum_transfer.core.errors import InputError
from momentum_transfer.core.settings import config_files, config_hash, dump, load_config, pretraining_hash
from momentum_transfer.core.shipped import CONFIGS
from momentum_transfer.lowshot import config as lowshot
from momentum_transfer.pretrain.config import get_cfg
from momentum_transfer.transfer import config as transfer


@pytest.fixture
def defaults() -> CfgNode:
    return CfgNode(
        {"SOLVER": {"BASE_LR": 0.1, "STEPS": (60, 80), "MAX_ITER": 100}, "NAME": "byol", "AMP": False, "SEED": None}
    )


def test_file_values_replace_defaults_and_overrides_replace_both(defaults, tmp_path):
    file = tmp_path / "a.yaml"
    file.write_text("SOLVER:\n  BASE_LR: 0.5\n  MAX_ITER: 7\n")
    cfg = load_config(defaults, file, ["SOLVER.MAX_ITER", "9", "AMP", "True"])
    assert (cfg.SOLVER.BASE_LR, cfg.SOLVER.MAX_ITER, cfg.AMP, cfg.NAME) == (0.5, 9, True, "byol")
    assert defaults.SOLVER.MAX_ITER == 100


@pytest.mark.parametrize(("text", "value"), [("True", True), ("true", True), ("False", False), ("false", False)])
def test_a_switch_on_the_command_line_is_spelled_as_in_python_or_in_yaml(defaults, text, value):
    assert load_config(defaults, None, ["AMP", text]).AMP is value


def test_base_is_read_relative_to_the_file(defaults, tmp_path):
    (tmp_path / "base.yaml").write_text("NAME: moco\nSOLVER: {MAX_ITER: 5}\n")
    (tmp_path / "sub").mkdir()
    child = tmp_path / "sub" / "child.yaml"
    child.write_text("_BASE_: ../base.yaml\nSOLVER: {BASE_LR: 1e-3}\n")
    cfg = load_config(defaults, child)
    assert (cfg.NAME, cfg.SOLVER.MAX_ITER, cfg.SOLVER.BASE_LR) == ("moco", 5, 1e-3)


def test_a_base_may_be_a_list_or_a_config_that_ships(tmp_path):
    (tmp_path / "one.yaml").write_text("SOLVER: {STEPS: 1, BASE_LR: 0.5}\n")
    child = tmp_path / "child.yaml"
    child.write_text("_BASE_: [smoke/momentum2_digits, one.yaml]\nSEED: 3\n")
    cfg = load_config(get_cfg(), child)
    assert (cfg.MODEL.ARCH, cfg.SOLVER.STEPS, cfg.SOLVER.BASE_LR, cfg.SEED) == ("resnet10", 1, 0.5, 3)
    assert [file.name for file in config_files(child)] == ["child.yaml", "one.yaml", "momentum2_digits.yaml"]


def test_a_shipped_config_is_the_same_by_name_and_by_path():
    by_path = load_config(get_cfg(), CONFIGS / "smoke" / "momentum2_digits.yaml")
    assert load_config(get_cfg(), "smoke/momentum2_digits") == by_path
    assert load_config(get_cfg(), "configs/smoke/momentum2_digits.yaml") == by_path


def test_a_shipped_config_has_its_name_in_output_dir_or_protocol_and_a_config_on_it_inherits_both(tmp_path):
    assert load_config(get_cfg(), "pretrain/momentum2_r50_100e").OUTPUT_DIR == "outputs/momentum2_r50_100e"
    assert load_config(lowshot.get_cfg(), "lowshot/momentum2_linear").OUTPUT_DIR == "outputs/lowshot/momentum2_linear"
    assert load_config(transfer.get_cfg(), "transfer/mask_rcnn_fpn_1x").PROTOCOL == "mask_rcnn_fpn_1x"
    assert load_config(transfer.get_cfg(), "transfer/voc07_c4_byol_nr").PROTOCOL == "voc07_c4"  # written in it
    own = tmp_path / "own.yaml"
    own.write_text("_BASE_: transfer/mask_rcnn_fpn_1x\n")
    assert load_config(transfer.get_cfg(), own).PROTOCOL == "mask_rcnn_fpn_1x"
    own.write_text("_BASE_: pretrain/base_momentum2\n")
    assert load_config(get_cfg(), own).OUTPUT_DIR == "outputs/pretrain"


def test_a_variant_has_the_settings_of_a_file_that_names_its_file_as_base(defaults, tmp_path):
    main = tmp_path / "main.yaml"
    (tmp_path / "base.yaml").write_text("NAME: moco\nSOLVER: {MAX_ITER: 5}\n_VARIANTS_: {else: {NAME: x}}\n")
    text = "_BASE_: base.yaml\nSOLVER: {BASE_LR: 0.5}\n"
    main.write_text(text)
    (tmp_path / "as_file.yaml").write_text("_BASE_: main.yaml\nSOLVER: {STEPS: [1, 2]}\nSEED: 3\n")
    before = [load_config(defaults, main), load_config(defaults, tmp_path / "as_file.yaml")]
    main.write_text(text + "_VARIANTS_:\n  variant: {SOLVER: {STEPS: [1, 2]}, SEED: 3}\n  same_0.9: {}\n")
    for spelled in ("variant", "variant.yaml"):
        assert load_config(defaults, tmp_path / spelled) == before[1]
        assert config_hash(load_config(defaults, tmp_path / spelled)) == config_hash(before[1])
    assert load_config(defaults, main) == load_config(defaults, tmp_path / "same_0.9") == before[0]
    assert config_files(tmp_path / "variant") == [main, tmp_path / "base.yaml"]
    on_it = tmp_path / "on_it.yaml"
    on_it.write_text("_BASE_: [variant, main_2]\n")
    with pytest.raises(InputError, match=r"main_2.*nearest names are .*main.*_BASE_ of .*on_it"):
        load_config(defaults, on_it)
    on_it.write_text("_BASE_: variant\nSEED: 4\n_VARIANTS_: {on_top: {NAME: new}}\n")
    found = load_config(defaults, tmp_path / "on_top", ["SOLVER.MAX_ITER", "9"])
    assert (found.NAME, found.SEED, found.SOLVER.STEPS, found.SOLVER.MAX_ITER) == ("new", 4, (1, 2), 9)


def test_an_unknown_key_of_a_variant_names_the_file_that_lists_it(defaults, tmp_path):
    (tmp_path / "main.yaml").write_text("_VARIANTS_: {slow: {SEDE: 3}}\n")
    with pytest.raises(InputError, match=r"unknown config key SEDE \(.*slow, listed in .*main\.yaml\); .* is SEED"):
        load_config(defaults, tmp_path / "slow")


def test_a_shipped_variant_has_its_own_name_in_output_dir_or_protocol():
    assert load_config(get_cfg(), "pretrain/byol_r18_sgd_100e").OUTPUT_DIR == "outputs/byol_r18_sgd_100e"
    assert load_config(lowshot.get_cfg(), "lowshot/eman_table8_fixmatch_eman_0.9").OUTPUT_DIR == (
        "outputs/lowshot/eman_table8_fixmatch_eman_0.9"
    )
    assert load_config(transfer.get_cfg(), "configs/transfer/fcos_1x_R18.yaml").PROTOCOL == "fcos_1x_R18"


def test_a_variant_that_is_the_base_of_its_own_file_is_refused(defaults, tmp_path):
    (tmp_path / "a.yaml").write_text("_BASE_: a_small\n_VARIANTS_: {a_small: {SEED: 1}}\n")
    with pytest.raises(InputError, match=r"leads back to itself"):
        load_config(defaults, tmp_path / "a.yaml")


def test_a_base_that_leads_back_to_itself_is_refused(defaults, tmp_path):
    (tmp_path / "a.yaml").write_text("_BASE_: b.yaml\n")
    (tmp_path / "b.yaml").write_text("_BASE_: a.yaml\n")
    with pytest.raises(InputError, match=r"leads back to itself: .*a\.yaml -> .*b\.yaml -> .*a\.yaml"):
        load_config(defaults, tmp_path / "a.yaml")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["SOLVER.MAX_ITR", "3"], r"unknown config key SOLVER.MAX_ITR \(command line\).*SOLVER.MAX_ITER"),
        (["solver.base_lr", "3"], "nearest known key is SOLVER.BASE_LR"),
        (["NAME.X", "3"], "unknown config key NAME.X"),
        (["SOLVER.MAX_ITER", "many"], "SOLVER.MAX_ITER .* expects int .*found str 'many'"),
        (["SOLVER.MAX_ITER", "1.5"], "expects int"),
        (["SOLVER", "3"], "SOLVER .* is a section"),
        (["AMP", "1"], "expects bool"),
        (["AMP"], "expected KEY VALUE pairs"),
    ],
)
def test_wrong_overrides_are_named(defaults, overrides, message):
    with pytest.raises(InputError, match=message):
        load_config(defaults, None, overrides)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("SOLVER: {BASE_LERNRATE: 1}", "BASE_LERNRATE"),
        ("SOLVER: 3", "is a section"),
        ("- 1\n- 2", "expected a YAML mapping"),
        ("NAME: [", "cannot be read"),
        ("NAME: !!python/object/apply:os.getcwd []", "cannot be read"),
        ("_BASE_: nowhere.yaml", "nowhere.yaml"),
        ("NAME: a\nSEED: 1\nNAME: b", "duplicate key NAME .*line 3"),
        ("SOLVER:\n  MAX_ITER: 1\n  BASE_LR: 2\n  MAX_ITER: 1", "duplicate key MAX_ITER"),
        ("", "found an empty file"),
        ("# nothing but a remark", "found an empty file"),
        ("a: " + "[" * 5000, "nesting"),
        ("a: " + "{b: " * 5000, "nesting"),
        ("SOLVER: {MAX_ITER: '" + "-" * 5000 + "1'}", "nested too deeply|expects int"),
        ("_VARIANTS_: 3", r"expected _VARIANTS_ in .*wrong\.yaml as names, other than its own.*found .*3"),
        ("_VARIANTS_: [slow]", "expected _VARIANTS_ in"),
        ("_VARIANTS_:", "found .*None"),
        ("_VARIANTS_: {slow: 3}", r"_VARIANTS_ in .*found {'slow': 3}; write NAME"),
        ("_VARIANTS_: {10: {SEED: 1}}", r"found {10: {'SEED': 1}}; .*quoted if it is a number"),
        ("_VARIANTS_: {slow: {_BASE_: a.yaml}}", r"without _BASE_ .* found {'slow': {'_BASE_': 'a.yaml'}}"),
        ("_BASE_: wrong.yaml", r"expected _BASE_ files that end, found one that leads back to itself: .*wrong\.yaml"),
        ('_BASE_: "a\\0b"', "expected text without NUL"),
        ("_BASE_: " + "a" * 5000, "File name too long"),
        ("_BASE_: .", "config file not found"),
        ("_BASE_: 3", r"expected _BASE_ in .* to name a file, or a list of them, found 3"),
        ("_BASE_: [3]", "to name a file"),
        ("NAME: \x07", "cannot be read"),
        ("A: &a [x, x]\nB: &b [*a, *a]\nSOLVER: {MAX_ITER: [*b, *b]}", "unknown config key A"),
        ("SOLVER: {MAX_ITER: [&a [1,2],*a,*a,*a,*a,*a,*a,*a,*a,*a,*a]}", r"expects int .* found list .*, \.\.\.\]"),
    ],
)
def test_wrong_files_are_named(defaults, tmp_path, text, message):
    file = tmp_path / "wrong.yaml"
    file.write_text(text)
    with pytest.raises(InputError, match=message) as refused:
        load_config(defaults, file)
    assert len(str(refused.value)) < 1500
    assert "\n" not in str(refused.value)


def test_bases_of_a_list_are_laid_one_over_the_other_and_a_chain_has_an_end(defaults, tmp_path):
    (tmp_path / "one.yaml").write_text("NAME: one\nSOLVER: {MAX_ITER: 1, BASE_LR: 0.1}\n")
    (tmp_path / "two.yaml").write_text("SOLVER: {MAX_ITER: 2}\n")
    (tmp_path / "both.yaml").write_text("_BASE_: [one.yaml, two.yaml]\nAMP: true\n")
    cfg = load_config(defaults, tmp_path / "both.yaml")
    assert (cfg.NAME, cfg.SOLVER.MAX_ITER, cfg.SOLVER.BASE_LR, cfg.AMP) == ("one", 2, 0.1, True)
    for number in range(20):
        (tmp_path / f"{number}.yaml").write_text(f"_BASE_: {number + 1}.yaml\n")
    with pytest.raises(InputError, match="found more than 10 one upon the other"):
        load_config(defaults, tmp_path / "0.yaml")
    (tmp_path / "section.yaml").write_text("_BASE_: one.yaml\nNAME: {A: 1}\n")
    with pytest.raises(InputError, match=r"NAME .*section.yaml"):
        load_config(defaults, tmp_path / "section.yaml")


def test_missing_file_is_named(defaults, tmp_path):
    with pytest.raises(InputError, match="config file not found"):
        load_config(defaults, tmp_path / "none.yaml")


def test_a_name_that_python_reads_as_a_number_stays_as_it_is_written(defaults):
    for text in ("2026_01", "1.50", "(1)", "12e4567", "10"):
        assert text == load_config(get_cfg(), None, ["OUTPUT_DIR", text]).OUTPUT_DIR


def test_a_whole_number_beyond_floats_is_refused(defaults):
    with pytest.raises(InputError, match=r"expected SOLVER\.BASE_LR \(command line\) below 1\.8e308, found 1000"):
        load_config(defaults, None, ["SOLVER.BASE_LR", "1" + "0" * 400])


def test_a_whole_number_serves_as_float_and_lists_keep_the_default_type(defaults):
    cfg = load_config(defaults, None, ["SOLVER.BASE_LR", "1", "SOLVER.STEPS", "[1, 2]", "SEED", "4"])
    assert cfg.SOLVER.BASE_LR == 1.0
    assert isinstance(cfg.SOLVER.BASE_LR, float)
    assert cfg.SOLVER.STEPS == (1, 2)
    assert cfg.SEED == 4


def test_the_result_is_frozen(defaults):
    with pytest.raises(AttributeError):
        load_config(defaults, None).NAME = "other"


def test_hash_follows_values_not_order(defaults):
    same = load_config(defaults, None, ["SOLVER.MAX_ITER", "100"])
    other = load_config(defaults, None, ["SOLVER.MAX_ITER", "101"])
    assert config_hash(same) == config_hash(load_config(defaults, None))
    assert config_hash(same) != config_hash(other)
    assert "MAX_ITER: 100" in dump(same)


def test_a_pretraining_hash_names_what_is_learned_not_where():
    def digest(*overrides):
        return pretraining_hash(dump(load_config(get_cfg(), None, overrides)))

    assert digest("OUTPUT_DIR", "elsewhere", "DATA.WORKERS", "3", "RUN.KEEP", "9") == digest()
    assert len({digest(), digest("SEED", "1"), digest("RUN.PRECISION", "bf16"), digest("SOLVER.BASE_LR", "0.1")}) == 4


@pytest.mark.parametrize("text", ["- a", "a: [", "", "a: &x [*x]", "[" * 500])
def test_text_that_is_no_configuration_has_no_hash(text):
    with pytest.raises(InputError, match="expected the settings of a pretraining run"):
        pretraining_hash(text)
