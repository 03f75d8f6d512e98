"""Suites: lists of evaluations, run on this machine or on Slurm."""
