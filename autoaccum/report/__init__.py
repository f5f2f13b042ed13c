"""A run as files: report.json is the capture, everything else is made from it.

record.py      the report itself, and schema.json, which says what is in the file (schema.py makes it)
files.py       the run folder, reading, and writing that leaves no half-written file
tables.py      the CSV files, through pandas
charts.py      the charts, through plotly (the picture of memory is in pictures/); effects.py: what each knob did
sheets.py      the tables that people read; words.py: the answer in a sentence
page.py        report.html, from page.html, page.css and page.js
replanning.py  autoaccum plan: other questions, answered from the same run; past.py: what that run knows
comparing.py   autoaccum compare: two runs, and gates
"""
