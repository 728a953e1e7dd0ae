"""`charlm report`: the curves, settings, samples and scores of runs as one page. Imports no torch."""

from charlm.report.page import curves_data, report_page, settings_data, text_data
from charlm.report.run import RunRecord, read_run, runs_in

__all__ = ["RunRecord", "curves_data", "read_run", "report_page", "runs_in", "settings_data", "text_data"]
