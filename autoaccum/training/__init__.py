"""The training step that a plan leads to.

guards.py      what makes accumulation impossible, told before the first update
accumulate.py  one update from many backward passes, in the only order that is right
ranks.py       how several ranks make it together: DDP, FSDP2
rewind.py      what a window changes besides gradients, so that it can be run again
noise.py       the gradient noise scale
stepper.py     a rank's whole batch in, one exact update out, also after running out of memory
windows.py     for loops that one call cannot serve
"""
