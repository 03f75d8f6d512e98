"""Self-supervised pretraining of ResNets: Momentum² Teacher, BYOL, MoCo, SimSiam, and any of them with EMAN."""
