"""Self-supervised pretraining of ResNets: Momentum² Teacher, BYOL, MoCo, SimSiam, and any of them with EMAN."""

import warnings

# fvcore.nn decorates functions with torch.jit.script at import; nothing here uses them and no user can act on it.
warnings.filterwarnings("ignore", message=".*torch.jit.script.* is deprecated", category=FutureWarning)
