"""Names of configs, and commands as they are typed in a checkout and after pip install."""

from pathlib import Path

import pytest

from momentum_transfer.core import shipped
from momentum_transfer.core.errors import ConfigNotFound, InputError
from momentum_transfer.core.shipped import find_config, take_variants


@pytest.fixture
def wheel(monkeypatch, tmp_path: Path) -> Path:
    """As if these packages came from a wheel."""
    monkeypatch.setattr(shipped, "CHECKOUT", None)
    monkeypatch.setattr(shipped, "TOOLS", tmp_path / "site-packages" / "momentum_transfer" / "tools")
    return shipped.TOOLS


def test_in_a_checkout_commands_are_typed_with_python():
    assert shipped.typed(["tools/score.py", "coco", "a b.json"]) == "python tools/score.py coco 'a b.json'"
    assert shipped.started(["tools/score.py", "coco"]) == ["tools/score.py", "coco"]
    assert shipped.as_typed("see tools/score.py") == "see tools/score.py"


def test_from_a_wheel_commands_are_those_of_the_console_script(wheel: Path):
    assert shipped.typed(["tools/score.py", "coco", "a b.json"]) == "momentum-transfer score coco 'a b.json'"
    assert shipped.typed([str(wheel / "score.py"), "coco"]) == "momentum-transfer score coco"
    assert shipped.typed(["momentum-transfer score", "coco"]) == "momentum-transfer score coco"
    assert shipped.typed(["/home/me/score.py", "coco"]) == "python /home/me/score.py coco"
    assert shipped.started(["tools/score.py", "coco"]) == [str(wheel / "score.py"), "coco"]
    assert shipped.workplace() == Path.cwd()


def test_from_a_wheel_help_speaks_of_the_console_script_and_torchrun_of_modules(wheel: Path):
    said = shipped.as_typed("python tools/a.py X, or tools/b.py\ntorchrun --nproc-per-node 8 tools/a.py X")
    assert said == (
        "momentum-transfer a X, or momentum-transfer b\n"
        "torchrun --nproc-per-node 8 -m momentum_transfer.tools.a X"
    )  # fmt: skip


