"""The web page of a run, in parts.

Enters: a ``Run`` and its ``Diagnosis``. Leaves: what ``brickprof.reports.html`` puts into one file.

    curves     numbers by step -> thinned series that keep their extremes, ranks beside each other
    heat       gradients and updates by layer and step -> the cells of a heat map
    steps      timed steps -> what their time went to, and their bricks one by one
    resources  memory, cards, copies and host reads by step -> panels
    ranks      what each rank tells -> maps of how far they are apart
    graph      contracts and what they rest on -> nodes and edges
    proof      evidence ids -> the values of the records, and their place in the pictures
    parts      a diagnosis -> HTML, every foreign string escaped
    sections   the places of the pictures, each only where there is something to draw
    tables     contracts, bricks, kernels, copies, what a log holds -> HTML
    shell      all of it -> one document with its style, its script and a strict policy

The script is one file a picture, joined by ``shell``: ``base.js`` (canvas, colours, hands), ``lines.js``, ``heat.js``,
``depth.js``, ``budget.js``, ``timeline.js``, ``graph.js``, and ``page.js``, which puts them into their places.
"""
