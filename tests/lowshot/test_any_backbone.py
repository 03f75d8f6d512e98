"""Few-label evaluations of networks of timm and of any module: what is recorded, and what a network without BN is."""

import logging
import re
from dataclasses import replace

import pytest
import torch
from torch import nn

import momentum_transfer.lowshot.library
from momentum_transfer.backbones.build import build_backbone, parse_architecture
from momentum_transfer.backbones.module_network import ModuleBackbone, of_module, of_text
from momentum_transfer.backbones.network_input import NetworkInput
from momentum_transfer.backbones.read import load_backbone
from momentum_transfer.core.errors import InputError
from momentum_transfer.lowshot.finetune import recompute_statistics
from momentum_transfer.lowshot.fixmatch import build_method, check_backbone
from momentum_transfer.lowshot.library import evaluate
from momentum_transfer.lowshot.presets import FIXMATCH
from tests.tools.in_process import run_tool

CONVNEXT = "timm:test_convnext?img_size=32"
QUICK = {"KNN.PRESETS": ["eman"], "SVM.SHOTS": [1], "SVM.TRIALS": 1, "LINEAR.TRIALS": 1, "LINEAR.EPOCHS": 1,
         "LINEAR.LEARNING_RATES": [1.0], "LINEAR.CACHED": True}  # fmt: skip


