import torch
from torch import nn

from pretrain.heads import mlp, simsiam_projector


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
