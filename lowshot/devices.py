"""Where evaluations run."""

import torch

from momentum_transfer import distributed


def device() -> torch.device:
    """This process's CUDA device if there is one, else the CPU."""
    return torch.device("cuda", distributed.local_rank()) if torch.cuda.is_available() else torch.device("cpu")
