"""What each `polydec train KIND` can be told: one kind a file, without torch, so that `--help` needs no seconds."""
