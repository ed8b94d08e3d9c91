"""What a model reads in the place of words: one kind of training a file, which `train/context.py`
finds."""
