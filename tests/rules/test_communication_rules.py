"""Communication rules on traces whose numbers were worked out by hand."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from kinetoscope.analysis import Analysis
from kinetoscope.rules.api import Hit
from kinetoscope.rules.communication import (
    cm405_low_bus_bandwidth,
    cm406_straggler_rank,
    cm409_ddp_find_unused_parameters,
    cm411_ddp_bucket_copies,
    cm424_all_to_all_imbalance,
    cm429_communicator_init_in_window,
)
from kinetoscope.testing import JobBuilder, TraceBuilder
from kinetoscope.trace.collective_names import nccl_protocol
from kinetoscope.trace.distributed_frames import pipeline_microbatch


def _ranks(job: JobBuilder) -> list[Analysis]:
    analyses = [Analysis(trace) for trace in job.open().traces]
    for analysis in analyses:
        analysis.peers = tuple(a for a in analyses if a is not analysis)
    return analyses


def _only(hits: Sequence[Hit]) -> Hit:
    assert len(hits) == 1
    return hits[0]


def _values(hit: Hit) -> dict[str, object]:
    return {e.name: e.value for e in hit.evidence}


def test_bandwidth_of_the_shortest_rank_counts() -> None:
    # 64 MiB between 2 ranks: all of it once over the bus. Rank 0 waits 2 ms for rank 1, whose
    # kernel takes 0.995 ms: 67.4 GB/s, 15 % of NVLink's 450 GB/s; not the 22 GB/s of rank 0.
    job = JobBuilder(2)
    for rank, t in enumerate(job):
        for i in range(4):
            at, work = 10_000 * i, 4_000 + 2_000 * rank
            t.step(at, 10_000)
            t.kernel("gemm", at + 100, work, launch_at=at + 50, op="aten::mm")
            t.all_reduce(at + 105 + work, 6_995 - work, elements=16 << 20, launch_at=at + 60)
            t.sync(at + 120, 7_000)
    slow = _ranks(job)[1]
    hit = _only(cm405_low_bus_bandwidth.RULE.run(slow).hits)
    assert _values(hit)["bus_bandwidth"] == pytest.approx((64 << 20) / 0.995e-3, rel=1e-6)
    assert _values(hit)["compared_with"] == 450e9


def test_one_rank_never_makes_the_link_slow() -> None:
    t = TraceBuilder(rank=0, world_size=2)
    for i in range(4):
        t.step(10_000 * i, 10_000)
        t.all_reduce(10_000 * i + 100, 9_000, elements=16 << 20, launch_at=10_000 * i + 10)
    outcome = cm405_low_bus_bandwidth.RULE.run(Analysis(t.read()))
    assert outcome.status == "skipped"
    assert "several ranks" in (outcome.reason or "")


def _hybrid(world: int = 4, files: int = 4) -> JobBuilder:
    """Ranks 0, 1 and 2, 3 tensor parallel, 0, 2 and 1, 3 data parallel; rank 3 is 3 ms late.

    Without it a step has 4 ms of kernels and two collectives of 100 us.
    """
    job = JobBuilder(files, world_size=world)
    for rank, t in enumerate(job):
        partner, other = rank ^ 1, rank ^ 2
        slow = rank in (2, 3)
        for i in range(4):
            at = 20_000 * i
            t.step(at, 20_000)
            work = 7_000 if rank == 3 else 4_000
            t.kernel("gemm", at + 100, work, launch_at=at + 50, op="aten::mm")
            tensor_end = at + (7_200 if slow else 4_200)
            t.all_reduce(
                at + 100 + work,
                tensor_end - at - 100 - work,
                launch_at=at + 60,
                group=f"tp{min(rank, partner)}",
                ranks=sorted((rank, partner)),
            )
            t.all_reduce(
                tensor_end,
                at + 7_300 - tensor_end,
                launch_at=at + 80,
                group=f"dp{min(rank, other)}",
                ranks=sorted((rank, other)),
            )
            t.sync(at + 120, 7_200)
    return job


def test_the_straggler_is_named_across_process_groups() -> None:
    ranks = _ranks(_hybrid())
    hit = _only(cm406_straggler_rank.RULE.run(ranks[0]).hits)
    values = _values(hit)
    # Ranks 0 and 1 wait 3 ms for ranks 2 and 3, and rank 2 waits 3 ms for rank 3.
    assert values["slow_rank"] == 3
    assert values["waiting_caused"] == 3_000_000
    assert values["excess_work"] == 3_000_000
    # A step of 7.3 ms takes 4.3 ms, and 12.7 ms of the host's time between the steps is the
    # recording's own: 20 ms become 17 ms.
    assert hit.gain.mid == pytest.approx(20 / 17, rel=0.02)


def test_missing_ranks_are_stated() -> None:
    hit = _only(cm406_straggler_rank.RULE.run(_ranks(_hybrid(world=8))[0]).hits)
    assert hit.message.endswith(
        "4 of 8 ranks were given: one that is missing may come later still."
    )
    assert hit.confidence == pytest.approx(0.4)


def test_the_search_for_unused_parameters_and_its_bitmap() -> None:
    t = TraceBuilder()
    name = "torch.distributed.ddp.reducer::search_unused_parameters"
    for i in range(4):
        at = 10_000 * i
        t.step(at, 10_000)
        t.annotation("DistributedDataParallel.forward", at + 10, 2_000)
        t.annotation(name, at + 500, 1_000)
        t.kernel("gemm", at + 1_600, 3_000, launch_at=at + 1_550)
        t.op("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", at + 1_600, 60)
        t.all_reduce(at + 4_700, 50, elements=30, dtype="Int", launch_at=at + 1_620)
        t.sync(at + 1_700, 3_060)
    hit = _only(cm409_ddp_find_unused_parameters.RULE.run(Analysis(t.read())).hits)
    assert _values(hit) == {"search_time": 1_000_000, "bitmap_time": 50_000}
    # The host sets the pace: 1 ms of 10 ms goes.
    assert hit.gain.mid == pytest.approx(10 / 9, rel=0.02)


def test_copies_out_of_the_buckets() -> None:
    t = TraceBuilder()
    for i in range(4):
        at = 10_000 * i
        t.step(at, 10_000)
        for k in range(20):
            start = at + 100 + 100 * k
            t.op("torch.distributed.ddp.reducer::copy_bucket_to_grad", start, 80)
            t.kernel("copy", start + 40, 30, launch_at=start + 10)
        t.kernel("gemm", at + 2_200, 7_000, launch_at=at + 2_150)
        t.sync(at + 2_200, 7_100)
    hit = _only(cm411_ddp_bucket_copies.RULE.run(Analysis(t.read())).hits)
    assert _values(hit) == {"copies": 20, "host_time": 1_600_000, "device_time": 600_000}
    assert hit.gain.mid == pytest.approx(10 / 8.4, rel=0.02)


def test_uneven_all_to_all_over_ranks() -> None:
    # One rank gets 3 parts, the three others 1 each: 3 over a mean of 1.5.
    job = JobBuilder(4)
    for rank, t in enumerate(job):
        for i in range(4):
            at = 10_000 * i
            t.step(at, 10_000)
            t.kernel("gemm", at + 100, 3_000, launch_at=at + 50)
            t.all_reduce(
                at + 3_200,
                3_000,
                elements=1 << 20,
                received=(3 if rank == 2 else 1) << 20,
                group_size=4,
                launch_at=at + 70,
                name="all_to_allv",
            )
            t.sync(at + 120, 6_100)
    hit = _only(cm424_all_to_all_imbalance.RULE.run(_ranks(job)[0]).hits)
    assert _values(hit)["largest_over_mean"] == 2.0
    assert _values(hit)["exposed_time"] == 3_000_000


def test_a_group_made_once_is_only_told() -> None:
    t = TraceBuilder()
    for i in range(4):
        t.step(1_000 * i, 1_000).python("train.py(3): step", 1_000 * i + 5, 900)
        if i == 1:
            t.python("torch/distributed/distributed_c10d.py(9): new_group", 1_100, 500)
    hit = _only(cm429_communicator_init_in_window.RULE.run(Analysis(t.read())).hits)
    assert hit.at_most == "info"
    assert hit.gain.mid == 1.0


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long)", ("RING", "LL")),
        ("ncclKernel_AllReduce_TREE_LL128_Sum_half(ncclDevComm*)", ("TREE", "LL128")),
        ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*)", ("RING", "SIMPLE")),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", None),
    ],
)
def test_protocol_in_names_of_old_nccl(name: str, found: tuple[str, str] | None) -> None:
    assert nccl_protocol(name) == found


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("Forward 3", ("F", 3)),
        ("Backward 12", ("B", 12)),
        ("PP:1F7", ("F", 7)),
        ("PP:0W2", ("W", 2)),
        ("Forward pass", None),
        ("aten::mm", None),
    ],
)
def test_ranges_of_pipeline_schedules(name: str, found: tuple[str, int] | None) -> None:
    assert pipeline_microbatch(name) == found
