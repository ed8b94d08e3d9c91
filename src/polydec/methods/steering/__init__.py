"""Ways to steer a model: bend its law with a second one, or with vectors; one way a file."""
