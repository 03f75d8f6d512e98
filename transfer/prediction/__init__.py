"""Prediction on new images by a finished run, with no data set and no scoring."""
