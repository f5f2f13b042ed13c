"""Where memory goes: a trial taken apart at the moment when most memory is in use.

record.py   the parts: parameters, gradients, activations by module ...
dissect.py  the trial, with the allocator's history on
watch.py    what runs during it, and where its tensors are
replay.py   the history played once more, up to the peak
labels.py   what people call the modules of a model

And what decides how far a virtual GPU can be trusted:

traits.py   operations by kind, and reads of what was computed
observe.py  one update, with every operator looked at
flops.py    the operations that one of them takes
"""
