"""What `polydec train` makes beside weights: what all kinds share, and layouts that others published."""
