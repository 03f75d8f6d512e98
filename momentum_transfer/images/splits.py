"""Seeded, stratified splits of labelled images into a part that trains and one that tests."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from momentum_transfer.core.errors import InputError


def stratified_split(labels: Sequence[Sequence[int]], share: float, seed: int) -> NDArray[np.bool_]:
    """Which items train, bool [N]: iterative stratification (Sechidis et al., ECML 2011) into two parts.

    The rarest class goes first; each of its items goes where most of that class is still wanted, then where most items
    are, then by lot. Items without a label come last. Both parts get an item at least.

    Args:
        labels: the classes of each item: one, several or none.
        share: of the items that train, between 0 and 1.
        seed: of the order and the lots; the split is a function of the labels, the share and the seed.

    Raises:
        InputError: a share that is no share, or fewer than two items.
    """
    if not 0 < share < 1:
        raise InputError(f"expected a share between 0 and 1 of the images for training (--split 0.8), found {share:g}")
    count = len(labels)
    if count < 2:
        raise InputError(f"expected at least two images to split, found {count}; add some, or give --val")
    random = np.random.default_rng(seed)
    classes = [frozenset(found) for found in labels]
    number = sorted(set().union(*classes))
    shares = np.array([share, 1 - share])
    wanted = {k: shares * sum(k in found for found in classes) for k in number}
    room = shares * count
    part = np.full(count, -1)
    order = random.permutation(count)

    def place(item: int, want: NDArray[np.float64]) -> None:
        keys = [(want[side], room[side], random.random()) for side in (0, 1)]
        side = 0 if keys[0] > keys[1] else 1
        part[item] = side
        room[side] -= 1
        for k in classes[item]:
            wanted[k][side] -= 1

    members: dict[int, list[int]] = {k: [] for k in number}
    for item in (int(i) for i in order):
        for k in classes[item]:
            members[k].append(item)
    left = set(number)
    while left:
        rarest = min(left, key=lambda k: (wanted[k].sum(), k))  # what is wanted is what is not yet placed
        for item in members[rarest]:
            if part[item] < 0:
                place(item, wanted[rarest])
        left.discard(rarest)
    for item in (int(i) for i in order if part[i] < 0):
        place(item, room)
    for side in (0, 1):
        if not (part == side).any():
            part[order[0]] = side
    return np.asarray(part == 0)
