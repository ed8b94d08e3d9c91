"""Measuring methods: times, acceptance, drift from the exact law, other engines beside this one."""
