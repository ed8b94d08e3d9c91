"""One published way of inserting a file: a card, and how its parts are put together."""
