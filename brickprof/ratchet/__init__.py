"""What was found once is not to come back: an obligation and a test, written from a finding; a pytest plugin to run it.

    writing      a finding and its run -> what has to hold instead (see diagnosis.proposals), as files
    command      what a recorded run was started with -> what a test starts again
    documents    a proposal -> the text of a contract and of a test
    training     a script, trained under watch in a child -> what a test asserts on
    plugin       the fixtures ``brickprof_run`` and ``brickprof_attach``

Nothing is imported here: pytest loads the plugin at every start, in every project that has brickprof installed.
"""
