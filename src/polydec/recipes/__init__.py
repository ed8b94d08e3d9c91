"""One published method a file: what it is (CARD) and how it is put together (build)."""
