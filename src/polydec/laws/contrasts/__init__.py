"""How rows of several laws become one: a rule a file."""
