"""A whole ingest over HTTP against a bare loop over the same pages, and its memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from itertools import count
from pathlib import Path

import httpx
from pypgstac.db import PgstacDB
from pypgstac.load import Loader, Methods
from pypgstac.migrate import Migrate

from scene_pipeline.ingest.runner import run_ingest
from scene_pipeline.settings import Settings, read_settings
from scene_pipeline_tests.benchmarks.harness import Result, benchmark, compare
from scene_pipeline_tests.services.memory import peak_rss_mb
from scene_pipeline_tests.services.page_server import make_scene_item, serve_pages
from scene_pipeline_tests.services.postgres import run_cluster

ITEMS, LIMIT = 20_000, 250


def _settings(folder: Path, url: str) -> Settings:
    stream = {
        "name": "bench",
        "url": url,
        "collection": "sentinel-2-l2a",
        "page_limit": LIMIT,
        "requests_per_s": 1e6,
        "finality": {"rule": "lag", "hours": 48},
    }
    return read_settings(
        region="bench",
        start_date="2024-06-01",
        end_date="2024-07-01",
        area=(6.0, 45.0, 12.0, 48.0),
        zoom=7,
        state_url=f"sqlite:///{folder}/state.db",
        lake=str(folder / "lake"),
        streams=[stream],
    )


def _ingest(folder: Path, url: str, items: int) -> None:
    report = run_ingest(_settings(folder, url))
    assert report.streams[0].landed == items, report.streams[0]


def _loop(url: str) -> int:
    """What anybody would write first."""
    items, following = 0, f"{url}/search"
    with httpx.Client() as client:
        while following:
            page = client.get(following).json()
            items += len(page["features"])
            following = next((link["href"] for link in page["links"]), "")
    assert items == ITEMS
    return items


def _load_into_pgstac() -> float:
    """Seconds that ``pypgstac load`` takes for the same Items from a file."""
    with run_cluster() as cluster, tempfile.TemporaryDirectory() as folder:
        url = cluster.url(cluster.new_database("pgstac"))
        path = Path(folder) / "items.ndjson"
        items = (make_scene_item(number, ITEMS) for number in range(ITEMS))
        path.write_text("".join(json.dumps(item) + "\n" for item in items))
        collection = Path(folder) / "collections.ndjson"
        collection.write_text(json.dumps({"id": "sentinel-2-l2a", "type": "Collection"}) + "\n")
        with PgstacDB(dsn=url) as database:
            Migrate(database).run_migration()
            loader = Loader(db=database)
            loader.load_collections(str(collection), Methods.insert)
            begun = time.perf_counter()
            loader.load_items(str(path), Methods.insert)
            return time.perf_counter() - begun


@benchmark("ingest_20k_vs_bare_loop")
def measure_ingest() -> Result:
    """20,000 Items over HTTP to receipts, registry and lake, against fetching and parsing them."""
    with serve_pages(ITEMS, LIMIT) as url, tempfile.TemporaryDirectory() as folder:
        fresh = count()

        def ours() -> None:
            place = Path(folder) / str(next(fresh))
            place.mkdir()
            _ingest(place, url, ITEMS)

        result = compare(ours, lambda: _loop(url), rounds=3, target=1.5)
    extra = {"pypgstac_load_s": round(_load_into_pgstac(), 2)}
    return Result(result.ratio, result.ours_s, result.other_s, result.n, 1.5, extra)


@benchmark("ingest_rss_100k_vs_10k")
def measure_memory() -> Result:
    """Peak memory (MB in the columns of seconds) of ingests in processes of their own."""
    large, small = _measure_peak(100_000), _measure_peak(10_000)
    return Result(large / small, large, small, 1, 1.2)


def _measure_peak(items: int) -> float:
    with serve_pages(items, LIMIT) as url, tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-m", __name__, folder, url, str(items)],
            capture_output=True, text=True, check=True, env={**os.environ},
            cwd=Path(__file__).parents[2],
        )  # fmt: skip
        return float(done.stdout)


if __name__ == "__main__":
    _ingest(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
    print(peak_rss_mb())
