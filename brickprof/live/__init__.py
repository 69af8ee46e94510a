"""Looking at a run while it is recorded, from another process.

Enters: the folder of a run. Leaves: a ``Scene`` as often as one likes. Nothing is ever written into the folder, no
signal is sent, and what was read once is not read again.

    reading     new events and rows of a file that grows, a bounded amount at a time
    course      numbers over steps, in a bounded number of stretches that keep their extremes
    gradients   the last steps of the gradient map
    condition   running, silent, ended or killed: from the journal, the pulses and the process table
    following   all of these together: a folder -> a scene
    judging     the rules, in a process of their own that takes a small share of one core
    finding     which run is meant: the one being recorded, the newest, one of somebody else's
    watching    ``brickprof watch``          keys   the keyboard
    serving     ``brickprof serve``          shelf  the runs it knows      work   reports and comparisons
"""
