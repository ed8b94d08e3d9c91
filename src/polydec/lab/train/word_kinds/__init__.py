"""Models over bytes and words, one kind a file; `known.py` has them by name."""
