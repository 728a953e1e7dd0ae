"""From text to training windows: sources → corpus (cached ids, splits) → streams.

    sources.py    the files of a source: a file, a folder, a glob or a builtin
    fetch.py      texts to download
    reading.py    the bytes of files and pipes, in chunks
    records.py    a text as training reads it, with one symbol for a separator; texts of records, and where they start
    vocabulary.py characters ↔ ids
    counting.py   counts the characters of a source
    corpus.py     a text as ids, in splits
    encoded.py    a text as ids, and what a score of it is of
    splits.py     cuts texts and records into splits
    time_order.py whether lines are sorted by time or number
    polynomial_hashes.py  hashes of records and n-grams
    cache.py      arrays of ids in the cache
    streams.py    windows of B streams of a text or its records; the random order of records
    outputs.py    output files at paths of the user's choice

This file imports nothing, so that the command line can list sources without loading torch.
"""
