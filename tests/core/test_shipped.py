"""Names of configs, and commands as they are typed in a checkout and after pip install."""

from pathlib import Path

import pytest

from momentum_transfer.core import shipped
from momentum_transfer.core.errors import InputError


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
    assert all(shipped.short_name(shipped.find_config(name)) == name for name in names)
