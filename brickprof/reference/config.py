"""What a reference training is told: every field in one place, read from YAML, wrong ones refused.

Enters: the name of a preset (``tiny``, ``50m``, ``124m``, ``350m``) or a YAML file, and ``field=value`` overrides.
Leaves: a frozen ``Config``. A key that is no field is an error that names the nearest one: a setting that is parsed
and never used is how runs go wrong.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from brickprof.errors import ConfigurationError

PRESETS = Path(__file__).with_name("configs")
DTYPES = ("float32", "bfloat16", "float16")
SCHEDULES = ("cosine", "linear", "constant")
KERNELS = ("auto", "triton", "torch")


@dataclass(frozen=True, slots=True)
class Config:
    # the model
    layers: int = 4
    width: int = 64
    heads: int = 4
    kv_heads: int = 2
    hidden: int = 176
    vocabulary: int = 128
    length: int = 32
    tied: bool = True
    # the data
    sequences: int = 4096
    shards: int = 4
    # the training
    epochs: int = 1
    steps: int = 0
    """Updates to make; 0 means as many as the epochs hold."""
    batch: int = 16
    accumulation: int = 1
    lr: float = 3e-3
    lr_end: float = 0.0
    schedule: str = "cosine"
    warmup: int = 10
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    weight_decay: float = 0.1
    clip: float = 1.0
    """Largest norm of all gradients together (with ``host_ends``, of those of each side); 0 switches clipping off."""
    dtype: str = "float32"
    seed: int = 0
    deterministic: bool = True
    # the run
    evaluate_every: int = 50
    evaluate_batches: int = 4
    checkpoint_every: int = 100
    host_ends: bool = False
    """Embedding and loss stay on the host: three transfers a micro-batch, no more, which every step declares. The
    embedding learns only as the head that it is tied to."""
    kernels: str = "auto"
    """What computes: our Triton kernels, plain torch, or (auto) the kernels on CUDA devices and torch elsewhere."""

    def __post_init__(self) -> None:
        for problem in self._problems():
            raise ConfigurationError(problem)

    def _problems(self) -> list[str]:
        positive = ("layers", "width", "heads", "kv_heads", "hidden", "vocabulary", "length", "sequences", "shards",
                    "epochs", "batch", "accumulation")  # fmt: skip
        found = [
            f"{name} is {getattr(self, name)}; it has to be at least 1." for name in positive if getattr(self, name) < 1
        ]
        if self.heads % max(self.kv_heads, 1) or self.width % (2 * max(self.heads, 1)):
            found.append(
                f"{self.heads} heads do not go into {self.kv_heads} groups, or the width {self.width} not into heads."
            )
        if self.dtype not in DTYPES:
            found.append(f"dtype is {self.dtype!r}; known: {', '.join(DTYPES)}.")
        if self.host_ends and self.dtype == "float16":
            found.append("dtype is 'float16', whose loss scale would travel with host_ends; take another.")
        if self.schedule not in SCHEDULES:
            found.append(f"schedule is {self.schedule!r}; known: {', '.join(SCHEDULES)}.")
        if self.kernels not in KERNELS:
            found.append(f"kernels is {self.kernels!r}; known: {', '.join(KERNELS)}.")
        return found

    @property
    def steps_per_epoch(self) -> int:
        return self.sequences // (self.batch * self.accumulation)

    @property
    def total_steps(self) -> int:
        """Updates that this training will make."""
        most = self.epochs * self.steps_per_epoch
        return min(self.steps, most) if self.steps else most


def read(name: str, overrides: tuple[str, ...] = ()) -> Config:
    """The preset or file ``name``, with ``field=value`` texts applied."""
    import yaml

    path = PRESETS / f"{name}.yaml" if (PRESETS / f"{name}.yaml").is_file() else Path(name)
    try:
        document = yaml.safe_load(path.read_text("utf-8")) or {}
    except OSError:
        known = ", ".join(sorted(preset.stem for preset in PRESETS.glob("*.yaml")))
        raise ConfigurationError(
            f"There is no configuration {name}.", f"Presets: {known}; or give a YAML file."
        ) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{name} is not YAML: {str(error).splitlines()[0]}.") from None
    if not isinstance(document, dict):
        raise ConfigurationError(f"{name} holds no settings.", "A configuration is a mapping, one setting a line.")
    given = {str(key): value for key, value in document.items()}
    for text in overrides:
        key, separator, value = text.partition("=")
        if not separator:
            raise ConfigurationError(f"{text!r} is no override.", "Write field=value.")
        given[key.strip()] = yaml.safe_load(value)
    return changed(Config(), given, where=name)


def changed(config: Config, given: dict[str, Any], *, where: str) -> Config:
    """``config`` with ``given`` applied, every key and type checked."""
    known = {field.name: getattr(config, field.name) for field in fields(Config)}
    values = {}
    for key, value in given.items():
        if key not in known:
            close = get_close_matches(key, known, n=1)
            hint = f"Did you mean {close[0]}?" if close else f"Fields: {', '.join(known)}."
            raise ConfigurationError(f"{where} sets {key!r}, which is no field.", hint)
        values[key] = _typed(key, value, known[key])
    return replace(config, **values)


def _typed(key: str, value: Any, like: Any) -> Any:
    try:
        if isinstance(like, bool):
            if not isinstance(value, bool):
                raise ValueError
            return value
        if isinstance(like, tuple):
            first, second = value
            return float(first), float(second)
        return type(like)(value)
    except (TypeError, ValueError):
        raise ConfigurationError(f"{key} is {value!r}; it should look like {like!r}.") from None
