"""The insertion loop: an answer grows by tokens that are inserted anywhere into it."""
