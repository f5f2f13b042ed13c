"""What a person sees in the terminal. The home of rich.

progress.py  a probe while it runs, on stderr: a row for each trial, and the state of the present one
tables.py    a run that was saved, or two of them, on stdout
"""

from __future__ import annotations

from autoaccum.display.progress import Display, plan_line
from autoaccum.display.tables import show_comparison, show_run

__all__ = ["Display", "plan_line", "show_comparison", "show_run"]
