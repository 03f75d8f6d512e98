"""Scores: predictions and ground truth in, named numbers out; the same code for both engines and for files alone.

Callers import ``coco``, ``lvis``, ``voc`` and ``semantic``. The rest serves the first three: ``coco_files`` reads JSON
into checked arrays (by ``typed`` if the file is in the plain form, else by ``columns``, which knows every form and
names what is wrong), ``rle`` reads masks (with ``kernels`` if numba is installed), ``greedy_matching`` assigns
detections to objects, ``precision`` fills the tables.
"""
