"""Suites of `polydec bench` that measure by themselves, in place of the time that methods take: one
file each."""
