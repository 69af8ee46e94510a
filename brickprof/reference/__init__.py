"""The bundled training loop, and the faults that prove what brickprof sees.

Enters: a configuration, perhaps the name of a fault. Leaves: a training that any run of brickprof can watch.
"""
