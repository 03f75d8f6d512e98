"""Labelled images by name, subsets of them, and the random views that pretraining takes."""
