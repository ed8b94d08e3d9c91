"""Presses: how old keys and values are kept, one published way a file.

`polydec.methods.registry.press` finds them by name.
"""
