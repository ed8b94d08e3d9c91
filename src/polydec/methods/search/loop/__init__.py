"""Searches: many texts are tried, the best are answered."""
