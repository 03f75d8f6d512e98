"""Low-shot linear SVMs: the protocol, and the solvers."""
