"""From text to training windows: sources → corpus (cached ids, splits) → streams.

This file imports nothing, so that the command line can list sources without loading torch.
"""
