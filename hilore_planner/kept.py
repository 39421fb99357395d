"""Plans that were made before, kept beside Inductor's cache.

A graph that comes from the cache brings no plan along, so each plan made is kept under the key its graph has there.
What its compiled code takes is noted once it was run dry: at another cap, a plan known to fit is as good as a new one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from hilore_planner import plan_file
from hilore_planner.passes import compat
from hilore_planner.plan import PlacementPlan


@dataclass(frozen=True, slots=True)
class Known:
    """A plan whose compiled code was run dry.

    Attributes:
        key: that the plan is kept under.
        peak_bytes: of its compiled code.
        added_ns: time it adds to the update.
    """

    key: str
    peak_bytes: int
    added_ns: int

    @property
    def rank(self) -> tuple[int, int]:
        """The faster first, of equally fast ones that of the least memory."""
        return self.added_ns, self.peak_bytes


@dataclass(frozen=True, slots=True)
class KeptPlans:
    """The plans of one region, whatever their cap; ``region`` stands for all else they depend on."""

    region: str

    def plan(self, key: str) -> PlacementPlan | None:
        """The plan kept under a key; None where there is none."""
        path = self._path(key)
        return PlacementPlan.load(path) if path.exists() else None

    def keep(self, key: str, plan: PlacementPlan) -> None:
        """Keep a plan."""
        plan.save(self._path(key))

    def note(self, known: Known) -> None:
        """Remember what a kept plan takes."""
        plan_file.write(self._path(known.key).with_suffix(".known"), known)

    def known(self) -> Iterator[Known]:
        """All that is known of the region's plans, fastest first."""
        paths = self._path(self.region).parent.glob(f"{self.region}-*.known")
        found = (msgspec.json.decode(path.read_bytes(), type=Known) for path in paths)
        yield from sorted(found, key=lambda known: (known.rank, known.key))

    def _path(self, key: str) -> Path:
        folder = Path(compat.cache_folder()) / "hilore"
        folder.mkdir(parents=True, exist_ok=True)
        return folder / f"{key}.json"
