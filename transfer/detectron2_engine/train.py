"""Training by Detectron2's DefaultTrainer, with this project's scoring, stopping and naming of what went wrong."""

import functools
import itertools
import json
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from momentum_transfer.core.checkpoints import CheckpointFolder, read_archive
from momentum_transfer.core.command import Stopped, StopSignal, stop_signals
from momentum_transfer.core.distributed import any_rank, barrier, is_main, rank, world_size
from momentum_transfer.core.errors import InputError
from momentum_transfer.core.files import write_text
from momentum_transfer.core.loggers import Logger, open_loggers
from momentum_transfer.core.samplers import signals_held
from momentum_transfer.core.untrusted import read_json
from momentum_transfer.transfer.any_backbone import group_rules
from momentum_transfer.transfer.detectron2_engine.data import training_loader
from momentum_transfer.transfer.detectron2_engine.few_labels import Batches, FewLabels, MakeBatches
from momentum_transfer.transfer.detectron2_engine.models import load_initial, register
from momentum_transfer.transfer.experiment import Finetuned
from momentum_transfer.transfer.initial_weights import InitialWeights
from momentum_transfer.transfer.torchvision_engine import solver
from momentum_transfer.transfer.torchvision_engine.solver import GradientWatch

Evaluate = Callable[[nn.Module], float]

#: Iterations between logged metrics, over which the median of each is shown, as Detectron2's writers do.
_SMOOTHED = 20


def train(
    d2_cfg: Any, initial: InitialWeights, final: Path, resume: bool, evaluate: Evaluate | None,
    batches: MakeBatches | None = None
) -> Finetuned:  # fmt: skip
    """Train by DefaultTrainer from ``initial``; stop at a signal with a checkpoint written.

    ``evaluate`` scores the model every TEST.EVAL_PERIOD iterations; the best one is kept as ``model_best.pth``.
    ``batches``: with few labels or shots, instead of Detectron2's data path.

    Raises:
        Stopped: a signal came. InputError: the loss is not finite, or an image or the checkpoint cannot be read.
    """
    from detectron2.engine import hooks
    from detectron2.utils.env import seed_all_rng

    if resume and (last := CheckpointFolder(d2_cfg.OUTPUT_DIR, pointer="last_checkpoint").last()) is not None:
        read_archive(last)  # Detectron2 compares no checksums
    register()
    if d2_cfg.MODEL.DEVICE == "cpu":
        _let_processes_share_a_cpu()
    seed_all_rng(d2_cfg.SEED + rank())
    # Else the focal loss is compiled in its second call, with other last bits: a resumed training would differ.
    with stop_signals() as stop, torch.jit.optimized_execution(batches is None):
        trainer = trainer_class(evaluate, batches)(d2_cfg)
        loaded, new = load_initial(_plain(trainer.model), initial)
        if batches is not None:
            trainer.few_labels = FewLabels(_plain(trainer.model), d2_cfg.SEMI)
        trainer.resume_or_load(resume=resume)
        if batches is not None:
            trainer.data_loader.loader.start = trainer.start_iter
        if evaluate is not None and is_main():
            period = d2_cfg.TEST.EVAL_PERIOD
            trainer.register_hooks(
                [_best_hook(period, trainer.checkpointer, final.with_name("model_best.json"), resume)]
            )
        if is_main():
            writer = _logger_writer(open_loggers(d2_cfg.OUTPUT_DIR, trainer.start_iter))
            trainer.register_hooks([hooks.PeriodicWriter([writer], _SMOOTHED)])
        trainer.register_hooks([_stop_hook(stop, torch.device(d2_cfg.MODEL.DEVICE))])
        trainer._trainer.register_hooks([_gradient_hook()])  # of the inner loop, which alone knows its gradients
        begun, first = time.monotonic(), trainer.start_iter
        trainer.train()
    barrier()
    seconds = (time.monotonic() - begun) / max(d2_cfg.SOLVER.MAX_ITER - first, 1)
    return Finetuned(final, tuple(loaded), tuple(new), seconds)


