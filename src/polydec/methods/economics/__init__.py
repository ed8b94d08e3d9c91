"""What drafting costs and when it pays: measured passes, tree budgets, calibration of confidences."""
