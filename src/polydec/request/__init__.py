"""A request from its checking to its answer, and what passes cost on this machine."""
