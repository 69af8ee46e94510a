"""A run that is being recorded, as something to look at.

Enters: a ``Scene``, which ``brickprof.live`` makes from a journal. Leaves: lines of a terminal, or JSON for a page.

    scene      what one look at a run shows, as plain data
    plot       numbers -> a small curve of characters
    map        gradients by block and step -> rows of characters
    screen     a scene -> the full screen of ``brickprof watch``
    line       a scene -> one line, where there is no terminal
    facts      a scene -> JSON for the page of ``brickprof serve``
    shell      the page itself, its style and its script
"""
