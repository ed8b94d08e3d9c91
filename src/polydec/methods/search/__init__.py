"""Searches, votes and rollouts: methods that write several texts and keep some of them."""
