"""What a model reads in the place of words, trained for a model and a text of one's own: one kind a
file, which `lab/train/context.py` finds."""
