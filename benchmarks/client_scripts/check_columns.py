"""What is checked of every client, in the order of the table's columns."""

COLUMNS = (
    "chat",
    "stream",
    "schema",
    "tools",
    "logprobs",
    "embeddings",
    "errors",
    "several",
    "state",
)
