"""Dry runs of hand-written wrappers: every construct, every device, counted by hand."""

from __future__ import annotations

import importlib.util
import textwrap
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import torch

from hilore_planner.errors import RegionError
from hilore_planner.peak import TensorSpec, Timeline, Wrapper, dry_run, step_peak
from hilore_planner.peak.allocator import MIB

HEADER = """
import torch
from torch import device, empty_strided
from torch._inductor.select_algorithm import extern_kernels
aten = torch.ops.aten
assert_size_stride = torch._C._dynamo.guards.assert_size_stride
empty_strided_cpu = torch._C._dynamo.guards._empty_strided_cpu
empty_strided_cuda = torch._C._dynamo.guards._empty_strided_cuda
reinterpret_tensor = torch._C._dynamo.guards._reinterpret_tensor
alloc_from_pool = torch.ops.inductor._alloc_from_pool

class Kernel:
    def run(self, *args, stream):
        raise AssertionError("a kernel was run")

triton_poi_fused_add_0 = Kernel()

def cpp_fused_add_0(*args):
    raise AssertionError("a kernel was run")

def get_raw_stream(index):
    raise AssertionError("a device was touched")

constant0 = torch.zeros(4096)
"""


def wrapper(folder: Path, body: str, after: str = "") -> Wrapper:
    """A wrapper whose `call` has the given body."""
    folder.mkdir(exist_ok=True)
    path = folder / "generated.py"
    call = "def call(args):\n" + textwrap.indent(textwrap.dedent(body), "    ")
    path.write_text(HEADER + call + textwrap.dedent(after))
    spec = importlib.util.spec_from_file_location("generated", path)
    assert spec is not None
    assert spec.loader is not None
    module: ModuleType = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return Wrapper(module.call, False, ())


def vector(numel: int, device: str = "cpu", *, is_kept: bool = True) -> TensorSpec:
    return TensorSpec((numel,), (1,), torch.float32, torch.device(device), is_kept=is_kept)


def counted(timeline: Timeline) -> list[int]:
    return [moment.allocated_bytes for moment in timeline.moments]


def test_buffers_live_from_allocation_to_del(tmp_path: Path) -> None:
    generated = wrapper(
        tmp_path,
        """
        arg0_1, = args
        args.clear()
        assert_size_stride(arg0_1, (1000, ), (1, ))
        buf0 = empty_strided_cpu((500, ), (1, ), torch.float32)
        cpp_fused_add_0(arg0_1, buf0)
        buf1 = reinterpret_tensor(buf0, (250, ), (1, ), 250); del buf0  # reuse
        buf2 = empty_strided_cpu((10, ), (1, ), torch.float64)
        del buf1
        del arg0_1
        return (buf2, None, )
        """,
    )
    kept = dry_run(generated, [vector(1000)], device="cpu")
    assert counted(kept) == [6000, 6080, 4080]
    assert (kept.start_bytes, kept.peak_bytes, kept.end_bytes) == (4000, 6080, 4080)
    assert [owner.name for owner in kept.owners] == ["arg0_1", "buf0", "buf2"]
    assert kept.peak_label == "buf2 = empty_strided_cpu((10, ), (1, ), torch.float64)"
    assert kept.outputs[0] is not None
    assert kept.outputs[1] is None
    owned = dry_run(generated, [vector(1000, is_kept=False)], device="cpu")
    assert counted(owned) == [6000, 6080, 4080, 80]


def test_inputs_that_share_a_storage_count_once(tmp_path: Path) -> None:
    generated = wrapper(
        tmp_path,
        """
        a, b = args
        args.clear()
        del a
        del b
        return ()
        """,
    )
    whole = TensorSpec((64,), (1,), torch.float32, torch.device("cpu"), 0, 256, "one", False)
    half = TensorSpec((64,), (1,), torch.bfloat16, torch.device("cpu"), 64, 256, "one", False)
    assert counted(dry_run(generated, [whole, half], device="cpu")) == [0]


def test_a_cuda_wrapper_needs_no_device_and_counts_blocks(tmp_path: Path) -> None:
    generated = wrapper(
        tmp_path,
        """
        primals_1, primals_2 = args
        args.clear()
        with torch.cuda._DeviceGuard(0):
            torch.cuda.set_device(0)
            buf0 = empty_strided_cuda((1, ), (1, ), torch.int64)
            aten.randint.low_out(-9223372036854775808, 9223372036854775807, [1], out=buf0)
            buf1 = empty_strided_cuda((47 * 262144, ), (1, ), torch.float32)
            stream0 = get_raw_stream(0)
            triton_poi_fused_add_0.run(primals_1, buf1, 1, stream=stream0)
            buf2 = torch.ops.aten._scaled_dot_product_flash_attention.default(
                primals_2, primals_2, primals_2, 0.0, True)
            buf3 = buf2[0]
            buf4 = buf2[1]
            del buf2
            on_host = empty_strided_cpu((1000000, ), (1, ), torch.float32)
            buf5 = empty_strided_cuda((64, 64), (64, 1), torch.bfloat16)
            extern_kernels.mm(buf5, buf5, out=buf5)
        return (buf3, buf4, )
        """,
    )
    heads = TensorSpec(
        (2, 4, 128, 64), (32768, 8192, 64, 1), torch.bfloat16, torch.device("cuda:0")
    )
    timeline = dry_run(generated, [vector(100, "cuda:0"), heads], device="cuda")
    # Inputs: 512 B and 128 KiB. Then 512 B, 47 MiB counted as 48 MiB, the output (128 KiB) and the
    # logsumexp (4 KiB) of attention, and its two 512-byte seeds, which die with buf2; last 8 KiB.
    start = 512 + 131072
    before = start + 512 + 48 * MIB + 131072 + 4096
    assert timeline.start_bytes == start
    assert timeline.peak_bytes == before + max(2 * 512, 8192)
    assert timeline.end_bytes == start + 131072 + 4096
    assert timeline.owners[0].name == "buf1"
    assert timeline.owners[0].requested_bytes == 47 * MIB


