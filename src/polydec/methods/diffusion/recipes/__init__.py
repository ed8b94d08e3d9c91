"""One published way of unmasking a file: a card, and how its parts are put together."""
