"""Untrusted files: tensors come out, code never runs."""
