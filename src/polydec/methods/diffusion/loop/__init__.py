"""Masked diffusion: a canvas is filled in any order, some gaps a pass."""
