"""What a model does with a text, on one page of HTML that needs nothing else.

predictions.py  predictions of every character, activations, and the loss by length of context
features.py     the words that surprise most, features of a text, and the units that track them
page.py         look_page: all of it as one page; charlm/web/look/ shows it
"""

from charlm.look.page import beginning, look_page, opening, shown_part, shown_text

__all__ = ["beginning", "look_page", "opening", "shown_part", "shown_text"]
