"""The cards of this machine, asked through NVML.

Enters: the ``pynvml`` module (or something that speaks like it) and CUDA_VISIBLE_DEVICES. Leaves: ``Device``s and what
each says of itself. Every question may be one that a card, a driver, a container or a MIG slice does not answer: the
answer is None then, and a question that can have no answer is not asked again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

THROTTLES = {
    0x1: "idle",
    0x2: "application_clocks",
    0x4: "power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "thermal",
    0x40: "hw_thermal",
    0x80: "power_brake",
    0x100: "display_clocks",
    0x200: "board_limit",
    0x400: "reliability",
}
"""Bits of the clocks' event reasons, in words."""

_NEVER = ("NotSupported", "FunctionNotFound", "NoPermission", "AttributeError", "InvalidArgument")
_SM, _MEMORY, _CORRECTED, _UNCORRECTED, _VOLATILE, _XID = 1, 2, 0, 1, 0, 0x8
_MOST_XIDS = 64


class NoCards(Exception):
    """NVML cannot be asked here; says why."""


@dataclass(frozen=True, slots=True)
class Look:
    """One look at a card. None: it does not say."""

    utilisation: float | None = None
    memory_used: int | None = None
    memory_total: int | None = None
    power: float | None = None
    power_limit: float | None = None
    sm_clock: float | None = None
    memory_clock: float | None = None
    temperature: float | None = None
    throttle: tuple[str, ...] | None = None

    def known(self) -> list[str]:
        return [name for name in self.__slots__ if getattr(self, name) is not None]


class Device:
    """One card, or one MIG slice of it; then ``card`` is the handle of the whole."""

    def __init__(self, library: Any, handle: Any, index: int, card: Any = None) -> None:
        self.index = index
        self.mig = card is not None
        self.lost = False
        self._library = library
        self._handle = handle
        self._card = card if card is not None else handle
        self._unanswered: set[tuple[Any, ...]] = set()
        self._events: Any = None

    def look(self) -> Look:
        rates, memory = self._own("GetUtilizationRates"), self._own("GetMemoryInfo")
        power, limit = self._whole("GetPowerUsage"), self._whole("GetEnforcedPowerLimit")
        return Look(
            utilisation=_attribute(rates, "gpu", 0.01),
            memory_used=_whole_number(_attribute(memory, "used")),
            memory_total=_whole_number(_attribute(memory, "total")),
            power=_scaled(power, 1e-3),
            power_limit=_scaled(limit, 1e-3),
            sm_clock=_scaled(self._whole("GetClockInfo", _SM)),
            memory_clock=_scaled(self._whole("GetClockInfo", _MEMORY)),
            temperature=_scaled(self._whole("GetTemperature", 0)),
            throttle=self._throttle(),
        )

    def about(self) -> dict[str, Any]:
        """What does not change."""
        facts = {
            "name": _text(self._whole("GetName")),
            "uuid": _text(self._own("GetUUID")),
            "mig": self.mig,
            "sm_clock_max": _scaled(self._whole("GetMaxClockInfo", _SM)),
            "memory_clock_max": _scaled(self._whole("GetMaxClockInfo", _MEMORY)),
        }
        return {name: value for name, value in facts.items() if value is not None}

    def ecc(self) -> tuple[int | None, int | None]:
        """Memory errors since the driver was loaded: corrected, and uncorrected."""
        found = (self._whole("GetTotalEccErrors", kind, _VOLATILE) for kind in (_CORRECTED, _UNCORRECTED))
        corrected, uncorrected = (_whole_number(_scaled(each)) for each in found)
        return corrected, uncorrected

    def processes(self) -> dict[int, int | None] | None:
        """Processes that compute here, each with its bytes; None where they are not told."""
        listed = self._own("GetComputeRunningProcesses")
        if listed is None:
            return None
        return {int(each.pid): _whole_number(_scaled(each.usedGpuMemory)) for each in listed}

    def xids(self) -> list[int]:
        """Errors that the driver has reported since the last time; never waits."""
        if self._events is None:
            self._events = self._listening()
        found: list[int] = []
        with suppress(Exception):  # a timeout: there is no more
            while self._events is not False and len(found) < _MOST_XIDS:
                data = _wait(self._library, self._events)
                if data.eventType == _XID:
                    found.append(int(data.eventData))
        return found

    def close(self) -> None:
        if self._events not in (None, False):
            with suppress(Exception):
                self._library.nvmlEventSetFree(self._events)
        self._events = False

    def _listening(self) -> Any:
        try:
            events = self._library.nvmlEventSetCreate()
            self._library.nvmlDeviceRegisterEvents(self._card, _XID, events)
        except Exception:
            return False
        return events

    def _throttle(self) -> tuple[str, ...] | None:
        bits = self._whole("GetCurrentClocksEventReasons")
        if bits is None:
            bits = self._whole("GetCurrentClocksThrottleReasons")  # drivers and bindings before 535
        return None if bits is None else words(int(bits))

    def _own(self, name: str, *details: int) -> Any:
        return self._ask(self._handle, name, *details)

    def _whole(self, name: str, *details: int) -> Any:
        return self._ask(self._card, name, *details)

    def _ask(self, handle: Any, name: str, *details: int) -> Any:
        if (name, *details) in self._unanswered:
            return None
        try:
            return getattr(self._library, f"nvmlDevice{name}")(handle, *details)
        except Exception as error:
            kind = type(error).__name__
            self.lost = self.lost or kind.endswith("GpuIsLost")
            if kind.endswith(_NEVER):
                self._unanswered.add((name, *details))
            return None


