"""Frozen features: extracted once, cached by content, read from files."""
