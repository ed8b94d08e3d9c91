"""What `polydec train` makes for a model beside weights: a file for each kind, which reads, writes and computes it."""
