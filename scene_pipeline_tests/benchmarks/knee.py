"""Partitions a second that 1 to 12 writers replace together, measured and drawn.

``python -m scene_pipeline_tests.benchmarks.knee [--output docs/pictures/writers.svg]``
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import wait
from pathlib import Path

import sqlalchemy as sa

from scene_pipeline.pictures import svg
from scene_pipeline.settings import Caps
from scene_pipeline.warehouse import Replaced
from scene_pipeline.warehouse.migrate import migrate_warehouse
from scene_pipeline_tests.services.postgres import PostgresCluster, run_cluster
from scene_pipeline_tests.services.scene_rows import key_of
from scene_pipeline_tests.services.writers import WriterJob, run_writers

WRITERS = (1, 2, 3, 4, 6, 8, 10, 12)
PARTITIONS, ROWS = 120, 333


def measure_rate(cluster: PostgresCluster, writers: int) -> float:
    """Partitions of 333 wide rows a second, in a fresh table, ``writers`` at once."""
    url = cluster.url(cluster.new_database("knee"))
    migrate_warehouse(sa.make_url(url).set(drivername="postgresql+psycopg"), schema="scenes")
    share = PARTITIONS // writers
    jobs = [
        WriterJob(
            url,
            number,
            tuple(key_of(day, f"7-{number}-0") for day in range(1, share + 1)),
            ROWS,
            rounds=1,
            is_wide=True,
        )
        for number in range(writers)
    ]
    with run_writers(jobs) as futures:
        began = time.perf_counter()
        wait(futures)
        seconds = time.perf_counter() - began
        outcomes = [outcome for future in futures for outcome in future.result()]
    assert all(isinstance(outcome, Replaced) for outcome in outcomes), outcomes
    return len(outcomes) / seconds


def find_knee(rates: Mapping[int, float]) -> int:
    """The fewest writers within a tenth of the best rate."""
    best = max(rates.values())
    return min(writers for writers, rate in rates.items() if rate >= 0.9 * best)


def draw_rates(rates: Mapping[int, float], *, title: str, note: str, default: int) -> str:
    """A line over the number of writers; the knee and the default are named."""
    left, right, top, bottom = 60.0, 600.0, 70.0, 300.0
    most = max(rates.values()) * 1.15

    def place(writers: float, rate: float) -> tuple[float, float]:
        x = left + (right - left) * (writers - 1) / (max(rates) - 1)
        return x, bottom - (bottom - top) * rate / most

    parts = [
        svg.draw_text(title, x=16, y=26, font_size=15, font_weight="bold"),
        svg.draw_text(note, x=16, y=45, fill=svg.MUTED),
    ]
    for rate in range(0, int(most), max(1, int(most / 5))):
        _, y = place(1, rate)
        parts.append(
            svg.draw_element("path", d=f"M{left} {y:.1f}H{right}", stroke=svg.GRID, stroke_width=1)
        )
        parts.append(svg.draw_text(str(rate), x=left - 8, y=y + 4, text_anchor="end"))
    points = [place(writers, rate) for writers, rate in rates.items()]
    line = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    parts.append(svg.draw_element("path", d=line, fill="none", stroke=svg.BLUE, stroke_width=2))
    for writers, (x, y) in zip(rates, points, strict=True):
        parts.append(svg.draw_element("circle", cx=x, cy=y, r=4, fill=svg.BLUE))
        parts.append(svg.draw_text(str(writers), x=x, y=bottom + 18, text_anchor="middle"))
    for label, writers, above in (("knee", find_knee(rates), 14), ("default", default, 30)):
        x, y = place(writers, rates[writers])
        parts.append(svg.draw_text(label, x=x, y=y - above, **svg.HALO))
    parts.append(
        svg.draw_text("writers at once", x=(left + right) / 2, y=bottom + 40, text_anchor="middle")
    )
    return svg.wrap_svg(parts, width=640, height=bottom + 56, title=title)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure three interleaved passes, print the medians and write the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("docs/pictures/writers.svg"))
    parser.add_argument("--passes", type=int, default=3)
    chosen = parser.parse_args(arguments)
    measured: dict[int, list[float]] = {writers: [] for writers in WRITERS}
    with run_cluster(shared_buffers="512MB", max_wal_size="4GB") as cluster:
        for _ in range(chosen.passes):
            for writers in WRITERS:
                measured[writers].append(measure_rate(cluster, writers))
    rates = {writers: statistics.median(found) for writers, found in measured.items()}
    for writers, rate in rates.items():
        print(f"{writers:2d} writers  {rate:7.1f} partitions/s")
    picture = draw_rates(
        rates,
        title="Partitions replaced a second",
        note=f"{ROWS} rows each, 5 kB of properties a row; client and server share"
        f" {os.cpu_count()} cores",
        default=Caps().postgis_writers,
    )
    chosen.output.write_text(picture + "\n")
    print(f"knee at {find_knee(rates)}, drawn in {chosen.output}")


if __name__ == "__main__":
    main()
