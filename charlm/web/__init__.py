"""Pages of HTML that need nothing else: no network, no server, no library.

page.py     html_page: data, a template, its style and its modules as one file
<name>/     a page: page.html, page.css, and plain JavaScript modules, of which main.js is the last
"""
