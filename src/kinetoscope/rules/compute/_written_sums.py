"""What is said of sums over gathered rows that one sparse product would take, and its speed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.device_ops import DeviceOps
from kinetoscope.result import Evidence, Fix
from kinetoscope.rules.api import Hit
from kinetoscope.rules.compute._kernels import busy_share, extent_of, per_step_ns, places
from kinetoscope.rules.compute._sparse import FloatArray, SparseProduct, links_change, multiplied
from kinetoscope.trace.trace import IntArray
from kinetoscope.units import count, duration, percent

Triple = tuple[float, float, float]


@dataclass(frozen=True)
class ProductSpeed:
    """What sparse products reach; three values are those at worst, likely and at best.

    Attributes:
        reached: share of the memory's bandwidth.
        start_ns: what one costs beside its data.
        turned: times that one of the backward pass pays for the transpose of its matrix.
        turn_ns, turn_bytes: what that takes beside its data, and what it moves for each link.
    """

    reached: Triple
    start_ns: int
    turned: Triple
    turn_ns: int
    turn_bytes: int

    def times(self, products: list[SparseProduct], bytes_per_ns: float) -> list[FloatArray]:
        """How long each product takes at worst, likely and at best, ns."""
        moved = np.array([product.moved_bytes for product in products], dtype=float)
        links = np.array([product.links for product in products])
        turn = np.array([product.backward for product in products]) * (
            self.turn_ns + self.turn_bytes * links / bytes_per_ns
        )
        return [
            self.start_ns + moved / (reached * bytes_per_ns) + times * turn
            for reached, times in zip(self.reached, self.turned, strict=True)
        ]


def parts_of(products: list[SparseProduct]) -> IntArray:
    """Positions of all device events of these products."""
    return np.array([i for p in products for i in (*p.gone, *p.sums)], dtype=np.int64)


def worthwhile(
    analysis: Analysis,
    work: DeviceOps,
    products: list[SparseProduct],
    *,
    speed: ProductSpeed,
    at: float,
) -> list[FloatArray]:
    """Times of the products where they are likely `at` times as fast; else nothing."""
    device = analysis.peaks
    if device is None or not products or links_change(analysis, products):
        return []
    times = speed.times(products, device.bandwidth_gbps)
    before = work.ns[parts_of(products)].sum()
    return times if before >= at * times[1].sum() else []


def written_out(
    analysis: Analysis, work: DeviceOps, products: list[SparseProduct], times: list[FloatArray]
) -> Hit:
    """Gathers with their sums, where one sparse product takes much less."""
    rows = work.rows[parts_of(products)]
    sums = work.rows[[product.sums[0] for product in products]]
    largest = max(products, key=lambda product: product.links)
    share, spent = busy_share(analysis, rows), per_step_ns(analysis, rows)
    each = analysis.in_window(sums).size / analysis.steps
    return Hit(
        message=(
            f"{count(largest.links)} rows of {largest.width} are gathered, written out and "
            f"added up again: {duration(spent)} a step, {percent(min(share, 1.0))} of the busy "
            "time. One sparse product adds them while it reads them."
        ),
        evidence=(
            Evidence("lookup_time", spent, "ns"),
            Evidence("busy_share", round(min(share, 1.0), 4), "ratio", "derived"),
            Evidence("links", largest.links, "count"),
            Evidence("products_per_step", round(each, 1), "count"),
        ),
        locations=places(analysis, rows, calls=("index_add_", "scatter_add_", "index_add")),
        fix=_SPARSE,
        gain=analysis.gain(*(multiplied(work, products, t) for t in times)),
        confidence=0.7,
        claims=extent_of(analysis, rows),
    )


_SPARSE = Fix(
    summary="Multiply by a sparse matrix of the links, made once; it gathers and adds in one.",
    snippet="graph = torch.sparse_coo_tensor(torch.stack((to, from_)), weights, (n, n))\n"
    "graph = graph.to_sparse_csr()  # once, and its transpose for the backward pass\n"
    "out = graph @ x",
    reference="https://docs.pytorch.org/docs/stable/sparse.html",
)
