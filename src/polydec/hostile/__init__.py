"""Hostile input on purpose: random requests, files, constraints and bodies, thrown at every edge of the package and at a server."""
