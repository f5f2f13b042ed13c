"""A report as files: report.json is the capture, everything else is made from it.

record.py   the report itself
files.py    the run folder, and writing that leaves no half-written file
tables.py   samples.csv and plans.csv, through pandas
"""
