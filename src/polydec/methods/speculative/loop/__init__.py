"""Draft and verify: drafters propose a token tree, the target scores it, a verifier accepts a path."""
