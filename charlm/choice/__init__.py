"""Chooses settings from the text, the machine's speed, and a rule that predicts a model's score.

suggest.py   the choice, step by step
families.py  the models to choose from, and what the user asks for
speed.py     how long their updates take on this machine
rule.py      which is best
recipe.py    all other settings of the best
"""
