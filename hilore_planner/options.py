"""The options of ``torch.compile(..., backend="hilore", options={...})``."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, Self, get_args

from hilore_planner.calibration.profile import RiskProfile
from hilore_planner.codec_names import ACCEPTED_CODECS, KNOWN_CODECS, check_codec
from hilore_planner.errors import OptionError
from hilore_planner.head_plan import Totals
from hilore_planner.sizes import Size, format_bytes, parse_bytes, parse_size

OnMismatch = Literal["error", "replan"]
CostSource = Literal["auto", "measured", "roofline"]
CheckpointTags = Literal["override", "respect", "error"]

_MARGIN = 0.02
"""Part of the device's memory left alone where no cap is given: fragmentation, other libraries."""


@dataclass(frozen=True, slots=True)
class Options:
    """What a user may ask for; read from a plain dict by ``Options.parse``."""

    memory_cap: Size | None = None
    """Bound on the device peak of the whole update: bytes, a share of the device, or ``None`` for
    what is free now, less a margin."""
    reserved: int | Literal["auto"] = "auto"
    """Bytes under the cap that something else will hold: optimizer state not made yet, a rollout
    engine. ``"auto"``: what the caller of ``resolve`` finds."""
    gradient_error: float = 0.0
    """Bound on the relative error added to the gradient; at 0 no copy loses precision."""
    codecs: tuple[str, ...] = KNOWN_CODECS
    """Codecs the plan may use, as far as ``gradient_error`` allows."""
    exposure: RiskProfile | None = None
    """What calibration found: prices inexactness instead of the first-order bound."""
    plan: Path | None = None
    """Plan file: loaded if it is there and fits the graph, else solved and written."""
    on_mismatch: OnMismatch = "error"
    """What to do if the plan file belongs to another graph."""
    costs: CostSource | Path = "auto"
    """Where times come from: measured on the device, its data sheet, or a file of times measured before; ``"auto"``
    measures on a GPU."""
    checkpoint_tags: CheckpointTags = "override"
    """What to do where the program already uses ``torch.utils.checkpoint``: plan it all the same,
    recompute and store there as it says, or refuse."""
    head: Literal["auto", "off"] | int = "auto"
    """Whether the language-model head is cut into chunks of rows, so that logits are never whole:
    as seems best, never, or into this many chunks."""
    head_totals: Totals = "gradient"
    """Dtype in which the chunks' parts of the head's weight gradient are added up: the gradient's own, or
    float32 where that is a half."""
    solver_seconds: float = 10.0
    """Time limit of the solver."""
    dump_dir: Path | None = None
    """Folder for the plan and the graphs of each compiled region."""
    inductor: Mapping[str, Any] = field(default_factory=dict)
    """Inductor settings, passed on as they are."""

    @classmethod
    def parse(cls, options: Mapping[str, object] | None = None) -> Self:
        """Reads the dict a user wrote; ``None`` and ``{}`` give the defaults.

        Raises:
            OptionError: an unknown name, or a value that is unreadable or out of range.
        """
        given = {} if options is None else options
        for name in given:
            if name not in _READERS:
                raise OptionError(_unknown(name))
        return cls(**{name: _READERS[name](name, value) for name, value in given.items()})

    def resolve(self, total_bytes: int, free_bytes: int, *, auto_reserved_bytes: int = 0) -> int:
        """The cap in bytes on what the update itself may hold on a device.

        Args:
            total_bytes: the device's memory.
            free_bytes: the part of it this process may use: what is free now and what its own
                allocator already holds.
            auto_reserved_bytes: what ``reserved="auto"`` stands for.

        Raises:
            OptionError: the cap exceeds the device, or nothing is left under it.
        """
        if self.memory_cap is None:
            cap_bytes = free_bytes - int(_MARGIN * total_bytes)
            origin = f"{format_bytes(free_bytes)} free, less a margin"
        elif isinstance(self.memory_cap, float):
            cap_bytes = int(self.memory_cap * total_bytes)
            origin = f"{self.memory_cap:.0%} of {format_bytes(total_bytes)}"
        else:
            cap_bytes = self.memory_cap
            origin = format_bytes(cap_bytes)
        if cap_bytes > total_bytes:
            raise OptionError(
                f"memory_cap is {origin}, but the device has {format_bytes(total_bytes)}"
            )
        reserved_bytes = auto_reserved_bytes if self.reserved == "auto" else self.reserved
        if cap_bytes <= reserved_bytes:
            raise OptionError(
                f"memory_cap is {origin} and {format_bytes(reserved_bytes)} of it are reserved, "
                "so nothing is left for the update; raise memory_cap or lower reserved"
            )
        return cap_bytes - reserved_bytes


