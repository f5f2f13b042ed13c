"""Does accumulating equal the full batch, for this model and this loss?

randomness.py  random draws, found and held still
gradients.py   gradients of a batch and of its micro-batches
hypotheses.py  which weights of the micro-gradients make the full one
culprits.py    which layer lets samples see each other
verdicts.py    the answer, in one sentence
examine.py     the whole comparison, in float64
couplings.py   the cheap part of it, after a search, on the device itself
"""
