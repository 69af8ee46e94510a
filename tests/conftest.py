"""What every test stands on."""

from __future__ import annotations

import signal

from hypothesis import HealthCheck, settings

# The same tree gets the same answer: `make test` tries the same examples each time, `make fuzz` looks for new ones.
# How long an example takes says how busy the machine is.
for profile, derandomize in (("same", True), ("fuzz", False)):
    settings.register_profile(
        profile, derandomize=derandomize, deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )
settings.load_profile("same")

# A runner started in the background ignores these, and so would every script that the tests start.
for ignored in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
    if signal.getsignal(ignored) is signal.SIG_IGN:
        signal.signal(ignored, signal.default_int_handler if ignored is signal.SIGINT else signal.SIG_DFL)
