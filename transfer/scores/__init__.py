"""Scores: predictions and ground truth in, named numbers out; the same code for both engines and for files alone.

``coco``, ``lvis``, ``voc`` and ``semantic`` are what callers import. The rest is shared by coco and lvis: ``inputs``
and ``columns`` (checked arrays from a JSON file), ``masks`` (run-length codes), ``overlaps`` (candidate pairs and their
IoU), ``matching`` (greedy assignment), ``curves`` (precision against recall) and ``precision`` (the tables).
"""
