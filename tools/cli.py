"""The command momentum-transfer: pretrain backbones, move them to detectors, probe them with few labels, report.

momentum-transfer NAME [OPTIONS …]      runs the tool of that name, as python tools/NAME.py does in a checkout
momentum-transfer NAME --help           its options
momentum-transfer --configs [WORD …]    the configs that ship, all or those whose names hold a word
"""

import difflib
import runpy
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
if not __package__:  # python tools/NAME.py
    sys.path[0] = str(HERE.parent)

from momentum_transfer import __version__
from momentum_transfer.core.shipped import COMMAND, shipped_configs

#: tools/NAME.py -> its line of the help
TOOLS = {
    "data": "data sets by name: download STL-10, CIFAR, MNIST, VOC; check folders of COCO, LVIS, ImageNet, …",
    "pretrain": "pretrain a backbone without labels: Momentum² Teacher, BYOL, MoCo, SimSiam, …",
    "convert": "turn any known checkpoint into Detectron2 or torchvision weights; NormRescale",
    "compare": "compare backbones on the same images: CKA, norms of weights",
    "transfer": "fine-tune a detector or segmenter from pretrained weights and score it",
    "predict": "find objects in new images with a fine-tuned detector",
    "export": "write a fine-tuned detector as ONNX or torch.export, checked against itself",
    "lowshot": "probe a backbone with few labels: kNN, retrieval, SVM, linear, fine-tuning, FixMatch",
    "taxonomy": "coarse classes from a hierarchy such as WordNet's, for supervised pretraining on fewer",
    "score": "score a result file against its ground truth: COCO, LVIS, VOC, mIoU",
    "choose": "which weights to start from, on data of your own, under a budget in minutes",
    "evaluate": "run a suite of evaluations on several checkpoints, here or on Slurm",
    "noise": "how much a network's outputs depend on which images share its batch statistics",
    "study": "the papers' claims shown at small scale: one question, its runs, the answer by the verdict rule",
    "status": "a live table of a suite's tasks, from the files in its folder",
    "report": "make the page that says how well backbones transfer",
    "publish": "scores and weights in the Hugging Face Hub's layout, and pushed there if asked",
    "demo": "what this is, within a minute: a number and a page from embedded digits",
    "quickstart": "the whole chain on embedded data, in minutes on two cores",
}


def usage() -> str:
    """The help of the command."""
    width = max(map(len, TOOLS))
    return "\n".join([str(__doc__).strip(), "", *(f"  {name:{width}}  {line}" for name, line in TOOLS.items())])


def main() -> int:
    """Run the tool that the first word names with the words after it; the exit code."""
    name, *words = sys.argv[1:] or [""]
    if name in ("", "-h", "--help"):
        print(usage())
        return 0 if name else 2
    if name == "--version":
        print(f"{COMMAND} {__version__}")
        return 0
    if name == "--configs":
        print("\n".join(config for config in shipped_configs() if all(word in config for word in words)))
        return 0
    if name not in TOOLS:
        near = difflib.get_close_matches(name, TOOLS, n=1, cutoff=0)[0]
        print(f"error: expected a command of {', '.join(TOOLS)}, found {name}; did you mean {near}?", file=sys.stderr)
        return 2
    sys.argv = [f"{COMMAND} {name}", *words]
    runpy.run_module(f"momentum_transfer.tools.{name}", run_name="__main__")  # ends with the tool's own exit code
    return 0


if __name__ == "__main__":
    sys.exit(main())
