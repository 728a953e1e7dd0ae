"""`charlm report`: the curves, settings, samples and scores of runs as one page. Imports no torch."""
