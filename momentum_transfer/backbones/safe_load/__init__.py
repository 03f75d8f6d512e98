"""Files from strangers: tensors come out, code never runs."""
