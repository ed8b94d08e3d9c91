"""Polydec decodes language models."""
