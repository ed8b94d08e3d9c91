"""Which guesses are accepted: a rule a file."""
