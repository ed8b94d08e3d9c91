"""What only benchmarks and their tests read: laws of acceptance, simulated overlap, searches over layers, scores of dates."""
