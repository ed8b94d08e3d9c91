"""The whole step of the Llama skeleton in one native call, for CPUs."""
