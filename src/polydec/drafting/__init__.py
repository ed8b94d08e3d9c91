"""What several roles share that decide how much to guess: trees being built, costs, calibration."""