def test_a_file_on_disk_comes_before_a_config_that_ships(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert shipped.find_config("smoke/momentum2_digits") == shipped.CONFIGS / "smoke/momentum2_digits.yaml"
    (tmp_path / "smoke").mkdir()
    (tmp_path / "smoke/momentum2_digits.yaml").write_text("SEED: 1\n", encoding="utf-8")
    assert shipped.find_config("smoke/momentum2_digits") == Path("smoke/momentum2_digits.yaml")


def test_a_config_that_is_not_there_gets_the_nearest_names_of_both_kinds(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mask_rcnn_mine.yaml").write_text("", encoding="utf-8")
    with pytest.raises(InputError, match=r"mask_rcnn_mine\.yaml.*smoke/mask_rcnn_digits|smoke/mask.*mask_rcnn_mine"):
        shipped.find_config("mask_rcnn_min.yaml")
    with pytest.raises(InputError, match="nearest names are transfer/fcos_1x"):
        shipped.find_config("configs/transfer/fcos_1.yaml")
    with pytest.raises(InputError, match="config file not found: /nowhere/"):
        shipped.find_config("/nowhere/smoke/momentum2_digits")


def test_names_of_shipped_configs_lead_to_them_and_leave_out_the_reports_tables():
    names = shipped.shipped_configs()
    assert {"smoke/momentum2_digits", "suites/quick"} <= set(names)
    assert not [name for name in names if name.startswith("reference")]
    assert len(set(names)) == len(names)
    assert all(shipped.short_name(shipped.find_config(name)) == name for name in names)
    assert {"transfer/retinanet_1x_R18", "lowshot/eman_table8_fixmatch_eman_0.9", "transfer/retinanet_1x"} <= set(names)


def test_a_variant_is_found_by_every_spelling_of_a_config_and_in_the_file_that_lists_it(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    own = shipped.CONFIGS / "transfer/retinanet_1x_R18.yaml"
    for name in ("transfer/retinanet_1x_R18", "configs/transfer/retinanet_1x_R18.yaml", own, own.with_suffix("")):
        assert shipped.find_config(name) == own
    assert shipped.find_config("retinanet_1x_R18.yaml", beside=shipped.CONFIGS / "transfer") == own
    assert not own.exists()
    assert shipped.listing_of(own) == shipped.CONFIGS / "transfer/retinanet_1x.yaml"
    assert shipped.listing_of(shipped.CONFIGS / "transfer/retinanet_1x.yaml") is None


def test_no_file_that_ships_is_called_as_a_variant():
    """The file would win."""
    files = {path.relative_to(shipped.CONFIGS) for path in shipped.CONFIGS.rglob("*.yaml")}
    listed = [file.with_name(f"{name}.yaml") for file in files for name in shipped.variants(shipped.CONFIGS / file)]
    assert len(listed) > 70
    assert not files & set(listed)


def test_an_unknown_variant_gets_the_nearest_names_of_variants_on_disk_and_shipped(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text("_VARIANTS_: {slow_rate: {}}\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"config file not found: slow_rat; the nearest names are slow_rate\.yaml"):
        shipped.find_config("slow_rat")
    with pytest.raises(InputError, match=r"nearest names are .*transfer/retinanet_1x_R18"):
        shipped.find_config("transfer/retinanet_1x_R81")


def test_a_file_wins_over_a_variant_of_its_name_and_a_name_that_two_files_list_is_refused(tmp_path: Path):
    for name in ("a", "b"):
        (tmp_path / f"{name}.yaml").write_text("_VARIANTS_: {twice: {}, both: {}}\n", encoding="utf-8")
    (tmp_path / "both.yaml").write_text("SEED: 1\n", encoding="utf-8")
    assert shipped.find_config("both", beside=tmp_path) == tmp_path / "both.yaml"
    assert shipped.listing_of(tmp_path / "both.yaml") is None
    with pytest.raises(InputError, match=r"one file that lists twice under _VARIANTS_, found .*a\.yaml and .*b\.yaml"):
        shipped.find_config("twice", beside=tmp_path)


def test_other_files_of_the_folder_do_not_stand_in_the_way_of_a_variant(tmp_path: Path):
    (tmp_path / "a.yaml").write_bytes(b"\xff mine")
    (tmp_path / "b.yaml").write_text("mine: [", encoding="utf-8")
    (tmp_path / "c.yaml").write_text("_VARIANTS_: [broken", encoding="utf-8")
    (tmp_path / "d.yaml").mkdir()
    (tmp_path / "e.yml").write_text("_VARIANTS_: {mine: {}}", encoding="utf-8")
    assert shipped.listing_of(shipped.find_config("mine", beside=tmp_path)) == tmp_path / "e.yml"


def test_a_broken_list_does_not_hide_a_variant_of_another_file_and_is_said_where_no_other_lists_it(tmp_path: Path):
    (tmp_path / "a.yaml").write_text("_VARIANTS_: {mine: 3, other: {}}", encoding="utf-8")
    (tmp_path / "b.yaml").write_text("_VARIANTS_: {mine: {}}", encoding="utf-8")
    assert shipped.listing_of(tmp_path / "mine.yaml") == tmp_path / "b.yaml"
    with pytest.raises(InputError, match=r"expected _VARIANTS_ in .*a\.yaml"):
        shipped.find_config("other", beside=tmp_path)


def test_a_broken_file_beside_does_not_hide_that_a_config_is_missing(tmp_path):
    (tmp_path / "broken.yaml").write_text("_VARIANTS_: [", encoding="utf-8")
    with pytest.raises(ConfigNotFound, match="config file not found: nosuch; the nearest names are"):
        find_config("nosuch", beside=tmp_path)


@pytest.mark.parametrize("name", ["mine", "x.yaml", "a/b"])
def test_a_variant_that_could_not_be_found_by_its_name_is_refused(tmp_path, name):
    file = tmp_path / "mine.yaml"
    with pytest.raises(InputError, match="as names, other than its own and without folder and suffix"):
        take_variants({"_VARIANTS_": {name: {"SEED": 1}}}, file)
    with pytest.raises(InputError, match="and _VARIANTS_, found"):
        take_variants({"_VARIANTS_": {"inner": {"_VARIANTS_": {"m": {}}}}}, file)
