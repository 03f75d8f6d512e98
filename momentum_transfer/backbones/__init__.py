"""Backbones: built, read from any checkpoint, written in other layouts, compared."""
