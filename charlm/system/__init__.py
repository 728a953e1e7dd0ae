"""The machine below charlm: device, threads, cache, locks, and what is written on stderr."""
