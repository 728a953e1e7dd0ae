"""Pages of HTML that need nothing else: no network, no server, no library.

page.py     html_page: data, a body, its style and its modules as one file
shared/     what several pages have: the frame, the style, numbers, colors, scales, small charts, the text to point at,
            the bars of a prediction
<name>/     a page: page.html (its body), page.css, and plain JavaScript modules, of which main.js imports the others
"""
