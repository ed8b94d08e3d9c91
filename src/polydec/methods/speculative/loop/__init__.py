"""Draft and verify: a drafter proposes a token tree, the target scores it, a verifier accepts."""
