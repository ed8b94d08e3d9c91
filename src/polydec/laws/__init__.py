"""What bends a model's law before a token is drawn from it: sampling rules, contrasts, targets, constraints."""
