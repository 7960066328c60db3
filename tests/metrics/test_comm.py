"""Collectives of one rank; expected numbers worked out by hand."""

from __future__ import annotations

import pytest

from kinetoscope.metrics.comm import (
    OWNER_DDP,
    OWNER_FSDP,
    OWNER_UNKNOWN,
    OWNER_USER,
    Message,
    collectives,
)
from kinetoscope.testing import TraceBuilder
from kinetoscope.trace.collective_names import collective_of, element_bytes


@pytest.mark.parametrize(
    ("name", "collective"),
    [
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "all_reduce"),
        ("ncclKernel_ReduceScatter_RING_LL_Sum_float(ncclDevComm*)", "reduce_scatter"),
        ("_allgather_base", "all_gather"),
        ("nccl:all_reduce_barrier", "barrier"),
        ("c10d::_reduce_scatter_base_", "reduce_scatter"),
        ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t", "send_recv"),
        ("ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)", ""),
        ("gloo:broadcast", "broadcast"),
        ("reduce", "reduce"),
    ],
)
def test_names_of_collectives(name: str, collective: str) -> None:
    assert collective_of(name) == collective


def test_element_sizes() -> None:
    sizes = [element_bytes(n) for n in ("Float", "BFloat16", "Long", "Float8_e4m3fn", "?")]
    assert sizes == [4, 2, 8, 1, 0]


def test_bus_bandwidth_of_an_all_reduce() -> None:
    # 2 ranks: 4 MB travel 2 * (2 - 1) / 2 = once; 4 MB in 20 us are 200 GB/s.
    message = Message("all_reduce", "Float", 1_000_000, 1_000_000, group_size=2)
    assert message.bytes == 4_000_000
    assert message.bus_bandwidth(20_000) == pytest.approx(200e9)


def test_bus_bandwidth_of_gather_and_scatter() -> None:
    # 4 ranks: 8 MB in all, 3/4 of it over each link.
    gather = Message("all_gather", "Half", 1_000_000, 4_000_000, group_size=4)
    scatter = Message("reduce_scatter", "Half", 4_000_000, 1_000_000, group_size=4)
    assert gather.bytes == scatter.bytes == 8_000_000
    assert gather.bus_bandwidth(60_000) == pytest.approx(100e9)


def test_a_group_of_one_has_no_traffic() -> None:
    assert Message("all_reduce", "Float", 10, 10, group_size=1).bus_bandwidth(10) == 0.0


def test_messages_and_exposed_time() -> None:
    trace = (
        TraceBuilder()
        .step(0, 1000)
        .kernel("gemm", 100, 200, launch_at=10)
        .all_reduce(250, 100, elements=1000, launch_at=20, sequence=7)
        .read()
    )
    found = collectives(trace)
    assert found.row.size == 1
    assert found.messages[0].collective == "all_reduce"
    assert found.bytes.tolist() == [4000]
    assert found.seq.tolist() == [7]
    # The kernel ends at 300: the all-reduce is alone from 300 to 350.
    assert found.exposed.tolist() == [50_000]


def test_a_kernel_without_arguments_is_known_by_name_only() -> None:
    trace = TraceBuilder().kernel("ncclDevKernel_AllGather_RING_LL()", 10, 5).read()
    message = collectives(trace).messages[0]
    assert (message.collective, message.recorded, message.bytes) == ("all_gather", False, 0)


def test_owners() -> None:
    t = TraceBuilder()
    hook = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"
    t.op(hook, 0, 100, tid=2).all_reduce(50, 5, launch_at=10, tid=2)
    t.annotation("FSDP::all_gather (net.0)", 200, 100).all_reduce(250, 5, launch_at=210)
    t.python("train.py(3): step", 400, 100).all_reduce(450, 5, launch_at=410)
    t.all_reduce(600, 5)
    expected = [OWNER_DDP, OWNER_FSDP, OWNER_USER, OWNER_UNKNOWN]
    assert collectives(t.read()).owner.tolist() == expected


def test_without_device_the_ranges_of_gloo_count() -> None:
    trace = (
        TraceBuilder(device=None)
        .annotation("gloo:all_reduce", 0, 100, tid=5)
        .annotation("c10d::allreduce_", 0, 10)
        .read()
    )
    found = collectives(trace)
    assert not found.on_device
    assert found.duration.tolist() == [100_000]


def test_a_trace_without_collectives() -> None:
    found = collectives(TraceBuilder().kernel("gemm", 0, 10, launch_at=0).read())
    assert found.row.size == 0
    assert found.bytes.size == 0
