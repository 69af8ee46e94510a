"""What cards can do at most: dense TFLOP/s by type of number.

Enters: a card's name as its driver says it. Leaves: its peak. The numbers are those of the vendor's data sheets,
without sparsity, tensor cores with float32 accumulation; float32 alone is without tensor cores. A card that is not
here, a slice of one and a laptop's are not known, and nothing is made up for them.
"""

from __future__ import annotations

import re

_HOPPER = {"float16": 989.4, "tf32": 494.7, "float32": 66.9, "float8": 1978.9}
_HOPPER_NVL = {"float16": 835.5, "tf32": 417.5, "float32": 60.0, "float8": 1670.5}
_A100 = {"float16": 312.0, "tf32": 156.0, "float32": 19.5}

# The first that fits counts.
_PEAKS: tuple[tuple[str, dict[str, float]], ...] = (
    (r"GB200", {"float16": 2500.0, "tf32": 1250.0, "float32": 80.0, "float8": 5000.0}),
    (r"B200", {"float16": 2250.0, "tf32": 1125.0, "float32": 75.0, "float8": 4500.0}),
    (r"B100", {"float16": 1750.0, "tf32": 875.0, "float32": 60.0, "float8": 3500.0}),
    (r"GH200", _HOPPER),
    (r"H200 NVL", _HOPPER_NVL),
    (r"H200", _HOPPER),
    (r"H100 NVL", _HOPPER_NVL),
    (r"H100 PCIe", {"float16": 756.0, "tf32": 378.0, "float32": 51.0, "float8": 1513.0}),
    (r"H100|H800", _HOPPER),
    (r"H20", {"float16": 148.0, "tf32": 74.0, "float32": 44.0, "float8": 296.0}),
    (r"A100|A800", _A100),
    (r"A40", {"float16": 149.7, "tf32": 74.8, "float32": 37.4}),
    (r"A30", {"float16": 165.0, "tf32": 82.0, "float32": 10.3}),
    (r"A10", {"float16": 125.0, "tf32": 62.5, "float32": 31.2}),
    (r"L40S", {"float16": 362.0, "tf32": 183.0, "float32": 91.6, "float8": 733.0}),
    (r"L40", {"float16": 181.0, "tf32": 90.5, "float32": 90.5, "float8": 362.0}),
    (r"L4", {"float16": 121.0, "tf32": 60.0, "float32": 30.3, "float8": 242.5}),
    (r"RTX 6000 Ada", {"float16": 364.2, "tf32": 182.1, "float32": 91.1, "float8": 728.5}),
    (r"RTX A6000", {"float16": 154.8, "tf32": 77.4, "float32": 38.7}),
    (r"RTX 5090(?! D)", {"float16": 209.5, "tf32": 104.8, "float32": 104.8, "float8": 419.0}),
    (r"RTX 4090(?! D)", {"float16": 165.2, "tf32": 82.6, "float32": 82.6, "float8": 330.3}),
    (r"RTX 3090(?! Ti)", {"float16": 71.0, "tf32": 35.6, "float32": 35.6}),
    (r"V100-SXM", {"float16": 125.0, "float32": 15.7}),
    (r"V100-PCIE", {"float16": 112.0, "float32": 14.0}),
    (r"T4", {"float16": 65.0, "float32": 8.1}),
)
_SAME = {"bfloat16": "float16", "half": "float16", "float8_e4m3fn": "float8", "float8_e5m2": "float8"}
_NO_BFLOAT16 = ("V100", "T4")


def peak(card: str, dtype: str) -> float | None:
    """Dense TFLOP/s of ``card`` in ``dtype`` (bfloat16, float16, tf32, float32, float8); None where it is not known."""
    if "Laptop" in card or "MIG" in card or (dtype == "bfloat16" and any(old in card for old in _NO_BFLOAT16)):
        return None
    for pattern, rates in _PEAKS:
        if re.search(rf"(?<![A-Za-z0-9])(?:{pattern})(?![A-Za-z0-9])", card):
            return rates.get(_SAME.get(dtype, dtype))
    return None
