"""Thin command lines; in the wheel the package ``momentum_transfer_tools``, which nothing imports but its own files."""
