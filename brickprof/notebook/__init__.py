"""brickprof in a notebook.

Enters: a ``Run``, a ``Diagnosis``, a cell that trains. Leaves: HTML that needs no script, plotly's figures, a run.

    words      a diagnosis, a finding, a run -> one line, and a few lines of Markdown
    cards      the same -> HTML for the output of a cell
    pictures   curves and the heat map of gradients -> small SVG
    style      the one style of all cards, light and dark
    plots      ``run.plot``: the figures
    figures    what is drawn -> plotly
    lanes      the spans of one step -> bars in lanes
    magic      ``%%brickprof``
"""
