"""Scores: predictions and ground truth in, named numbers out; the same code for both engines and for files alone.

``coco``, ``lvis``, ``voc`` and ``semantic`` are what callers import. The rest is shared by coco and lvis: ``inputs``
(checked arrays from a JSON file: by ``plain`` and ``typed`` where the file is in the plain form, else by ``columns``,
which knows every form and names what is wrong), ``masks`` (run-length codes), ``overlaps`` (candidate pairs and their
IoU), ``matching`` (greedy assignment), ``curves`` (precision against recall) and ``precision`` (the tables).
"""
