"""Where the patches' signals go: to the sessions that are recording, and to nobody else.

Enters: calls from ``brickprof.capture.patches``. Leaves: the same calls on every live session. A session is
made lazily, at the first sign of training in this process, by the ``factory`` that ``arm`` set; a process
that never trains (a loader worker, a launcher) therefore never writes anything. A forked child starts
again with no session of its own.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from typing import Any

from brickprof.capture.desk import desk
from brickprof.capture.session import Session
from brickprof.capture.stretch import Stretch

Factory = Callable[[], Session | None]

sessions: list[Session] = []
norms_wanted: Callable[[], None] | None = None
"""Called when a session wants the norms of a clip for the first time: what catches them is not there before."""
every_batch = False
"""Whether batches are looked at in steps that nobody looks at else: where steps are slow, for a while."""
keeps_graph = False
"""Whether the backward that is looked at leaves its graph, and so its activations, to whoever still holds it."""
in_part = False
"""Whether it is one of some leaves only."""
exhausted = 0
"""The id of what draws the batches of a loader that had none any more when one was last asked for: an epoch is over."""
_factory: Factory | None = None
_making = False
_lock = threading.Lock()
_counter = time.perf_counter_ns
_thread = threading.get_ident


_early: list[tuple[str, dict[str, Any]]] = []
_MOST_EARLY = 64


def set_factory(factory: Factory | None) -> None:
    global _factory
    _factory = factory


def add(session: Session) -> None:
    settle(force=True)
    sessions.append(session)
    session.turned, session.settle, session.passes_forward = listen, settle, forward
    early, _early[:] = list(_early), []
    for kind, fields in early:
        session.fact(kind, fields, always=True)
    listen()


def remove(session: Session) -> None:
    settle(force=True)
    with contextlib.suppress(ValueError):
        sessions.remove(session)
    listen()


def training() -> None:
    """A sign of training: from now on this process records, if it was armed."""
    global _factory, _making
    if _factory is None or _making:
        return
    with _lock:
        factory, _factory = _factory, None
        if factory is None:
            return
        _making = True
        try:
            session = factory()
            if session is not None:
                add(session)
        except Exception:
            return
        finally:
            _making = False


def settle(*, force: bool = False) -> None:
    """Ends the stretch under way, if any: the session learns what has passed before anything else happens.

    Another thread's is only stopped, unless ``force``: until its own thread gets to it, it stays on the desk.
    One that is gone never will.
    """
    ended = desk.stretch
    if ended is None:
        return
    if ended.thread != _thread() and not force and _alive(ended.thread):
        ended.stop()
        return
    desk.stretch = None
    try:
        ended.over()
    except Exception as error:
        for session in tuple(sessions):
            _failed(session, error)


def _alive(thread: int) -> bool:
    return any(each.ident == thread for each in threading.enumerate())


def stretch_out(optimizer: Any, before: Stretch | None = None) -> None:
    """A step has passed that nobody looked at, or a stretch of them: do the next ones as well?"""
    if len(sessions) == 1 and not (desk.listening or every_batch) and desk.stretch is None:
        start = _counter()
        with contextlib.suppress(Exception):  # another thread may have ended the session meanwhile
            session = sessions[0]
            desk.stretch = session.stretches.offer(optimizer, before)
            session.pay(_counter() - start)


def goes_on() -> bool:
    """A step begins where the stretch under way has had all the steps or the time that it may have: whether the next
    one follows at once, and has noted that."""
    before = desk.stretch
    if before is None or not before.done:
        return False
    optimizer = before.optimizer
    settle()
    if optimizer is not None:
        stretch_out(optimizer, before)
    following = desk.stretch
    if following is None:
        return False
    return following.begins_step()


def forward() -> bool:
    """A model is about to run: whether the stretch under way, or the next, has noted that a step begins with it."""
    under_way = desk.stretch
    if under_way is not None and under_way.between and (under_way.begins_step() or goes_on()):
        return True
    settle()
    return False


def ran_out(iterator: Any, *, begun: bool) -> None:
    """There was no batch any more: no step has begun with it, unless it had ``begun`` before."""
    global exhausted
    exhausted = _drawn_by(iterator)
    under_way = desk.stretch  # another thread may end it meanwhile
    if under_way is not None:
        under_way.entered = begun


def _drawn_by(iterator: Any) -> int:
    return id(getattr(iterator, "_index_sampler", iterator))


def loads(loader: Any, iterator: Any) -> None:
    """A loader begins. Where it begins again, behind its own end, the steps go on as they did."""
    global exhausted
    again, exhausted = exhausted == _drawn_by(iterator), 0
    if not again or desk.stretch is None or not desk.stretch.done:
        settle()
    for session in tuple(sessions):
        start = _counter()
        session.dispatch.emit("loader_started", loader, iterator)
        session.pay(_counter() - start)


def send(signal: str, *args: Any) -> None:
    """Calls ``signal`` on every session; nothing ever comes back out of here."""
    if desk.stretch is not None:
        settle()
        if desk.stretch is not None:
            return  # this thread is not the one that trains, whose steps are not all told yet
    for session in tuple(sessions):
        start = _counter()
        try:
            getattr(session, signal)(*args)
        except Exception as error:
            _failed(session, error)
        session.pay(_counter() - start)


def pass_backward(losses: list[Any], upstream: Any, plain: bool) -> Session | None:
    """A backward in a step that nobody looks at: the session, if that is all it had to know. A ``plain`` one is of all
    leaves and keeps no graph."""
    if desk.stretch is not None:
        settle()
    if desk.stretch is not None or len(sessions) != 1:
        return None
    session = sessions[0]
    try:
        return session if session.pass_backward(losses, upstream, plain) else None
    except Exception as error:
        _failed(session, error)
        return None


def passes(signal: str, *args: Any) -> bool:
    """A signal that moves the step, in one that nobody looks at: whether that was all the session had to know."""
    if desk.stretch is not None:
        settle()
        if desk.stretch is not None:
            return True  # as above
    if desk.listening or len(sessions) != 1:
        return False
    session = sessions[0]
    try:
        return bool(getattr(session, signal)(*args))
    except Exception as error:
        _failed(session, error)
        return False


def keep_vigil(parameters: Any, *, clipping: bool = False, norms: Any = None) -> None:
    """Gradients of ``parameters``, a list or an optimizer, are about to be clipped or applied: those of a device are
    judged in every step, looked at or not."""
    if desk.stretch is not None:
        settle()
        if desk.stretch is not None:
            return
    for session in sessions:
        if session.vigil is not None and not (session.on.guard or session.on.full):
            start = _counter()
            try:
                if clipping:
                    session.pattern += "x" if norms is None and session.takes_norms else "c"
                session.vigil(parameters, clipping=clipping, norms=norms)
            except Exception as error:
                _failed(session, error)
            session.pay(_counter() - start)


def _failed(session: Session, error: Exception) -> None:
    """A session that cannot go on lets go: one that is stuck in a step would look at it for ever."""
    session.failed("session", error)
    if session.is_off("session"):
        remove(session)
        with contextlib.suppress(Exception):
            session.close()


def listen() -> None:
    """A session went on to another step: is anybody looking now?"""
    desk.listening = any(session.looking for session in sessions)
    desk.takes_norms = any(session.takes_norms for session in sessions)
    if desk.takes_norms and norms_wanted is not None:
        norms_wanted()


def emit(signal: str, *args: Any) -> None:
    """For signals that no session acts on itself: straight to the probes, in steps that are looked at."""
    if not desk.listening:
        return
    for session in sessions:
        start = _counter()
        session.dispatch.emit(signal, *args)
        session.pay(_counter() - start)


def tell(signal: str, *args: Any) -> None:
    """For rare signals: straight to the probes that want them, also in steps that nobody looks at."""
    if desk.stretch is not None:
        settle()
    for session in tuple(sessions):
        start = _counter()
        session.dispatch.emit(signal, *args)
        session.pay(_counter() - start)


def wanted() -> bool:
    """Whether a fact told now would be written, at once or when the training begins."""
    return bool(sessions) or _factory is not None


def fact(kind: str, fields: dict[str, Any]) -> None:
    """Writes a rare fact; one from before the first sign of training waits for the session."""
    if desk.stretch is not None:
        settle()
    if not sessions and _factory is not None and len(_early) < _MOST_EARLY:
        _early.append((kind, fields))
    for session in tuple(sessions):
        with contextlib.suppress(Exception):
            session.fact(kind, fields, always=True)
            if kind == "restored":
                session.attend()


_rearm: Factory | None = None


def remember(factory: Factory) -> None:
    """What a forked child uses, should it turn out to train."""
    global _rearm
    _rearm = factory


def _after_fork() -> None:
    global _lock, _making
    desk.stretch = None
    sessions.clear()
    _early.clear()
    listen()
    _lock, _making = threading.Lock(), False
    set_factory(_rearm)


os.register_at_fork(after_in_child=_after_fork)
