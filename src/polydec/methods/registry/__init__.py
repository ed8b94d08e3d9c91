"""What a method says of itself, what it is given, and how it is found."""
