"""Suites: lists of evaluations, run on this machine, in shards, on Slurm, on Ray or on an engine of another package."""
