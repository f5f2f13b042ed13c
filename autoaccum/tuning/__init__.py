"""The fastest plan at a fixed effective batch: Optuna over the sizes of the solver and the knobs that are allowed.

results.py    what a tuning gives: a row for each trial, the duels, the best
space.py      the candidates: a micro-batch and knobs; which of two is simpler
intervals.py  medians with their intervals, and whether one of two is faster
memory.py     which candidates fit, by a memory model for each set of knobs
proposals.py  which candidate to measure next, and when nothing is left to say
stopwatch.py  windows of real updates in a worker: one candidate until it is known well, or two in turns
study.py      Optuna's study: what is kept in it is enough to go on from; its storage.py and sampler.py
incumbent.py  who is the best so far, and the duels that decide it
tuner.py      the loop: ask, measure, tell
session.py    all of it for one run: from the plans of the search to plans in their measured order
costs.py      what the winner gains, and what it costs, in words
"""
