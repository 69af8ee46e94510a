"""NVML as a script: cards that say what a test tells them to. Also a ``pynvml`` when it is first on PYTHONPATH."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

GIB = 2**30


class NVMLError_NotSupported(Exception):
    pass


class NVMLError_GpuIsLost(Exception):
    pass


class NVMLError_Timeout(Exception):
    pass


class Card:
    def __init__(self, name="NVIDIA H200", uuid="GPU-aaaa", **fields):
        self.name, self.uuid = name, uuid
        self.utilisation, self.used, self.total = 90, 40 * GIB, 140 * GIB
        self.power, self.limit, self.clocks, self.highest = 500_000, 700_000, (1980, 3201), (1980, 3201)
        self.temperature, self.throttle, self.ecc = 60, 0, [0, 0]
        self.processes, self.xids = {}, []
        self.unsupported, self.lost, self.slices = set(), False, []
        self.__dict__.update(fields)


class FakeNvml:
    """The functions of pynvml that are asked."""

    def __init__(self, *cards):
        self.cards = list(cards)
        self.asked = []
        self.shut = 0

    def nvmlInit(self):
        return None

    def nvmlShutdown(self):
        self.shut += 1

    def nvmlSystemGetDriverVersion(self):
        return "570.86.15"

    def nvmlDeviceGetCount(self):
        return len(self.cards)

    def nvmlDeviceGetHandleByIndex(self, at):
        return self.cards[at]

    def nvmlDeviceGetHandleByUUID(self, uuid):
        return next(each for card in self.cards for each in (card, *card.slices) if each.uuid == uuid)

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, part):
        return next(card for card in self.cards if part in card.slices)

    def nvmlDeviceGetIndex(self, card):
        return self.cards.index(card)

    def nvmlDeviceGetMigMode(self, card):
        return [1, 1] if card.slices else [0, 0]

    def nvmlDeviceGetMaxMigDeviceCount(self, card):
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, card, place):
        return card.slices[place]

    def nvmlEventSetCreate(self):
        return []

    def nvmlDeviceRegisterEvents(self, card, kinds, events):
        self._ask(card, "Events")
        events.append(card)

    def nvmlEventSetWait_v2(self, events, timeout):
        assert timeout == 0
        for card in events:
            if card.xids:
                return SimpleNamespace(eventType=8, eventData=card.xids.pop(0), device=card)
        raise NVMLError_Timeout

    def nvmlEventSetFree(self, events):
        events.clear()

    def _ask(self, card, name):
        self.asked.append(name)
        if card.lost:
            raise NVMLError_GpuIsLost
        if name in card.unsupported or "all" in card.unsupported:
            raise NVMLError_NotSupported


def _answer(name, value):
    def asked(self, card, *details):
        self._ask(card, name)
        return value(card, *details)

    setattr(FakeNvml, f"nvmlDevice{name}", asked)


for _name, _value in {
    "GetName": lambda card: card.name.encode(),
    "GetUUID": lambda card: card.uuid,
    "GetUtilizationRates": lambda card: SimpleNamespace(gpu=card.utilisation, memory=10),
    "GetMemoryInfo": lambda card: SimpleNamespace(used=card.used, total=card.total),
    "GetPowerUsage": lambda card: card.power,
    "GetEnforcedPowerLimit": lambda card: card.limit,
    "GetClockInfo": lambda card, which: card.clocks[which - 1],
    "GetMaxClockInfo": lambda card, which: card.highest[which - 1],
    "GetTemperature": lambda card, sensor: card.temperature,
    "GetCurrentClocksEventReasons": lambda card: card.throttle,
    "GetTotalEccErrors": lambda card, kind, counter: card.ecc[kind],
    "GetComputeRunningProcesses": lambda card: [
        SimpleNamespace(pid=pid, usedGpuMemory=held) for pid, held in card.processes.items()
    ],
}.items():
    _answer(_name, _value)


class _Below(dict):
    """Whatever the supervisor has started: as if it computed on the card."""

    def items(self):
        children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
        return [(int(pid), GIB) for pid in children]


_one = FakeNvml(Card(processes=_Below()))
for _name in dir(FakeNvml):
    if _name.startswith("nvml"):
        globals()[_name] = getattr(_one, _name)
