"""Insertion: a text grows by tokens that are put anywhere into it."""
