"""Masked diffusion: which gaps of a canvas are filled after a pass, and what a pass feeds."""
