"""Text to training windows: sources → corpus (cached ids, splits) → streams.

Nothing is imported here, so that the command line can list sources without loading torch.
"""