def _unknown(name: object) -> str:
    near = difflib.get_close_matches(str(name), _READERS, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"unknown option {name!r}{hint} (accepted: {', '.join(_READERS)})"


def _refuse(name: str, value: object, accepted: str) -> OptionError:
    return OptionError(f"option {name} is {value!r}; accepted: {accepted}")


def _read_cap(name: str, value: object) -> Size | None:
    return None if value is None else parse_size(value, name=f"option {name}")


def _read_reserved(name: str, value: object) -> int | Literal["auto"]:
    if value == "auto":
        return "auto"
    if value == 0 and not isinstance(value, bool):
        return 0
    return parse_bytes(value, name=f"option {name} (which may also be 'auto' or 0)")


def _number(least: float, limit: float, accepted: str) -> Callable[[str, object], float]:
    def read(name: str, value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise _refuse(name, value, accepted)
        if not least <= value < limit:
            raise _refuse(name, value, accepted)
        return float(value)

    return read


def _one_of(accepted: tuple[str, ...]) -> Callable[[str, object], str]:
    def read(name: str, value: object) -> str:
        if not isinstance(value, str) or value not in accepted:
            raise _refuse(name, value, " | ".join(map(repr, accepted)))
        return value

    return read


def _read_codecs(name: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, (list, tuple)):
        raise _refuse(name, value, f"a list of {ACCEPTED_CODECS}")
    return tuple(dict.fromkeys(check_codec(codec) for codec in value))


def _read_head(name: str, value: object) -> Literal["auto", "off"] | int:
    if value == "auto" or value == "off":
        return value
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    raise _refuse(name, value, "'auto' | 'off' | a number of chunks, 1 or more")


def _read_costs(name: str, value: object) -> CostSource | Path:
    if value == "auto" or value == "measured" or value == "roofline":
        return value
    if isinstance(value, Path) or (isinstance(value, str) and value.endswith(".json")):
        return Path(value)
    raise _refuse(name, value, "'auto' | 'measured' | 'roofline' | the path of a cost file (.json)")


def _read_path(name: str, value: object) -> Path | None:
    if value is None:
        return None
    if not isinstance(value, (str, Path)) or not str(value):
        raise _refuse(name, value, "a path, or None")
    return Path(value)


def _read_exposure(name: str, value: object) -> RiskProfile | None:
    if value is None or isinstance(value, RiskProfile):
        return value
    if isinstance(value, (str, Path)) and str(value):
        return RiskProfile.load(value)
    raise _refuse(name, value, "a risk profile, the path of one's file, or None")


def _read_plan(name: str, value: object) -> Path | None:
    """Refused now rather than when the plan is written, after minutes of compilation."""
    path = _read_path(name, value)
    if path is not None and not path.parent.is_dir():
        raise _refuse(name, value, f"a file in a folder that exists; there is no {path.parent}")
    return path


def _read_settings(name: str, value: object) -> Mapping[str, object]:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise _refuse(name, value, "a dict of Inductor settings by name")
    return dict(value)


_READERS: Mapping[str, Callable[[str, object], Any]] = MappingProxyType(
    {
        "memory_cap": _read_cap,
        "reserved": _read_reserved,
        "gradient_error": _number(0.0, 1.0, "a number in [0, 1); 0 keeps gradients exact"),
        "codecs": _read_codecs,
        "exposure": _read_exposure,
        "plan": _read_plan,
        "on_mismatch": _one_of(get_args(OnMismatch)),
        "costs": _read_costs,
        "checkpoint_tags": _one_of(get_args(CheckpointTags)),
        "head": _read_head,
        "head_totals": _one_of(get_args(Totals)),
        "solver_seconds": _number(1e-3, float("inf"), "a number of seconds, at least 0.001"),
        "dump_dir": _read_path,
        "inductor": _read_settings,
    }
)
