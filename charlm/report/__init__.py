"""`charlm report`: the curves, settings, samples and scores of runs as one page. Imports no torch.

run.py   ReportedRun: what a run has left on disk, as far as it can be read
page.py  report_page: all of it as one page; charlm/web/report/ shows it
"""
