"""What drafting costs and when it pays: measured passes, tree budgets, calibrated confidences."""
