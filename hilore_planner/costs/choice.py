"""Which costs an update is planned with."""

from __future__ import annotations

from pathlib import Path

import torch

from hilore_planner.costs.measured import Measured
from hilore_planner.costs.stopwatch import Stopwatch
from hilore_planner.costs.table import CostTable, Owner
from hilore_planner.errors import OptionError
from hilore_planner.options import Options
from hilore_planner.passes import compat
from hilore_planner.passes.cost import Costs, Roofline
from hilore_planner.region import Surroundings


def costs_for(options: Options, around: Surroundings) -> Costs:
    """The costs that the option ``costs`` asks for.

    Raises:
        OptionError: ``"measured"``, but the device to plan for is not here.
        HiloreError: a cost file is damaged, or is not of this device where it should be.
    """
    estimate = Roofline(around.profile)
    is_here = _is_here(around)
    is_auto = options.costs == "auto"
    if options.costs == "roofline" or (is_auto and not (is_here and around.device.type == "cuda")):
        return estimate
    if isinstance(options.costs, Path):
        table = _given(options.costs, around)
    elif is_here:
        table = CostTable(cost_file(around.device), Owner.of(around.device))
    else:
        raise OptionError(
            f"option costs is 'measured', but {around.device_name} is not here to be measured; accepted: 'roofline', "
            "or the path of a cost file measured there"
        )
    is_own = is_here and table.owner == Owner.of(around.device)
    stopwatch = Stopwatch(around.device) if is_own else None
    return Measured(table, stopwatch, estimate, is_lossy=options.gradient_error > 0)


def cost_file(device: torch.device) -> Path:
    """Where the times measured on a device are kept, beside Inductor's cache."""
    return Path(compat.cache_folder()) / "hilore" / Owner.of(device).file_name


def _given(path: Path, around: Surroundings) -> CostTable:
    """A file of the user's: of whatever device it says it is, or to be made for the one that is here."""
    if path.exists():
        return CostTable.of_file(path)
    if not _is_here(around):
        raise OptionError(
            f"option costs is {str(path)!r}, which is not there, and {around.device_name} is not here to be measured; "
            "accepted: 'roofline', or the path of a cost file that exists"
        )
    return CostTable(path, Owner.of(around.device))


def _is_here(around: Surroundings) -> bool:
    """Whether the device planned for is one of this machine."""
    if around.device.type == "cpu":
        return around.device_name == "cpu"
    return torch.cuda.is_available() and around.device_name == torch.cuda.get_device_name(
        around.device
    )
