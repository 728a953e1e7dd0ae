"""The machine: device, threads, cache, lock, files; console output and its formatting."""
