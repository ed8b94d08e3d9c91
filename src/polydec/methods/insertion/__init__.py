"""Insertion: models that put tokens anywhere into a text."""
