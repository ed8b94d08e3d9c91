"""Hostile input on purpose: random requests, files, constraints and bodies for every edge of the
package, and for a server.
"""
