"""Detectors built from torchvision's parts that compute what Detectron2's compute."""
