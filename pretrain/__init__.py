"""Self-supervised pretraining: Momentum² Teacher, BYOL, MoCo, SimSiam, and any of them with EMAN."""
