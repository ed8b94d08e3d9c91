"""Models over bytes and words, one kind a file; `word_kind_names.py` has them by name."""
