"""What every test stands on."""

from __future__ import annotations

import signal

from hypothesis import settings

# The same tree gets the same answer: `make test` tries the same examples each time, `make fuzz` looks for new ones.
settings.register_profile("same", derandomize=True)
settings.register_profile("fuzz", derandomize=False)
settings.load_profile("same")

# A runner started in the background ignores these, and so would every script that the tests start.
for ignored in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
    if signal.getsignal(ignored) is signal.SIG_IGN:
        signal.signal(ignored, signal.default_int_handler if ignored is signal.SIGINT else signal.SIG_DFL)
