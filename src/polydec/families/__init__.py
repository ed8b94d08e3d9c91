"""Families of methods, each with its protocols and its loop in one folder: ar (draft and verify)."""
