"""The web page of a run, in parts.

Enters: a ``Run`` and its ``Diagnosis``. Leaves: what ``brickprof.reports.html`` puts into one file.

    curves     numbers by step -> thinned series that keep their extremes
    heat       gradients by layer and step -> the cells of the heat map
    proof      evidence ids -> the values of the records, and their place in the pictures
    parts      a diagnosis -> HTML, every foreign string escaped
    tables     contracts, bricks, what a log holds -> HTML
    shell      all of it -> one document with its style, its script and a strict policy
"""
