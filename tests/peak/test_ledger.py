"""What a ledger records, once more."""

from __future__ import annotations

from pathlib import Path

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from hilore_planner.peak.allocator import MIB, CachingAllocator
from hilore_planner.peak.dry_run import DryRunner
from hilore_planner.peak.ledger import Ledger
from tests.peak.test_dry_run import wrapper

BODY = """
small = empty_strided_cuda((5 * 65536, ), (1, ), torch.float32)
large = empty_strided_cuda((18 * 262144, ), (1, ), torch.float32)
triton_poi_fused_add_0.run(small, large, stream=None)
middle = empty_strided_cuda((21 * 131072, ), (1, ), torch.float32)
triton_poi_fused_add_0.run(large, middle, stream=None)
del large
return (small, )
"""


def test_what_is_repeated_is_served_as_what_is_run_again(tmp_path: Path) -> None:
    """A warm cache serves it otherwise than an empty one.

    Of 20 MiB, 1.25 and 18 leave so little that it counts; 10.5 are cut from a segment of 12. That segment fits 1.25
    best when all is free again: then 18 are cut from 20, and what is left of 12 counts with the 10.5.
    """
    generated = wrapper(tmp_path, BODY)
    again, repeated = (Ledger(torch.device("cuda:0"), CachingAllocator()) for _ in range(2))
    with FakeTensorMode() as mode:
        for _ in range(2):
            DryRunner(mode, again).run(generated, [])
        DryRunner(mode, repeated).run(generated, [])
    once = len(repeated)
    repeated.repeat(0, once)
    assert again.totals() == repeated.totals()
    assert again.launches(once) == repeated.launches(once)
    assert again.moments(once) == repeated.moments(once)
    peak = repeated.peak_position(once)
    assert again.owners(peak) == repeated.owners(peak)
    assert max(repeated.totals()[:once]) == (5 * MIB // 4) + (75 * MIB // 4) + (21 * MIB // 2)
    assert max(repeated.totals()[once:]) == (5 * MIB // 4) + 18 * MIB + (43 * MIB // 4)
