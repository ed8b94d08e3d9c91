"""Who guesses tokens ahead of the target: a mechanism a file."""
