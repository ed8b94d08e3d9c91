"""What a model reads in the place of words: one kind of training a file, which `lab/train/context.py`
finds."""
