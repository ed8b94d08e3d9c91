"""Which nodes a drafter draws that has a law at hand: a shape a file."""
