import pytest
import torch
from torch import nn

from momentum_transfer.backbones.resnet import Architecture, build_resnet
from momentum_transfer.core.errors import InputError
from momentum_transfer.core.optimization import LARS
from momentum_transfer.pretrain.heads import mlp
from momentum_transfer.pretrain.optimizers import build_optimizer, set_learning_rate


def naive_lars(weights, grads_of_steps, lr, momentum, decay, eta, adapt):
    weights = [w.clone() for w in weights]
    buffers = [torch.zeros_like(w) for w in weights]
    for grads in grads_of_steps:
        for i, g in enumerate(grads):
            update = g + decay * weights[i]
            if adapt:
                w_norm, u_norm = float(weights[i].norm()), float(update.norm())
                update = update * (eta * w_norm / u_norm if w_norm > 0 and u_norm > 0 else 1.0)
            buffers[i] = momentum * buffers[i] + update
            weights[i] = weights[i] - lr * buffers[i]
    return weights


@pytest.mark.parametrize("together", [True, False])  # as on a GPU, as on the CPU
@pytest.mark.parametrize("adapt", [True, False])
def test_lars_equals_a_loop_over_tensors(adapt, together):
    torch.manual_seed(0)
    start = [torch.randn(4, 3), torch.zeros(5), torch.randn(2, 2, 2)]
    grads = [[torch.randn_like(w) for w in start] for _ in range(5)]
    params = [nn.Parameter(w.clone()) for w in start]
    optimizer = LARS([{"params": params, "adapt": adapt}], lr=0.3, momentum=0.9, weight_decay=0.01, eta=0.02)
    for step in grads:
        for p, g in zip(params, step, strict=True):
            p.grad = g.clone()
        if together:
            with torch.no_grad():
                optimizer._update(params, optimizer.param_groups[0])
        else:
            optimizer.step()
    expected = naive_lars(start, grads, 0.3, 0.9, 0.01, 0.02, adapt)
    for p, e in zip(params, expected, strict=True):
        torch.testing.assert_close(p.detach(), e, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("weight", "gradient"), [(0.0, 1.0), (1.0, 0.0), (0.0, 0.0)])
def test_zero_norms_have_trust_ratio_one(weight, gradient):
    p = nn.Parameter(torch.full((3, 3), weight))
    p.grad = torch.full((3, 3), gradient)
    LARS([p], lr=0.5, momentum=0.9, weight_decay=0.0).step()
    assert torch.equal(p, torch.full((3, 3), weight - 0.5 * gradient))


def test_lars_leaves_every_bias_and_norm_out_of_adaptation_and_decay():
    net = nn.ModuleDict(
        {"backbone": build_resnet(Architecture("resnet10", width=4)), "projector": mlp(32, 8, 4, nn.BatchNorm1d)}
    )
    optimizer = build_optimizer(net, "lars", lr=1, momentum=0.9, weight_decay=0.1, eta=0.001)
    excluded = {id(p) for g in optimizer.param_groups if not g["adapt"] for p in g["params"]}
    norms = [m for m in net.modules() if isinstance(m, (nn.BatchNorm2d, nn.BatchNorm1d))]
    biases = [p for name, p in net.named_parameters() if name.endswith("bias")]
    assert excluded == {id(m.weight) for m in norms} | {id(p) for p in biases}
    assert all(g["weight_decay"] == (0.1 if g["adapt"] else 0) for g in optimizer.param_groups)


def test_sgd_decays_every_parameter():
    optimizer = build_optimizer(mlp(4, 4, 4, nn.BatchNorm1d), "sgd", lr=1, momentum=0.9, weight_decay=0.1, eta=0)
    assert [g["weight_decay"] for g in optimizer.param_groups] == [0.1]


def test_adamw_decays_neither_biases_nor_norms():
    net = mlp(4, 4, 4, nn.BatchNorm1d)
    optimizer = build_optimizer(net, "adamw", lr=1, momentum=0, weight_decay=0.1, eta=0)
    decayed = {id(p) for g in optimizer.param_groups if g["weight_decay"] for p in g["params"]}
    assert decayed == {id(layer.weight) for layer in net if isinstance(layer, nn.Linear)}


@pytest.mark.parametrize("name", ["sgd", "lars"])
def test_optimisers_are_built_with_the_given_momentum_and_eta(name):
    torch.manual_seed(0)
    weight = nn.Parameter(torch.randn(3, 2))
    net = nn.Module()
    net.weight = weight
    optimizer = build_optimizer(net, name, lr=0.5, momentum=0.3, weight_decay=0.2, eta=0.7)
    expected, buffer = weight.detach().clone(), torch.zeros(3, 2)
    for gradient in torch.randn(4, 3, 2):
        weight.grad = gradient.clone()
        optimizer.step()
        update = gradient + 0.2 * expected
        if name == "lars":
            update = update * 0.7 * expected.norm() / update.norm()
        buffer = 0.3 * buffer + update  # not Nesterov's
        expected = expected - 0.5 * buffer
    torch.testing.assert_close(weight.detach(), expected)


def test_a_first_step_that_the_scaler_skips_leaves_no_trace():
    def train(gradients):
        net = nn.Linear(64, 64, bias=False)
        nn.init.constant_(net.weight, 1.0)
        optimizer = build_optimizer(net, "sgd", lr=0.1, momentum=0.9, weight_decay=0.01, eta=0)
        scaler = torch.amp.GradScaler("cpu", init_scale=1.0, growth_interval=1000)
        for value in gradients:
            net.weight.grad = scaler.scale(torch.full((64, 64), value))
            scratch = torch.full((64, 64), float("nan"))  # what lies in memory that is used again
            del scratch
            scaler.step(optimizer)
            scaler.update(1.0)
        return net.weight.detach()

    assert torch.equal(train([float("inf"), 0.5, 0.25]), train([0.5, 0.25]))


def test_frozen_parameters_are_left_out_and_fixed_ones_keep_their_rate():
    net = nn.ModuleDict({"predictor": nn.Linear(2, 2), "projector": nn.Linear(2, 2), "teacher": nn.Linear(2, 2)})
    net["teacher"].requires_grad_(False)
    optimizer = build_optimizer(net, "sgd", lr=1, momentum=0, weight_decay=0, eta=0, fixed_lr="predictor")
    assert sum(len(g["params"]) for g in optimizer.param_groups) == 4
    set_learning_rate(optimizer, 0.1, 1.0)
    rates = {id(p): g["lr"] for g in optimizer.param_groups for p in g["params"]}
    assert rates[id(net["predictor"].weight)] == 1.0
    assert rates[id(net["projector"].weight)] == 0.1


def test_unknown_optimizer_is_named():
    with pytest.raises(InputError, match="found 'adam'"):
        build_optimizer(nn.Linear(1, 1), "adam", lr=1, momentum=0, weight_decay=0, eta=0)
