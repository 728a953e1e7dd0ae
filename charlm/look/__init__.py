"""What a model does with a text, on one page of HTML that needs nothing else.

features.py  the words that surprise most, features of a text, and the units that track them
part.py      which part of which text; of two models, what they were trained on
page.py      look_page: all of it as one page; charlm/web/look/ shows it
"""

from charlm.look.page import look_page, shown_part, shown_text
from charlm.look.part import beginning, opening, unseen_text

__all__ = ["beginning", "look_page", "opening", "shown_part", "shown_text", "unseen_text"]
