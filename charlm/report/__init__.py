"""`charlm report`: the curves, settings, samples and scores of runs as one page. Imports no torch."""

from charlm.report.page import report_page
from charlm.report.run import RunRecord, read_run, runs_in

__all__ = ["RunRecord", "read_run", "report_page", "runs_in"]
