"""What cards can do at most: dense TFLOP/s by type of number.

Enters: a card's name as its driver (or torch) says it. Leaves: its peak. The numbers are those of the vendor's data
sheets and architecture papers, without sparsity, tensor cores with float32 accumulation; float32 alone is without
tensor cores where those would round it (NVIDIA), and with matrix cores where they do not (AMD). A card that is not
here, a slice of one and a laptop's are not known, and nothing is made up for them.
"""

from __future__ import annotations

import re

_HOPPER = {"float16": 989.4, "tf32": 494.7, "float32": 66.9, "float8": 1978.9}
_HOPPER_NVL = {"float16": 835.5, "tf32": 417.5, "float32": 60.0, "float8": 1670.5}
_HOPPER_PCIE = {"float16": 756.0, "tf32": 378.0, "float32": 51.2, "float8": 1513.0}
_A100 = {"float16": 312.0, "tf32": 156.0, "float32": 19.5}
_MI300X = {"float16": 1307.4, "tf32": 653.7, "float32": 163.4, "float8": 2614.9}

# The first that fits counts.
_PEAKS: tuple[tuple[str, dict[str, float]], ...] = (
    (r"GB200", {"float16": 2500.0, "tf32": 1250.0, "float32": 80.0, "float8": 5000.0}),
    (r"B200", {"float16": 2250.0, "tf32": 1125.0, "float32": 75.0, "float8": 4500.0}),
    (r"B100", {"float16": 1750.0, "tf32": 875.0, "float32": 60.0, "float8": 3500.0}),
    (r"GH200", _HOPPER),
    (r"H200 NVL", _HOPPER_NVL),
    (r"H200", _HOPPER),
    (r"H100 NVL", _HOPPER_NVL),
    (r"(?:H100|H800) PCIe|H100 80GB HBM2e", _HOPPER_PCIE),
    (r"(?:H100|H800)(?! CNX| 64GB)", _HOPPER),  # the two have fewer units, or lower clocks
    (r"H20", {"float16": 148.0, "tf32": 74.0, "float32": 44.0, "float8": 296.0}),
    (r"(?:A100|A800)(?!-SXM-64GB)", _A100),  # made for one machine, with more units
    (r"A40", {"float16": 149.7, "tf32": 74.8, "float32": 37.4}),
    (r"A30", {"float16": 165.0, "tf32": 82.0, "float32": 10.3}),
    (r"A10", {"float16": 125.0, "tf32": 62.5, "float32": 31.2}),
    (r"A10G", {"float16": 70.0, "tf32": 35.0}),
    (r"L40S", {"float16": 362.0, "tf32": 183.0, "float32": 91.6, "float8": 733.0}),
    (r"L40", {"float16": 181.0, "tf32": 90.5, "float32": 90.5, "float8": 362.0}),
    (r"L4", {"float16": 121.0, "tf32": 60.0, "float32": 30.3, "float8": 242.5}),
    (r"RTX 6000 Ada", {"float16": 364.2, "tf32": 182.1, "float32": 91.1, "float8": 728.5}),
    (r"RTX A6000", {"float16": 154.8, "tf32": 77.4, "float32": 38.7}),
    (r"RTX 5090(?! D)", {"float16": 209.5, "tf32": 104.8, "float32": 104.8, "float8": 419.0}),
    (r"RTX 4090(?! D)", {"float16": 165.2, "tf32": 82.6, "float32": 82.6, "float8": 330.3}),
    (r"RTX 3090(?! Ti)", {"float16": 71.0, "tf32": 35.6, "float32": 35.6}),
    (r"V100-SXM2", {"float16": 125.0, "float32": 15.7}),
    (r"V100-PCIE", {"float16": 112.0, "float32": 14.0}),
    (r"V100S-PCIE", {"float16": 130.0, "float32": 16.4}),
    (r"T4", {"float16": 65.0, "float32": 8.1}),
    (r"MI325X|MI300X", _MI300X),
    (r"MI300A", {"float16": 980.6, "tf32": 490.3, "float32": 122.6, "float8": 1961.2}),
    # Two dies, of which torch sees each as a device of its own.
    (r"MI250X", {"float16": 191.5, "float32": 47.9}),
    (r"MI250|MI210", {"float16": 181.0, "float32": 45.3}),
)
_SAME = {
    "bfloat16": "float16", "half": "float16", "float8_e4m3fn": "float8", "float8_e5m2": "float8",
    "float8_e4m3fnuz": "float8", "float8_e5m2fnuz": "float8",
}  # fmt: skip
_NO_BFLOAT16 = re.compile(r"V100|\bT4\b")
_SLICE = re.compile(r"Laptop|MIG|GRID|-\d+(?:-\d+)?[ABCQ]$|Max-Q")
"""A laptop's card, a part of one, or one that a hypervisor shares out."""


def peak(card: str, dtype: str) -> float | None:
    """Dense TFLOP/s of ``card`` in ``dtype`` (bfloat16, float16, tf32, float32, float8); None where it is not known."""
    if _SLICE.search(card) or (dtype == "bfloat16" and _NO_BFLOAT16.search(card)):
        return None
    for pattern, rates in _PEAKS:
        if re.search(rf"(?<![A-Za-z0-9])(?:{pattern})(?![A-Za-z0-9])", card):
            return rates.get(_SAME.get(dtype, dtype))
    return None
