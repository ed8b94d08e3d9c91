"""How a request bends the law that tokens are drawn from: a rule of sampling a file."""