def test_the_blocks_of_inputs_are_part_of_what_the_device_counts_already(tmp_path: Path) -> None:
    """A weight of 43 MiB lies in a block of 44."""
    texts = (
        """
        primals_1, = args
        args.clear()
        buf0 = empty_strided_cuda((1, ), (1, ), torch.float32)
        return (buf0, primals_1, )
        """,
        """
        primals_1, tangents_1 = args
        args.clear()
        buf0 = empty_strided_cuda((43 * 262144, ), (1, ), torch.float32)
        return (buf0, )
        """,
    )
    forward, backward = (
        replace(wrapper(tmp_path / str(side), text), is_backward=bool(side))
        for side, text in enumerate(texts)
    )
    weight, others_bytes = vector(43 * 262144, "cuda:0"), 10 * MIB
    base_bytes = 44 * MIB + others_bytes
    peak = step_peak(forward, backward, [weight], device="cuda", base_bytes=base_bytes)
    assert peak.base_bytes == base_bytes
    assert peak.peak_bytes == base_bytes + 44 * MIB + 2 * 512
    alone = step_peak(forward, backward, [weight], device="cuda")
    assert alone.peak_bytes == peak.peak_bytes - others_bytes


def test_pools_and_constants_alias_what_they_are_cut_from(tmp_path: Path) -> None:
    generated = wrapper(
        tmp_path,
        """
        pool0 = empty_strided_cpu((4096, ), (1, ), torch.uint8)
        buf0 = alloc_from_pool(pool0, 1024, torch.float32, (16, 16), (16, 1))
        buf1 = alloc_from_pool(pool0, 0, torch.bfloat16, (16, ), (1, ))
        del pool0
        del buf1
        buf2 = aten.view.default(constant0, [64, 64])
        return (buf0, )
        """,
    )
    timeline = dry_run(generated, [], device="cpu")
    assert counted(timeline) == [4096]
    (output,) = timeline.outputs
    assert isinstance(output, TensorSpec)
    assert (output.storage_offset, output.storage_bytes) == (256, 4096)


def test_partitions_and_subgraphs_run_with_the_same_accounting(tmp_path: Path) -> None:
    generated = wrapper(
        tmp_path,
        "raise AssertionError('the bare function was run')",
        """
        def partition_0(args):
            arg0_1, s0 = args
            args.clear()
            buf0 = empty_strided_cpu((s0, 2), (2, 1), torch.float32)
            del arg0_1
            return (buf0, )

        class Runner:
            def __init__(self, partitions):
                self.partitions = partitions

            def call(self, args):
                arg0_1, s0 = args
                args.clear()
                partition0_args = [arg0_1, s0]
                del arg0_1
                (buf0, ) = self.partitions[0](partition0_args)
                del partition0_args
                return (buf0, s0, )

        call = Runner([partition_0]).call
        """,
    )
    timeline = dry_run(generated, [vector(8, is_kept=False), 100], device="cpu")
    assert counted(timeline) == [832, 800]
    assert timeline.outputs[1] == 100


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("u0 = arg0_1.sum().item()", "DataDependentOutputException"),
        ("assert_size_stride(arg0_1, (9, ), (1, ))", "AssertionError"),
        ("buf0 = unknown_kernel(arg0_1)", "NameError"),
    ],
)
def test_what_cannot_be_followed_names_the_line(tmp_path: Path, line: str, reason: str) -> None:
    generated = wrapper(tmp_path, f"arg0_1, = args\n{line}\nreturn (arg0_1, )\n")
    with pytest.raises(RegionError, match=reason) as caught:
        dry_run(generated, [vector(8)], device="cpu")
    assert line in str(caught.value)


def test_a_wrong_number_of_inputs_is_refused(tmp_path: Path) -> None:
    generated = wrapper(tmp_path, "arg0_1, = args\nreturn (arg0_1, )\n")
    with pytest.raises(RegionError, match="takes 1 inputs, but 2 were given"):
        dry_run(generated, [vector(8), vector(8)], device="cpu")


def test_an_entry_that_is_not_python_is_refused() -> None:
    with pytest.raises(RegionError, match="cpp_wrapper"):
        dry_run(Wrapper(print, False, ()), [], device="cpu")


class Flat:
    """Every operation takes 100 bytes."""

    def transient_bytes(self, op: object, args: object, kwargs: object) -> int:
        return 100


def test_workspaces_count_at_their_line_only(tmp_path: Path) -> None:
    generated = wrapper(
        tmp_path,
        """
        arg0_1, = args
        args.clear()
        buf0 = reinterpret_tensor(arg0_1, (2, 4), (4, 1), 0)
        extern_kernels.mm(buf0, buf0, out=buf0)
        return (buf0, )
        """,
    )
    timeline = dry_run(generated, [vector(8)], device="cpu", workspaces=Flat())
    assert 132 in counted(timeline)
    assert timeline.peak_bytes == 132
    assert timeline.end_bytes == 32
