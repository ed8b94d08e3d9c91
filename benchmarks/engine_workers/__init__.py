"""One worker for each engine of benchmarks/engine_table.py."""
