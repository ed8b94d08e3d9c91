"""The core: data, laws, randomness, scheduling and the loops. It imports nothing from the rooms above it."""
