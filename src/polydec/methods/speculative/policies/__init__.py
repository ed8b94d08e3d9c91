"""How much is guessed next: a rule a file."""
