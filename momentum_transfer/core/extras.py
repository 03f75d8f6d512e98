"""Packages that only some commands need: which extra brings which, said where one is missing."""

import importlib
from types import ModuleType

from momentum_transfer.core.errors import InputError

#: module -> extra of pyproject.toml
EXTRAS = {"lvis": "lvis", "submitit": "slurm", "tensorboard": "tensorboard", "wandb": "wandb", "huggingface_hub": "hub",
          "timm": "timm", "lightly": "upstream",
          "onnx": "export", "onnxscript": "export", "onnxruntime": "export"}  # fmt: skip

#: modules that come with the project itself
REQUIRED = ("torch", "torchvision", "fvcore", "pycocotools", "sklearn", "scipy", "numpy", "safetensors", "rich",
            "matplotlib", "jinja2", "PIL", "yaml")  # fmt: skip


def extra(module: str, purpose: str) -> ModuleType:
    """The module, imported.

    Args:
        purpose: what needs it, for the message: "Slurm jobs".

    Raises:
        InputError: it is not installed; the message names the extra to install.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise InputError(f"{purpose}: {missing_package(module)}") from error


def missing_package(module: str) -> str | None:
    """What to install where importing ``module`` failed; None for a module that is none of ours to install."""
    name = module.split(".")[0]
    if name in EXTRAS:
        return f'expected the package {name}, found none; pip install "momentum-transfer[{EXTRAS[name]}]"'
    if name in REQUIRED:
        return f"expected the package {name}, found none; install it with all others: pip install momentum-transfer"
    return None
