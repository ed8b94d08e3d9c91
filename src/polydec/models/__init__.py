"""From a name to a law: files, tokenizers, networks, compiled passes, sessions and what was trained for a model."""
