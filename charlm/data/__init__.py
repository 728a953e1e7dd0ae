"""From text to training windows: sources → corpus (cached ids, splits) → streams.

    sources.py    the files of a source: a file, a folder, a glob or a builtin
    fetch.py      texts to download
    reading.py    files and pipes in chunks, as training reads them
    vocabulary.py characters ↔ ids
    counting.py   which characters a source has, and how often
    corpus.py     a text as ids, in splits
    splits.py     how texts, and lines that are records, are cut into splits
    records.py      texts whose lines are records: as a model reads them, and where they start
    time_order.py whether lines stand in order of time or number
    hashes.py     hashes of lines and n-grams
    cache.py      arrays of ids in the cache
    streams.py    windows of B streams of a text, or of its lines; the random order of lines in training
    outputs.py    files that charlm writes where the user says, which are no texts

This file imports nothing, so that the command line can list sources without loading torch.
"""
