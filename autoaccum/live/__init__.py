"""Probing live objects in the user's own process, and leaving everything as it was.

objects.py      a look at what was given, and the subject of trials that it makes
state.py        models and optimizers, to be put back bit for bit
ambient.py      what is set for all of torch, likewise
fingerprint.py  what a plan depends on
cache.py        a plan kept in a file
planner.py      autoaccum.plan itself
"""
