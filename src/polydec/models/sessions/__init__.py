"""From the name of a checkpoint to a loaded model with its sessions."""