class RememberedBatches:
    """A loader that keeps the image ids of its last batch."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader
        self.images: list[Any] = []

    def __iter__(self) -> Iterator[Any]:
        batches = iter(self.loader)
        with signals_held():  # Detectron2's loader starts its workers with the first batch
            first = list(itertools.islice(batches, 1))
        for batch in itertools.chain(first, batches):
            self.images = [one["image_id"] if isinstance(one, dict) else one.image_id for one in batch]
            yield batch


def trainer_class(evaluate: Evaluate | None, batches: MakeBatches | None = None) -> Any:
    """DefaultTrainer that leaves scoring to this project and reads label images as DeepLab's own trainer does."""
    from detectron2.engine import DefaultTrainer
    from detectron2.projects.deeplab import build_lr_scheduler
    from detectron2.utils.events import TensorboardXWriter

    class Trainer(DefaultTrainer):
        few_labels: FewLabels | None = None

        @classmethod
        def test(cls, cfg: Any, model: nn.Module, evaluators: Any = None) -> dict[str, Any]:
            if evaluate is None:
                return {}
            value = evaluate(_plain(model))
            model.train()
            return {"score": value}

        def build_writers(self) -> list[Any]:  # without its own TensorBoard: open_loggers has one
            return [writer for writer in super().build_writers() if not isinstance(writer, TensorboardXWriter)]

        @classmethod
        def build_train_loader(cls, cfg: Any) -> RememberedBatches:
            own = batches and Batches(batches, cfg.SOLVER.IMS_PER_BATCH // world_size())
            return RememberedBatches(own or training_loader(cfg))

        @classmethod
        def build_optimizer(cls, cfg: Any, model: nn.Module) -> torch.optim.Optimizer:
            return build_optimizer(cfg, model)

        @classmethod
        def build_lr_scheduler(cls, cfg: Any, optimizer: torch.optim.Optimizer) -> Any:
            return build_lr_scheduler(cfg, optimizer)

        def run_step(self) -> None:
            try:
                super().run_step()
            except FloatingPointError as error:
                images = ", ".join(str(image) for image in self._trainer.data_loader.images)
                raise InputError(
                    f"the loss is not finite at iteration {self.iter + 1} ({' '.join(str(error).split())}) on the "
                    f"images {images}; lower SOLVER.BASE_LR or lengthen SOLVER.WARMUP_ITERS, or look at these images' "
                    "annotations"
                ) from error
            if self.few_labels is not None:
                self.few_labels.after_step(self.iter, last=self.iter + 1 == self.max_iter)

        def state_dict(self) -> dict[str, Any]:
            return dict(super().state_dict()) | (
                {"few_labels": self.few_labels.state_dict()} if self.few_labels else {}
            )

        def load_state_dict(self, state: dict[str, Any]) -> None:
            super().load_state_dict(state)
            if self.few_labels is not None:
                self.few_labels.load_state_dict(state["few_labels"])

    return Trainer


def build_optimizer(cfg: Any, model: nn.Module) -> torch.optim.Optimizer:
    """Detectron2's optimizer, or AdamW and rates by layer as a config's SOLVER asks, clipped as Detectron2 clips."""
    from detectron2.solver import build

    if cfg.SOLVER.OPTIMIZER == "SGD" and not cfg.MODEL.BACKBONE.ARCH:
        optimizer: torch.optim.Optimizer = build.build_optimizer(cfg, model)
        return optimizer
    return build.maybe_add_gradient_clipping(cfg, solver.build_optimizer(cfg, model, group_rules(cfg)))


def _logger_writer(loggers: Sequence[Logger]) -> Any:
    """Passes the metrics in Detectron2's storage on to the loggers, by the number of steps done."""
    from detectron2.utils.events import EventWriter, get_event_storage

    class LoggerWriter(EventWriter):
        def __init__(self) -> None:
            self.written = -1

        def write(self) -> None:
            latest = get_event_storage().latest_with_smoothing_hint(_SMOOTHED)
            steps = sorted({step for _, step in latest.values() if step > self.written})
            for step in steps:
                metrics = {name: value for name, (value, at) in latest.items() if at == step}
                for logger in loggers:
                    logger.write(step + 1, metrics)
            self.written = max([self.written, *steps])

        def close(self) -> None:
            for logger in loggers:
                logger.close()

    return LoggerWriter()


def _best_hook(period: int, checkpointer: Any, note: Path, resume: bool) -> Any:
    """Detectron2's BestCheckpointer with the best score in ``note``, which a resumed training has to surpass."""
    from detectron2.engine import hooks

    class BestCheckpointer(hooks.BestCheckpointer):
        def _best_checking(self) -> None:
            before = self.best_iter
            super()._best_checking()
            if self.best_iter != before:  # written after the weights: a kill between the two leaves the older score
                write_text(note, json.dumps({"score": self.best_metric, "iteration": self.best_iter}))

    hook = BestCheckpointer(period, checkpointer, "score", "max", "model_best")
    if resume and note.is_file() and note.with_suffix(".pth").is_file():
        try:
            known = read_json(note, "the best score of a training")
            hook.best_metric, hook.best_iter = float(known["score"]), int(known["iteration"])
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(
                f"expected {note} as a training wrote it, found it damaged; delete it to look for the best detector "
                "from here on"
            ) from error
    return hook


def _stop_hook(stop: StopSignal, device: torch.device) -> Any:
    """Leaves the loop after the step in which a signal came, with a checkpoint written."""
    from detectron2.engine import HookBase

    class StopHook(HookBase):
        def after_step(self) -> None:
            if any_rank(bool(stop), device):
                done = self.trainer.iter + 1
                if is_main():
                    self.trainer.checkpointer.save(f"model_{done - 1:07d}", iteration=done - 1)
                message = f"stopped after iteration {done}; go on with the same command and --resume"
                raise Stopped(message, stop.exit_code)

    return StopHook()


def _gradient_hook() -> Any:
    """Watches the gradients before they are clipped; Detectron2 waits for the device right after, to log the losses."""
    from detectron2.engine import HookBase

    class GradientHook(HookBase):
        watch: GradientWatch | None = None

        def after_backward(self) -> None:
            scaler = getattr(self.trainer, "grad_scaler", None)
            self.watch = self.watch or GradientWatch(scaled=scaler is not None)
            self.watch.measure(self.trainer.iter, self.trainer.model.parameters())
            self.watch.read(1.0 if scaler is None else scaler.get_scale())

    return GradientHook()


def _let_processes_share_a_cpu() -> None:
    """On a CPU DistributedDataParallel takes no device ids, but Detectron2 always gives it some."""
    from detectron2.engine import defaults

    defaults.create_ddp_model = functools.partial(defaults.create_ddp_model, device_ids=None)


def _plain(model: nn.Module) -> nn.Module:
    return model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model
