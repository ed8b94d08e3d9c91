"""How old keys and values are kept: one published way a file, found by its name (`polydec.methods.registry.press`)."""
