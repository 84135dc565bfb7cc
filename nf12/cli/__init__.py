"""The command `nf12`.

app.py        the commands and their options
failures.py   exit codes, and errors as one line
progress.py   bytes or counts, rate and time left on a terminal
report.py     what commands print
speed.py      the commands that measure: bench and tune
"""

from nf12.cli.app import app, main

__all__ = ["app", "main"]
