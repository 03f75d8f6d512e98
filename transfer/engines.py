"""The choice between the engines."""

from fvcore.common.config import CfgNode

from momentum_transfer.core.errors import InputError
from momentum_transfer.transfer.detectron2_engine.engine import Detectron2Engine
from momentum_transfer.transfer.experiment import Engine
from momentum_transfer.transfer.torchvision_engine.engine import TorchvisionEngine


def choose_engine(name: str, cfg: CfgNode) -> tuple[Engine, str]:
    """The engine to use, and one sentence that says why.

    Args:
        name: ``auto``, ``detectron2`` or ``torchvision``. ``auto`` takes Detectron2 where it imports and can run the
            config, because it is the papers' own code, and torchvision otherwise.

    Raises:
        InputError: the name is unknown, or no engine that may be used can run the config.
    """
    engines: dict[str, Engine] = {"detectron2": Detectron2Engine(), "torchvision": TorchvisionEngine()}
    if name != "auto":
        if name not in engines:
            raise InputError(f"expected an engine among auto, {', '.join(engines)}, found {name!r}")
        if reason := engines[name].unsupported(cfg):
            raise InputError(f"the {name} engine cannot run this config: {reason}")
        return engines[name], f"engine {name}, as asked"
    reason = engines["detectron2"].unsupported(cfg)
    if reason is None:
        return engines["detectron2"], "engine detectron2: it is installed and runs this config"
    if other := engines["torchvision"].unsupported(cfg):
        raise InputError(f"no engine can run this config: detectron2: {reason}; torchvision: {other}")
    return engines["torchvision"], f"engine torchvision, because detectron2 cannot be used: {reason}"
