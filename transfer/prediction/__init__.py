"""Prediction on new photographs by a finished run, with no data set and no scoring."""
