"""The knobs that trade memory for speed: the one home of how each is turned on, in trials and in training.

names.py       what may be turned, in words and in variables of the environment; without torch
support.py     which of it cannot be used with this model, optimizer and device, and why
blocks.py      the repeated blocks of a model
checkpoint.py  blocks that keep only their inputs and compute the rest once more for the backward pass
tf32.py        torch's switches of TF32, which changed their names
steps.py       how an optimizer's step is computed: foreach, fused
turn.py        a model and its optimizers with knobs turned, and the way back
prepare.py     the same for a plan's training, which may have turned some of them already
"""
