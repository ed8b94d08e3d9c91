"""Draft and verify: a cheap guess at the next tokens, which the model checks in one pass."""
