import pytest
import torch
from torch import nn

from momentum_transfer.pretrain.heads import mlp, simsiam_projector
from momentum_transfer.pretrain.norms import Norm, use_fused_sync


def test_projector_ends_in_a_linear_without_norm():
    layers = mlp(2048, 4096, 256, nn.BatchNorm1d)
    assert [type(m).__name__ for m in layers] == ["Linear", "BatchNorm1d", "ReLU", "Linear"]
    assert (layers[0].weight.shape, layers[3].weight.shape) == ((4096, 2048), (256, 4096))
    assert layers[0].bias is None  # the norm's shift takes its place
    assert layers[3].bias is not None


def test_without_norm_the_hidden_layer_keeps_its_bias():
    layers = mlp(8, 4, 2, None)
    assert [type(m).__name__ for m in layers] == ["Linear", "ReLU", "Linear"]
    assert layers[0].bias is not None


def test_simsiam_projector_normalises_its_output():
    output = simsiam_projector(8, 16, 4, nn.BatchNorm1d)(torch.randn(64, 8))
    torch.testing.assert_close(output.mean(0), torch.zeros(4), rtol=0, atol=1e-5)
    torch.testing.assert_close(output.std(0, correction=0), torch.ones(4), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("norm", ["BN", "SyncBN", "GN", "IN", "MomentumBN"])
def test_simsiam_projector_learns_no_scale_and_shift_of_its_output(norm):
    projector = simsiam_projector(8, 64, 64, Norm(norm).for_vectors)
    names = ["0.weight", "1.weight", "1.bias", "3.weight", "4.weight", "4.bias", "6.weight"]
    assert [name for name, _ in projector.named_parameters()] == names
    assert not {"7.weight", "7.bias"} & set(projector.state_dict())
    with torch.no_grad():
        inputs = torch.randn(64, 8)
        hidden = projector[:7](inputs)
        reference = Norm(norm).for_vectors(64)  # fresh, so with scale 1 and shift 0
        torch.testing.assert_close(projector[7](hidden), reference(hidden))


def test_fused_sync_bn_keeps_an_output_without_scale_and_shift():
    projector = simsiam_projector(8, 16, 4, Norm("SyncBN").for_vectors)
    use_fused_sync(projector)
    assert [layer.affine for layer in projector if isinstance(layer, nn.SyncBatchNorm)] == [True, True, False]
