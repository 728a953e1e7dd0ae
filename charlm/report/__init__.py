"""`charlm report`: the curves, settings, samples and scores of runs as one page. Imports no torch."""

from charlm.report.page import report_data, report_page, sample_data
from charlm.report.run import RunRecord, read_run, runs_in

__all__ = ["RunRecord", "read_run", "report_data", "report_page", "runs_in", "sample_data"]
