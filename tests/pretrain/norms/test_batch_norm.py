import torch
from torch import nn

from momentum_transfer.pretrain.norms import Norm
from momentum_transfer.pretrain.norms.batch_norm import SyncBatchNorm, use_fused_sync


def test_torchs_sync_bn_takes_the_place_of_ours_with_its_tensors_names_and_freezing():
    net = nn.Sequential(nn.Conv2d(3, 4, 1), Norm("SyncBN", momentum=0.25)(4), nn.Sequential(Norm("SyncBN")(4)))
    with torch.no_grad():
        for layer in net.modules():
            if isinstance(layer, SyncBatchNorm):
                layer.weight.uniform_()
                layer.running_var.uniform_()
    net[2].requires_grad_(False)
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    use_fused_sync(net)
    assert type(net[1]) is type(net[2][0]) is nn.SyncBatchNorm
    assert net[1].momentum == 0.25
    assert [p.requires_grad for p in net[1].parameters()] == [True, True]
    assert [p.requires_grad for p in net[2].parameters()] == [False, False]
    after = net.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
