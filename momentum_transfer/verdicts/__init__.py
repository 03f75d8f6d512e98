"""Verdicts: intervals, tests, bootstrap, power. Arrays in, numbers out; no file, no record, no page."""
