"""Plans for GPUs that are not here: the workload is rehearsed on a virtual one.

cards.py      the GPUs that are known by name, with the memory that CUDA reports of each
constants.py  what a process holds on a card besides torch's memory: remembered from a probe there, else a default
variants.py   what may be changed about the workload, to see what that would give
stage.py      a virtual GPU of one generation, on which each size is run once; company.py has all of them
bands.py      how far a prediction may be off, by what the model computes with, as measured
choosing.py   which of the sizes is the largest that fits, in few runs
fitting.py    the plan for one card
helping.py    what would help most
record.py     the answer: a row for each GPU; sheets.py shows it, files.py writes it
rehearse.py   the line through all of these
prior.py      the same for a probe on a real GPU: where its search starts
"""