def words(bits: int) -> tuple[str, ...]:
    """The reasons behind a bit mask; a bit that has no name yet is told by its number."""
    known = [word for bit, word in THROTTLES.items() if bits & bit]
    rest = bits & ~sum(THROTTLES)
    return (*known, hex(rest)) if rest > 0 else tuple(known)


def library() -> Any:
    """NVML, ready to be asked; ``NoCards`` where there is none."""
    try:
        import pynvml
    except Exception as error:
        raise NoCards(f"nvidia-ml-py cannot be imported: {error}") from None
    try:
        pynvml.nvmlInit()
    except Exception as error:
        raise NoCards(f"NVML cannot be used: {error}") from None
    return pynvml


def driver(library: Any) -> str:
    with suppress(Exception):
        return _text(library.nvmlSystemGetDriverVersion()) or ""
    return ""


def devices(library: Any, environment: Mapping[str, str]) -> list[Device]:
    """The devices that a process with ``environment`` can use, in the order it numbers them."""
    try:
        cards = [library.nvmlDeviceGetHandleByIndex(at) for at in range(int(library.nvmlDeviceGetCount()))]
    except Exception:
        return []
    wanted = environment.get("CUDA_VISIBLE_DEVICES")
    if wanted is None:
        return [device for at, card in enumerate(cards) for device in _of_card(library, card, at)]
    found: list[Device] = []
    for word in wanted.split(","):
        named = _named(library, cards, word.strip())
        if not named:  # CUDA itself stops at the first that is not there
            break
        found += named
    return found


def _of_card(library: Any, card: Any, at: int) -> list[Device]:
    """The card, or its slices where it is cut into some."""
    slices: list[Device] = []
    with suppress(Exception):
        if library.nvmlDeviceGetMigMode(card)[0] == 1:
            for place in range(int(library.nvmlDeviceGetMaxMigDeviceCount(card))):
                with suppress(Exception):
                    slices.append(Device(library, library.nvmlDeviceGetMigDeviceHandleByIndex(card, place), at, card))
    return slices or [Device(library, card, at)]


def _named(library: Any, cards: Sequence[Any], word: str) -> list[Device]:
    if word.isdigit():
        at = int(word)
        return _of_card(library, cards[at], at)[:1] if at < len(cards) else []
    with suppress(Exception):
        if word.startswith("MIG-"):
            part = library.nvmlDeviceGetHandleByUUID(word)
            card = library.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(part)
            return [Device(library, part, int(library.nvmlDeviceGetIndex(card)), card)]
    for at, card in enumerate(cards):
        with suppress(Exception):
            if word and (_text(library.nvmlDeviceGetUUID(card)) or "").startswith(word):
                return [Device(library, card, at)]
    return []


def _wait(library: Any, events: Any) -> Any:
    wait = getattr(library, "nvmlEventSetWait_v2", None) or library.nvmlEventSetWait
    return wait(events, 0)


def _attribute(answer: Any, name: str, scale: float = 1.0) -> float | None:
    return _scaled(getattr(answer, name, None), scale)


def _scaled(value: Any, scale: float = 1.0) -> float | None:
    known = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) * scale if known else None


def _whole_number(value: float | None) -> int | None:
    return None if value is None else int(value)


def _text(value: Any) -> str | None:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value if isinstance(value, str) else None