class Maps(nn.Module):
    """Two maps, of stride 4 and 8, under names of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 6, 4, 4), nn.Conv2d(6, 10, 2, 2)

    def forward(self, images):
        early = self.first(images).relu()
        return {"early": early, "late": self.second(early)}


class Flat(nn.Module):
    """Features of images of one size only, which it says."""

    def __init__(self) -> None:
        super().__init__()
        self.input = {"size": 8, "mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)}
        self.fc = nn.Linear(192, 5)

    def forward(self, images):
        return self.fc(images.flatten(1))


def make_flat() -> Flat:
    torch.manual_seed(3)
    return Flat()


def make_named(name: str) -> Flat:
    return make_flat()


def test_any_module_is_evaluated_and_its_records_say_what_it_was(tmp_path):
    torch.manual_seed(0)
    module = Maps().train()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    lines = evaluate(module, settings=QUICK, output=tmp_path)
    assert {line["task"] for line in lines} == {"knn/k=20", "svm/k=1", "linear/10%"}
    first = lines[0]
    assert first["checkpoint"]["name"] == first["architecture"] == "Maps"
    assert first["input"] == "32 px, bilinear, crop 0.875, mean 0.485 0.456 0.406, std 0.229 0.224 0.225"
    assert module.training
    assert all(torch.equal(tensor, module.state_dict()[name]) for name, tensor in before.items())
    again = evaluate(module, evaluations=["knn"], settings=QUICK, output=tmp_path)
    assert again == [line for line in lines if line["task"] == "knn/k=20"]  # nothing new
    darker = evaluate(module, evaluations=["knn"], settings=QUICK, output=tmp_path, input={"std": (1, 1, 1)})
    assert len(darker) == len(again)
    assert {line["config"] for line in darker} != {line["config"] for line in again}  # other images, another evaluation
    stage = evaluate(module, evaluations=["knn"], settings={**QUICK, "FEATURES.LAYER": "res2"})
    assert stage[0]["value"] != next(line for line in lines if line["task"] == "knn/k=20")["value"]


class Peaks(Maps):
    """Names itself as its parent does, and computes something else of the same tensors."""

    def forward(self, images):
        return {name: each.abs() for name, each in super().forward(images).items()}


def test_only_what_was_asked_of_a_network_comes_back_from_a_folder_of_several(tmp_path):
    torch.manual_seed(0)
    module = Maps()

    def tops(network, **settings):
        lines = evaluate(network, evaluations=["knn"], name="mine", settings={**QUICK, **settings}, output=tmp_path)
        return [(line["task"], line["data"]["images"], line["value"]) for line in lines if line["metric"] == "top1"]

    asked = [tops(module), tops(module, **{"KNN.PRESETS": ["majority-5"]}),
             tops(module, **{"DATASETS.VARIANT": "strokes"})]  # fmt: skip
    assert [[task for task, *_ in each] for each in asked] == [["knn/k=20"], ["knn/k=5"], ["knn/k=20"]]
    assert asked[0] != asked[2]
    retrieval = evaluate(module, evaluations=["retrieval"], name="mine", settings=QUICK, output=tmp_path)
    assert {line["task"] for line in retrieval} == {"knn/k=20", "retrieval"}
    other = Peaks()
    other.load_state_dict(module.state_dict())
    assert tops(other) != asked[0]
    assert tops(module) == asked[0]


def test_maps_and_widths_of_a_module_are_found():
    torch.manual_seed(0)
    backbone = build_backbone(of_module(Maps(), "mine")).eval()
    assert (backbone.strides, backbone.channels) == ({"res2": 4, "res3": 8}, {"res2": 6, "res3": 10})
    images = torch.randn(2, 3, 32, 32)
    stages = backbone.stages(images)
    assert torch.equal(stages["pooled"], stages["res3"].mean((2, 3)))
    assert torch.equal(stages["pooled"], backbone(images))
    assert backbone.num_features == 10


@pytest.mark.parametrize(("give", "message"), [
    (lambda x: [x], "features .N, D. or a dict of maps .*, found a list"),
    (lambda x: {"pooled": x}, r"found \(2, 3, 224, 224\) under 'pooled'"),
    (lambda x: x[:1].flatten(1), "for 2 images"),
    (lambda x: x.flatten(1)[:, :0], r"found \(2, 0\) under 'pooled'"),
    (lambda x: x.flatten(1).to(torch.complex64), "found torch.complex64 under 'pooled'"),
    (lambda x: {}[x], r"take images \[N, 3, 224, 224\], found .* attribute input"),
    (lambda x: x.flatten(1) @ torch.zeros(3, 3), r"take images \[N, 3, 224, 224\], found .* attribute input"),
])  # fmt: skip
def test_a_module_that_gives_something_else_is_refused(give, message):
    class Wrong(nn.Module):
        def forward(self, images):
            return give(images)

    with pytest.raises(InputError, match=message):
        ModuleBackbone(Wrong(), of_module(Wrong(), "wrong"))


def test_what_is_no_module_and_what_is_no_evaluation_is_refused():
    with pytest.raises(InputError, match=r"expected a torch.nn.Module, found a function"):
        evaluate(make_flat)
    with pytest.raises(InputError, match="expected evaluations of knn"):
        evaluate(Flat(), evaluations=["svn"])
    for wrong in ({"sides": 8}, {"size": True}, {"std": (0, 1, 1)}, {"interpolation": "none"}, 8):
        with pytest.raises(InputError, match="expected input as size, mean, std, interpolation, crop of images, found"):
            evaluate(Maps(), input=wrong)
    assert momentum_transfer.lowshot.library._source(Flat(), "", None, 32).architecture.input == NetworkInput(
        8, (0.5,) * 3, (0.5,) * 3
    )


def test_the_command_line_takes_a_factory(tmp_path):
    text = f"module:{__name__}:make_flat"
    with pytest.raises(InputError, match="to take no arguments, found missing a required argument: 'name'"):
        load_backbone(f"module:{__name__}:make_named")
    done = run_tool("lowshot", "knn", "--weights", text, "--config", "smoke/lowshot_digits",
                    "--results", tmp_path / "results.jsonl", "OUTPUT_DIR", tmp_path)  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert f"images as {text} wants them: 8 px" in done.stdout
    assert load_backbone(text).build().input == NetworkInput(8, (0.5,) * 3, (0.5,) * 3)
    for wrong, message in ((f"module:{__name__}:nothing", "expected a function nothing that gives a network"),
                           ("module:no_such_package:f", "expected a Python module no_such_package, found none"),
                           ("module:lowshot", "expected module:package.path:factory"),
                           ("module:.:f", "expected module:package.path:factory"),
                           (f"module:{__name__}:CONVNEXT", "expected a function CONVNEXT")):  # fmt: skip
        with pytest.raises(InputError, match=message):
            of_text(wrong)


def test_code_of_ones_own_that_cannot_be_imported_is_one_line(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    for name, code, message in (("no_syntax", "def f(:", "SyntaxError"), ("lacks", "import no_such_package", "no_such"),
                                ("raises", "raise ValueError(3)", "ValueError: 3")):  # fmt: skip
        (tmp_path / f"{name}.py").write_text(code + "\n")
        with pytest.raises(InputError, match=f"expected {name} to be imported, found .*{message}.*; --debug"):
            of_text(f"module:{name}:f")


class Failing(Flat):
    """Takes the two images by which its features are found, and no others."""

    def forward(self, images):
        if len(images) > 2:
            raise OSError(2, "No such file", "table.txt")
        return super().forward(images)


def make_failing() -> Failing:
    return Failing()


def make_empty() -> Flat:
    with torch.device("meta"):
        return Flat()


def make_mistaken() -> Flat:
    raise RuntimeError("Error(s) in loading state_dict:\n\tsize mismatch for fc.weight")


@pytest.mark.parametrize(("factory", "message"), [
    (make_mistaken, r"to give a torch.nn.Module, found RuntimeError: Error\(s\) in loading state_dict:; --debug shows"),
    (make_empty, "expected the weights of module:.*, found none in net.fc.weight, which is on the meta device; make"),
    (make_failing, r"to take images \[N, 3, 8, 8\], found FileNotFoundError: .*; .*--debug shows where"),
])  # fmt: skip
def test_what_ones_own_code_raises_is_one_line_and_all_of_it_with_debug(factory, message, tmp_path):
    words = ("lowshot", "knn", "--weights", f"module:{__name__}:{factory.__name__}", "--config", "smoke/lowshot_digits",
             "--results", tmp_path / "results.jsonl", "OUTPUT_DIR", tmp_path)  # fmt: skip
    done = run_tool(*words)
    assert done.returncode == 2
    assert re.fullmatch(rf"error: .*{message}.*\n", done.stderr)
    assert "Traceback" in run_tool(*words, "--debug").stderr
    assert not (tmp_path / "results.jsonl").exists()


def test_weights_that_are_a_network_take_no_other_architecture():
    text = f"module:{__name__}:make_flat"
    for weights, arch in ((text, CONVNEXT), ("timm:test_vit", "timm:test_vit?img_size=32")):
        with pytest.raises(InputError, match=r"expected no --arch with .*, which is a network by itself, found timm:"):
            load_backbone(weights, architecture=arch)
    assert load_backbone(text, architecture=text).name == load_backbone(text).name


def test_pooling_and_the_networks_own_input_stand_in_the_records():
    torch.manual_seed(0)
    backbone = build_backbone(parse_architecture("timm:test_vit?img_size=32"))
    lines = evaluate(backbone, evaluations=["knn"], pool="cls+patch_mean", settings=QUICK)
    assert {line["protocol"] for line in lines} == {"eman/cls+patch_mean"}
    assert {line["architecture"] for line in lines} == {"timm:test_vit?img_size=32"}
    assert {line["input"] for line in lines} == {str(backbone.input)}
    pooled = evaluate(backbone, evaluations=["knn"], settings=QUICK)
    assert pooled[0]["protocol"] == "eman"
    assert pooled[0]["value"] != lines[0]["value"]


def test_eman_of_a_network_without_batch_norm_is_ema_and_is_said(caplog):
    torch.manual_seed(0)
    backbone = build_backbone(parse_architecture(CONVNEXT))
    with caplog.at_level(logging.INFO):
        check_backbone(FIXMATCH["eman"], backbone, 32)
    assert "has no batch normalisation: the teacher keeps no statistics" in caplog.text
    moved = []
    for name in ("eman", "ema-bn"):
        method = build_method(backbone, 10, replace(FIXMATCH[name], momentum=0.25), seed=0)
        before = {key: tensor.clone() for key, tensor in method.teacher.state_dict().items()}
        with torch.no_grad():
            for parameter in method.student.parameters():
                parameter.add_(1)
        method.update_teacher()
        moved.append(method.teacher.state_dict())
        for key, tensor in moved[-1].items():
            torch.testing.assert_close(tensor, before[key] + 0.25, rtol=0, atol=1e-6)
    assert all(torch.equal(tensor, moved[1][key]) for key, tensor in moved[0].items())


@pytest.mark.parametrize("preset", ["momentum-bn", "gn", "syncbn", "teacher-pn"])
def test_fixmatch_refuses_to_replace_a_batch_norm_that_is_not_there(preset):
    with pytest.raises(InputError, match=r"has none to replace; take FIXMATCH\.PRESET eman"):
        check_backbone(FIXMATCH[preset], build_backbone(parse_architecture(CONVNEXT)), 32)


def test_precise_bn_leaves_a_network_without_batch_norm_as_it_is(caplog):
    backbone = build_backbone(parse_architecture(CONVNEXT))
    with caplog.at_level(logging.INFO):
        recompute_statistics(backbone, iter([]), 3)
    assert "no batch normalisation whose statistics are trained" in caplog.text
    assert not backbone.training


def test_published_weights_of_timm_are_read_from_a_mirror(tmp_path, monkeypatch):
    import timm
    from safetensors.torch import save_file

    published = timm.create_model("test_vit").eval()
    folder = tmp_path / "timm" / "test_vit.r160_in1k"
    folder.mkdir(parents=True)
    save_file(published.state_dict(), folder / "model.safetensors")
    monkeypatch.setenv("MOMENTUM_TRANSFER_HUB", str(tmp_path))
    source = load_backbone("timm:test_vit.r160_in1k")
    images = torch.randn(1, 3, 160, 160)
    with torch.no_grad():
        wanted = published.forward_head(published.forward_features(images), pre_logits=True)
        assert torch.equal(source.build()(images), wanted)
    assert (source.name, str(source.architecture)) == ("test_vit.r160_in1k", "timm:test_vit.r160_in1k")
    with pytest.raises(InputError, match="expected no --network"):
        load_backbone("timm:test_vit.r160_in1k", network="teacher")
    with pytest.raises(InputError, match=r"expected a tag of .*found 'nope'"):
        load_backbone("timm:resnet50.nope")
