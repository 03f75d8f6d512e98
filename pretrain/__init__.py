"""Self-supervised pretraining of ResNets: Momentum² Teacher, BYOL, MoCo, SimSiam, and any of them with EMAN."""

import os
import warnings

# Threads that wait should sleep: spinning ones make a step many times slower as soon as another process wants a core.
# Read by OpenMP when torch is imported, so it is set before.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# fvcore.nn decorates functions with torch.jit.script at import; nothing here uses them and no user can act on it.
warnings.filterwarnings("ignore", message=".*torch.jit.script.* is deprecated", category=FutureWarning)
