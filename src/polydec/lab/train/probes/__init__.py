"""What `polydec train probe` makes: one recipe a file, which `lab/train/probe.py` finds."""
