"""How many trials a search takes: autoaccum beside the tools that people use instead. `python -m benchmarks.search`.

cases.py      models, imagined GPUs, targets; workloads/ holds the models
tasks.py      what is to be done, kept in files; forks.py does it, each in a fresh process
truth.py      what really fits; oracle.py asks for it, trials.py runs one size
ours.py       autoaccum; workers.py has its workers forked
contests.py   the peers; peers.py and course.py let them run
on_cpu.py     the same on the CPU
scores.py     rows for the CSV files, and their summary; picture.py draws it
"""
