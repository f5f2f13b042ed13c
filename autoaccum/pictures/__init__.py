"""The picture of memory against the micro-batch: what is in it, and two libraries that draw it.

memory.py   the curves and points, from a plan's evidence (pure)
theme.py    the colours and the layout that all charts share
figure.py   an interactive figure (plotly), for notebooks and report.html
static.py   a file for papers: SVG, PNG or PDF (matplotlib)
"""
