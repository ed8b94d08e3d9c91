"""Networks in torch, their caches and passes."""
