"""CKA against its full-batch definition, its invariances, and what it must not do; weight norms."""

import weakref

import numpy as np
import pytest
import torch

from momentum_transfer.backbones import compare_backbones
from momentum_transfer.backbones.build import build_backbone
from momentum_transfer.backbones.compare_backbones import (
    MinibatchCKA,
    block_outputs,
    cka_of_networks,
    stage_ends,
    unbiased_hsic,
    weight_norms,
)
from momentum_transfer.backbones.network_input import IMAGENET_MEAN, IMAGENET_STD
from momentum_transfer.backbones.resnet import Architecture, build_resnet
from momentum_transfer.core.errors import InputError


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def related(n: int = 40, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Two feature matrices that share part of their variation."""
    x = torch.randn(n, 7, generator=rng(seed), dtype=torch.float64)
    y = x[:, :4] @ torch.randn(4, 5, generator=rng(seed + 1), dtype=torch.float64)
    return x, y + torch.randn(n, 5, generator=rng(seed + 2), dtype=torch.float64)


def cka(x: torch.Tensor, y: torch.Tensor, batch: int | None = None) -> float:
    made = MinibatchCKA()
    for start in range(0, len(x), batch or len(x)):
        stop = start + (batch or len(x))
        made.update([x[start:stop]], [y[start:stop]])
    return float(made.compute())


def naive_unbiased_hsic(k: np.ndarray, l_: np.ndarray) -> float:
    """The U-statistic as a mean over ordered tuples of distinct samples (Song et al. 2012, theorem 2)."""
    n = len(k)
    pairs = [(i, j) for i in range(n) for j in range(n) if i != j]
    two = np.mean([k[i, j] * l_[i, j] for i, j in pairs])
    three = np.mean([k[i, j] * l_[i, q] for i, j in pairs for q in range(n) if q not in (i, j)])
    four = np.mean([k[i, j] * l_[q, r] for i, j in pairs for q, r in pairs if len({i, j, q, r}) == 4])
    return float(two + four - 2 * three)


def test_unbiased_hsic_is_the_u_statistic_over_distinct_samples():
    x, y = related(7)
    k, l_ = x @ x.T, y @ y.T
    ours = unbiased_hsic(k[None], l_[None])[0, 0]
    assert float(ours) == pytest.approx(naive_unbiased_hsic(k.numpy(), l_.numpy()), rel=1e-10)


def test_unbiased_hsic_of_independent_features_averages_to_zero():
    values = []
    for seed in range(300):
        x = torch.randn(8, 50, generator=rng(seed), dtype=torch.float64)
        y = torch.randn(8, 50, generator=rng(10_000 + seed), dtype=torch.float64)
        values.append(float(unbiased_hsic((x @ x.T)[None], (y @ y.T)[None])))
    assert abs(np.mean(values)) < 4 * np.std(values) / np.sqrt(len(values))


def full_batch_cka(x: np.ndarray, y: np.ndarray) -> float:
    """Kornblith et al. 2019, equation 4 and its linear form: ||Y^T X||² / (||X^T X|| ||Y^T Y||), centred features."""
    x, y = x - x.mean(0), y - y.mean(0)
    return float(np.linalg.norm(y.T @ x) ** 2 / (np.linalg.norm(x.T @ x) * np.linalg.norm(y.T @ y)))


def test_cka_tends_to_the_full_batch_definition_as_images_grow():
    x, y = related(4000)
    wanted = full_batch_cka(x.numpy(), y.numpy())
    assert cka(x, y) == pytest.approx(wanted, abs=2e-3)
    assert cka(x, y, batch=100) == pytest.approx(wanted, abs=2e-2)


def test_cka_from_batches_averages_the_hsic_and_not_the_ratio():
    x, y = related(40)
    batches = [(x[i : i + 10], y[i : i + 10]) for i in range(0, 40, 10)]
    kl = np.mean([naive_unbiased_hsic((a @ a.T).numpy(), (b @ b.T).numpy()) for a, b in batches])
    kk = np.mean([naive_unbiased_hsic((a @ a.T).numpy(), (a @ a.T).numpy()) for a, _ in batches])
    ll = np.mean([naive_unbiased_hsic((b @ b.T).numpy(), (b @ b.T).numpy()) for _, b in batches])
    assert cka(x, y, batch=10) == pytest.approx(kl / np.sqrt(kk * ll), rel=1e-9)


def test_cka_is_invariant_to_orthogonal_maps_scaling_and_shifts():
    x, y = related()
    turn = torch.linalg.qr(torch.randn(7, 7, generator=rng(5), dtype=torch.float64)).Q
    assert cka(x @ turn, y) == pytest.approx(cka(x, y), rel=1e-9)
    assert cka(-3.5 * x, 1e-4 * y) == pytest.approx(cka(x, y), rel=1e-9)
    assert cka(x + 1000, y - 7) == pytest.approx(cka(x, y), rel=1e-7)


def test_cka_is_not_invariant_to_other_invertible_maps():
    x, y = related()
    stretch = torch.diag(torch.tensor([10.0, 1, 1, 1, 1, 1, 0.1], dtype=torch.float64))
    assert abs(cka(x @ stretch, y) - cka(x, y)) > 0.01


def test_cka_is_symmetric_and_one_with_itself():
    x, y = related()
    assert cka(x, y) == pytest.approx(cka(y, x), rel=1e-12)
    assert cka(x, x, batch=8) == pytest.approx(1.0, abs=1e-12)


def test_constant_features_give_nan_and_too_small_batches_an_error():
    x, _ = related()
    assert np.isnan(cka(x, torch.ones(40, 3, dtype=torch.float64)))
    with pytest.raises(InputError, match="at least 4 images a batch"):
        cka(x[:3], x[:3])
    with pytest.raises(InputError, match="at least one batch of images"):
        MinibatchCKA().compute()


def networks():
    torch.manual_seed(0)
    return build_resnet(Architecture("resnet10", 4)).eval(), build_resnet(Architecture("resnet18", 8)).eval()


def batches(count: int = 3):
    return [torch.randn(6, 3, 32, 32, generator=rng(i)) for i in range(count)]


def test_block_outputs_end_in_the_networks_own_stages():
    _, net = networks()
    x = batches(1)[0]
    with torch.no_grad():
        outputs = dict(block_outputs(net, x))
        stages = net.stages(x)
    assert list(outputs) == [
        "stem", "res2.0", "res2.1", "res3.0", "res3.1", "res4.0", "res4.1", "res5.0", "res5.1", "avgpool",
    ]  # fmt: skip
    for name in ("res2", "res3", "res4", "res5"):
        assert torch.equal(outputs[f"{name}.1"], stages[name])
    assert torch.equal(outputs["avgpool"], stages["pooled"])
    assert stage_ends(list(outputs))["res4"] == "res4.1"


def test_networks_of_other_depth_and_width_compare_block_by_block():
    first, second = networks()
    rows, columns, matrix = cka_of_networks(first, second, batches())
    for net, names in ((first, rows), (second, columns)):
        with torch.no_grad():
            assert names == [name for name, _ in block_outputs(net, batches(1)[0])]
    assert matrix.shape == (len(rows), len(columns)) == (6, 10)
    assert torch.isfinite(matrix).all()
    assert torch.allclose(matrix.T, cka_of_networks(second, first, batches())[2])


def test_a_network_agrees_with_itself_in_every_block():
    first, _ = networks()
    diagonal = cka_of_networks(first, first, batches())[2].diagonal()
    assert torch.allclose(diagonal, torch.ones_like(diagonal), atol=1e-10)


def test_weight_norms_are_those_of_the_convolutions_in_network_order():
    first, _ = networks()
    state = first.state_dict()
    norms = weight_norms(state)
    assert list(norms)[:3] == ["conv1", "layer1.0.conv1", "layer1.0.conv2"]
    assert norms["conv1"] == pytest.approx(float(np.sqrt((state["conv1.weight"].double().numpy() ** 2).sum())))
    assert set(weight_norms(state, kernel=3)) == {
        name for name in norms if "layer" in name and "downsample" not in name
    }
    oblong = {
        "wide.weight": torch.ones(2, 2, 1, 3),
        "high.weight": torch.ones(2, 2, 3, 1),
        "linear.weight": torch.ones(3, 3),
    }
    assert weight_norms(oblong) == {"wide": pytest.approx(12**0.5), "high": pytest.approx(12**0.5)}
    assert not weight_norms(oblong, kernel=3)


def test_networks_are_reduced_block_by_block_and_features_are_not_kept(monkeypatch):
    net, images = build_resnet(Architecture("resnet10", 4)).eval(), torch.randn(6, 3, 32, 32, generator=rng())
    alive: list[weakref.ref] = []
    most = 0

    def watched(network, batch):
        nonlocal most
        for name, output in block_outputs(network, batch):
            features = output.clone()
            alive.append(weakref.ref(features))
            yield name, features
            del features
            most = max(most, sum(ref() is not None for ref in alive))

    monkeypatch.setattr(compare_backbones, "block_outputs", watched)
    *_, reduced = cka_of_networks(net, net, [images])
    assert most <= 2
    whole = MinibatchCKA()
    with torch.no_grad():
        whole.update(*([output for _, output in block_outputs(net, images)] for _ in range(2)))
    assert torch.equal(reduced, whole.compute())


@pytest.mark.parametrize("text", ["timm:test_vit?img_size=32", "timm:test_convnext?img_size=32"])
@torch.no_grad()
def test_networks_of_any_make_are_compared_block_by_block_under_their_own_statistics(text: str):
    torch.manual_seed(0)
    ours, reference = build_resnet(Architecture("resnet10", 8)).eval(), build_backbone(text).eval()
    batches = [torch.randn(8, 3, 32, 32) for _ in range(2)]
    names = [name for name, _ in block_outputs(reference, batches[0])]
    assert names[-1] == "avgpool"
    assert len(names) == (7 if "vit" in text else 5)
    rows, columns, found = cka_of_networks(ours, reference, batches)
    assert columns == names
    assert found.shape == (len(rows), len(names))
    raw = [(images * images.new_tensor(IMAGENET_STD).view(3, 1, 1) + images.new_tensor(IMAGENET_MEAN).view(3, 1, 1))
           for images in batches]  # fmt: skip
    pooled = MinibatchCKA()
    for images, pixels in zip(batches, raw, strict=True):
        pooled.update([ours(images)], [reference((pixels - 0.5) / 0.5)])
    torch.testing.assert_close(found[-1, -1], pooled.compute()[0, 0])
    own = cka_of_networks(reference, reference, batches)[2].diagonal()
    torch.testing.assert_close(own, torch.ones(len(names), dtype=own.dtype))
