"""Missing syncs: memory that is used while somebody else is still at it.

    operations of torch ──> operations (what is read, what is written) ──┐
    events, waits, syncs (torch's GPU trace) ──> clocks (who knows what) ┼──> ledger ──> races ──> probes/pending.py
    numpy, tolist, pickle ──> hosts (what the host reads and holds) ─────┘

Enters: what a script does on streams and with pinned memory. Leaves: pairs of the user's lines that touch the same
bytes with nothing between them that orders them. Nothing here waits for a device, and nothing here stops the script.

Triton's launches go the way of operations. What became of a numpy array is read in the script (``readings``).
``clocks``, ``regions``, ``ledger`` and ``races`` know neither torch nor a device.
"""
