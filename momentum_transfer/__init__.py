"""The ground floor: what pretraining, dense transfer and low-shot evaluation stand on."""

import os
import warnings

# Threads that wait spin briefly, then sleep. Spinning without end makes a step many times slower as soon as another
# process wants a core; sleeping at once makes it up to twice as slow on an idle machine. OpenMP reads both when torch
# is imported, so they are set before.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("GOMP_SPINCOUNT", "20000")

# fvcore.nn decorates functions with torch.jit.script at import; nothing here uses them and no user can act on it.
warnings.filterwarnings("ignore", message=".*torch.jit.script.* is deprecated", category=FutureWarning)
