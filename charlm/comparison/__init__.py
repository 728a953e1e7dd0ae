"""`charlm compare`: kinds of cells on one text, each trained with settings that fit it, and then measured.

plan.py      what is compared; imports no torch
settings.py  the settings of each kind: models of equal size, or for equal time
compare.py   the trainings, one after the other, and a row of measures for each kind
page.py      what the page of `charlm report` shows of it: table, gradients, a passage that all read, continuations
"""
