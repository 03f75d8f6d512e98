"""Labelled images by name, parts of them, and views of them."""
