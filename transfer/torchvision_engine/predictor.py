"""A trained network of this engine on images in memory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from momentum_transfer.transfer.torchvision_engine.data import Mapper, Picture, output_size, resize
from momentum_transfer.transfer.torchvision_engine.detectors import Detector
from momentum_transfer.transfer.torchvision_engine.structures import Detections, Sample

_UNNAMED = Path()


class TorchvisionPredictor:
    """Images to what is found in them; see ``engine.Predictor``.

    Images that have one size after resizing go through the network together. Those of other sizes do not share a batch,
    because a smaller one would be padded to the larger, which its features at the border would feel.
    """

    def __init__(self, network: Detector, mapper: Mapper) -> None:
        self.network, self.mapper = network.eval(), mapper

    def __call__(self, images: Sequence[np.ndarray]) -> list[Detections] | list[np.ndarray]:
        samples = [self._sample(number, image) for number, image in enumerate(images)]
        alike: dict[tuple[int, ...], list[Sample]] = {}
        for sample in samples:
            alike.setdefault(tuple(sample.image.shape), []).append(sample)
        found: dict[int, Detections | np.ndarray] = {}
        with torch.no_grad():
            for batch in alike.values():
                for sample, one in zip(batch, self.network(batch), strict=True):
                    found[sample.image_id] = (
                        one.cpu().numpy().astype(np.uint8) if isinstance(one, torch.Tensor) else one
                    )
        return [found[number] for number in range(len(images))]  # type: ignore[return-value]  # all of one kind

    def _sample(self, number: int, image: np.ndarray) -> Sample:
        height, width = image.shape[:2]
        picture = Picture(_UNNAMED, number, height, width, ())
        size = output_size(height, width, self.mapper.short_edges[0], self.mapper.long_edge)
        return self.mapper.sample(picture, resize(image, size, flip=False), None)
