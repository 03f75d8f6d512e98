import errno
from pathlib import Path

import pytest
import torch

from momentum_transfer.backbones.convert import backbone_state
from momentum_transfer.backbones.norms import Norm
from momentum_transfer.backbones.resnet import Architecture, build_resnet
from momentum_transfer.core import checkpoints as checkpoint
from momentum_transfer.core.checkpoints import FORMAT, CheckpointFolder, load
from momentum_transfer.core.errors import InputError


def state(step):
    return {"format": FORMAT, "step": step, "model": {"weight": torch.full((100,), float(step))}}


def test_last_names_the_newest_and_the_oldest_are_removed(tmp_path):
    folder = CheckpointFolder(tmp_path, keep=2)
    for step in (1, 999, 1000):
        folder.save(step, state(step))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["last", "step_0000999.pt", "step_0001000.pt"]
    assert load(folder.last())["step"] == 1000


def test_going_on_from_an_earlier_checkpoint_keeps_the_new_ones(tmp_path):
    folder = CheckpointFolder(tmp_path, keep=3)
    for step in (10, 20, 30):
        folder.save(step, state(step))
    (tmp_path / "last").write_text("step_0000020.pt\n")  # the last one is damaged
    CheckpointFolder(tmp_path, keep=1).save(25, state(25))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["last", "step_0000025.pt"]
    assert load(folder.last())["step"] == 25


def test_a_folder_without_checkpoints_has_no_last(tmp_path):
    assert CheckpointFolder(tmp_path / "nothing").last() is None


def test_a_full_disk_leaves_the_previous_checkpoint_whole(tmp_path, monkeypatch):
    folder = CheckpointFolder(tmp_path)
    folder.save(1, state(1))

    def half_written(tree, stream):
        stream.write(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoint.torch, "save", half_written)
    with pytest.raises(OSError, match="No space left"):
        folder.save(2, state(2))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["last", "step_0000001.pt"]
    monkeypatch.undo()
    assert load(folder.last())["step"] == 1


def test_torchs_writer_reports_a_full_disk_as_such():
    with pytest.raises(OSError, match="No space left") as error:
        checkpoint.write_archive(Path("/dev/full"), {"model": torch.zeros(1_000_000)})
    assert error.value.errno == errno.ENOSPC


def test_a_kill_between_file_and_pointer_leaves_the_pointer_on_a_whole_file(tmp_path, monkeypatch):
    folder = CheckpointFolder(tmp_path, keep=1)
    folder.save(1, state(1))

    def killed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(checkpoint, "write_text", killed)
    with pytest.raises(KeyboardInterrupt):
        folder.save(2, state(2))
    assert load(folder.last())["step"] == 1


@pytest.mark.parametrize("damage", ["truncated", "empty", "text", "other"])
def test_what_is_no_checkpoint_is_refused_by_name(damage, tmp_path):
    path = tmp_path / "file.pt"
    torch.save(state(1) if damage == "truncated" else {"state_dict": {}}, path)
    if damage == "truncated":
        path.write_bytes(path.read_bytes()[:-200])
    elif damage != "other":
        path.write_bytes(b"" if damage == "empty" else b"not a checkpoint at all")
    with pytest.raises(InputError, match=r"file\.pt"):
        load(path)


class Malicious:
    def __reduce__(self):
        return (print, ("code ran",))


def test_code_in_a_checkpoint_is_not_run(tmp_path, capsys):
    torch.save({"format": FORMAT, "model": Malicious()}, tmp_path / "evil.pt")
    with pytest.raises(InputError, match="expected a checkpoint"):
        load(tmp_path / "evil.pt")
    assert "code ran" not in capsys.readouterr().out


def test_missing_file_and_wrong_pointer_are_named(tmp_path):
    with pytest.raises(InputError, match="found no file"):
        load(tmp_path / "none.pt")
    (tmp_path / "last").write_text("../elsewhere.pt")
    with pytest.raises(InputError, match="to name a checkpoint beside it"):
        CheckpointFolder(tmp_path).last()


def test_exported_state_loads_into_a_plain_backbone():
    architecture = Architecture("resnet10", 4)
    teacher = build_resnet(architecture, Norm("MomentumBN"))
    exported = backbone_state(teacher)
    build_resnet(architecture).load_state_dict(exported, strict=True)
    assert not any("pending" in name or name.endswith("alpha") for name in exported)


def test_files_may_have_another_suffix(tmp_path):
    folder = CheckpointFolder(tmp_path, keep=1, suffix=".pth")
    for step in (1, 2):
        folder.save(step, state(step))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["last", "step_0000002.pth"]
    assert load(folder.last())["step"] == 2


def test_a_checkpoint_of_before_the_digests_is_read_with_a_warning(tmp_path, capsys):
    torch.save(state(3), tmp_path / "old.pt")
    assert load(tmp_path / "old.pt")["step"] == 3
    assert "holds no digest of its content" in capsys.readouterr().err


def test_content_that_differs_from_the_digest_is_refused_however_whole_the_file_is(tmp_path):
    path = CheckpointFolder(tmp_path).save(1, state(1))
    changed = torch.load(path, weights_only=True)
    changed["model"]["weight"][7] += 1
    torch.save(changed, path)
    with pytest.raises(InputError, match="its content differs from the digest in it"):
        load(path)


def test_checkpoints_without_a_pointer_are_resumed_with_a_warning(tmp_path, capsys):
    folder = CheckpointFolder(tmp_path)
    for step in (2, 10):
        folder.save(step, state(step))
    (tmp_path / "last").unlink()
    assert folder.last().name == "step_0000010.pt"
    assert "last is missing; resuming from the latest checkpoint beside it" in capsys.readouterr().err


def test_the_first_checkpoint_is_older_than_the_second_and_other_files_are_none(tmp_path, capsys):
    folder = CheckpointFolder(tmp_path)
    for step in (0, 1):
        folder.save(step, state(step))
    (tmp_path / "last").unlink()
    for name in ("step_final.pt", "step_9.pt.bak", f"step_{10**19}.pt"):
        (tmp_path / name).touch()
    assert folder.last().name == "step_0000001.pt"
    for file in tmp_path.glob("step_000*"):
        file.unlink()
    capsys.readouterr()
    assert folder.last() is None
    assert not capsys.readouterr().err


def test_as_many_checkpoints_are_kept_as_asked_and_one_that_was_cut_off_leaves_nothing(tmp_path):
    folder = CheckpointFolder(tmp_path, keep=3)
    for step in range(5):
        folder.save(step, state(step))
    assert sorted(path.name for path in tmp_path.glob("step*")) == [f"step_000000{step}.pt" for step in (2, 3, 4)]


@pytest.mark.parametrize("name", ["", "x" * 200, "a\0b", "step_0000009.pt", "../step_0000001.pt", "."])
def test_a_pointer_to_anything_else_than_a_file_beside_it_is_refused(name, tmp_path):
    folder = CheckpointFolder(tmp_path)
    folder.save(1, state(1))
    (tmp_path / "last").write_text(name)
    with pytest.raises(InputError, match=r"to name a checkpoint beside it, found .*; delete it"):
        folder.last()


def test_a_copy_that_the_user_made_stays(tmp_path):
    folder = CheckpointFolder(tmp_path)
    mine = tmp_path / "step_0000001_best.pt"
    mine.write_bytes(folder.save(1, state(1)).read_bytes())
    for step in (2, 3, 4):
        folder.save(step, state(step))
    assert mine.is_file()
    assert folder.last().name == "step_0000004.pt"
