"""One published search a file: a card, and how its parts are put together."""
