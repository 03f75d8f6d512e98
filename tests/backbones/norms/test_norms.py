import pytest
import torch

from momentum_transfer.backbones.norms import STUDENT_NORMS, TEACHER_NORMS, Norm, check_norms, pair_norms
from momentum_transfer.core.errors import InputError


@pytest.mark.parametrize("name", TEACHER_NORMS)
def test_every_norm_takes_maps_and_vectors_with_the_same_parameter_names(name):
    norm = Norm(name)
    with torch.no_grad():
        assert norm(8)(torch.randn(4, 8, 3, 3)).shape == (4, 8, 3, 3)
        assert norm.for_vectors(8)(torch.randn(4, 8)).shape == (4, 8)
    assert {key for key, _ in norm(8).named_parameters()} == {"weight", "bias"}


def test_running_momentum_is_a_setting_of_batch_norms():
    assert Norm("BN", momentum=0.001)(4).momentum == 0.001
    assert [layer.alpha.item() for layer in pair_norms(Norm("TeacherPN", proxy_momentum=0.25)(4))] == [0.25]


@pytest.mark.parametrize(
    ("student", "teacher", "message"),
    [
        ("EMAN", "BN", "expected NORM.STUDENT of"),
        ("BN", "LN", "expected NORM.TEACHER of"),
        ("GN", "EMAN", "running statistics"),
        ("IN", "StudentPN", "running statistics"),
    ],
)
def test_meaningless_combinations_are_refused(student, teacher, message):
    with pytest.raises(InputError, match=message):
        check_norms(student, teacher)


def test_a_method_without_teacher_ignores_the_teachers_norm():
    for student in STUDENT_NORMS:
        check_norms(student, None)


@pytest.mark.parametrize(
    ("channels", "maps", "vectors"), [(64, 32, 4), (4, 2, 1), (16, 8, 1), (48, 16, 2), (512, 32, 32), (2048, 32, 32)]
)
def test_groups_of_group_normalisation(channels, maps, vectors):
    assert Norm("GN")(channels).num_groups == maps
    assert Norm("GN").for_vectors(channels).num_groups == vectors
