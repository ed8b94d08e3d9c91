"""Which gaps of a canvas are filled after each pass, and with what."""
