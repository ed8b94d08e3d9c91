"""Which texts an answer may be: what users ask for (a regex, a JSON schema, a grammar, choices, spans of a text), and the
languages of tokens that are made of it."""
