"""What a causal network learns of a row of text: one published objective a file."""
