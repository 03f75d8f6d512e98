"""Scores: predictions and ground truth in, named numbers out; the same code for both engines and for files alone.

``coco``, ``lvis``, ``voc`` and ``semantic`` are what callers import. The rest is shared by coco and lvis: ``inputs``
(checked columns of a JSON file), ``masks`` (run-length codes), ``overlaps`` (candidate pairs and their IoU),
``matching`` (greedy assignment) and ``precision`` (precision-recall tables).
"""
