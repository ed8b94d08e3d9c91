"""What knows nothing of decoding: checks of what comes from outside, files, processes, options, plug-ins."""
