"""All that a rule can see: one trace with memoised metrics, places in the program, what-ifs."""

from kinetoscope.analysis.core import Analysis
from kinetoscope.analysis.measured import AnalysisOptions, Need

__all__ = ["Analysis", "AnalysisOptions", "Need"]
