"""Unmaskers: which gaps of a canvas are filled after each pass, and with which tokens."""
