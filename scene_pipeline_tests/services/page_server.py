"""A STAC API in a process of its own that costs next to nothing: its pages are text, made once.

``python -m scene_pipeline_tests.services.page_server ITEMS LIMIT`` prints its URL.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

START = datetime(2024, 6, 1, tzinfo=UTC)
DAYS = 30
BANDS = ("B01", "B02", "B03", "B04", "B05", "B06", "B07", "B08", "B8A", "B09", "B11", "B12")


def make_scene_item(number: int, total: int) -> dict[str, Any]:
    """A Sentinel-2 Item of about 5 kB, as Earth Search gives them; a footprint over the Alps."""
    at = START + timedelta(days=DAYS) * number / total
    name = f"S2A_T32TM{number % 20:02d}_{at:%Y%m%dT%H%M%S}_{number:06d}_L2A"
    west, south = 6.0 + (number * 7 % 50) / 10, 45.0 + (number * 3 % 20) / 10
    ring = [
        [west, south + 0.02], [west + 1.31, south], [west + 1.35, south + 0.97],
        [west + 0.02, south + 0.99], [west, south + 0.02],
    ]  # fmt: skip
    href = f"https://sentinel-cogs.s3.us-west-2.amazonaws.com/sentinel-s2-l2a-cogs/32/T/MS/{name}"
    assets = {
        band: {
            "href": f"{href}/{band}.tif",
            "type": "image/tiff; application=geotiff; profile=cloud-optimized",
            "title": f"Band {band} - 10m",
            "eo:bands": [{"name": band, "common_name": "coastal", "center_wavelength": 0.443}],
            "gsd": 10,
            "proj:shape": [10980, 10980],
            "proj:transform": [10, 0, 399960, 0, -10, 5100000],
            "raster:bands": [{"nodata": 0, "data_type": "uint16", "spatial_resolution": 10}],
            "roles": ["data", "reflectance"],
        }
        for band in BANDS
    }
    return {
        "type": "Feature",
        "stac_version": "1.0.0",
        "id": name,
        "collection": "sentinel-2-l2a",
        "geometry": {"type": "Polygon", "coordinates": [ring]},
        "bbox": [west, south, west + 1.35, south + 0.99],
        "properties": {
            "datetime": at.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            "created": "2024-07-01T00:00:00.000Z",
            "updated": "2024-07-01T00:00:00.000Z",
            "platform": "sentinel-2a",
            "constellation": "sentinel-2",
            "grid:code": f"MGRS-32T{number:06d}",
            "gsd": 10,
            "eo:cloud_cover": number % 101,
            "view:sun_elevation": 55.2,
            "s2:processing_baseline": "05.10",
            "s2:product_uri": f"{name}.SAFE",
            "s2:nodata_pixel_percentage": 12.5,
            "proj:epsg": 32632,
        },
        "links": [{"rel": "self", "href": f"https://stac.invalid/items/{name}"}],
        "assets": assets,
    }


@contextmanager
def serve_pages(items: int, limit: int) -> Iterator[str]:
    """The URL of a server for the length of the block."""
    command = [sys.executable, "-m", __name__, str(items), str(limit)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]
    ) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip()
        finally:
            process.kill()


def _serve(items: int, limit: int) -> None:
    # What is asked for twice is made once; a server of 100,000 Items keeps a part of them.
    @lru_cache(maxsize=400)
    def page(number: int) -> bytes:
        first = number * limit
        features = [make_scene_item(n, items) for n in range(first, min(first + limit, items))]
        links = []
        if first + limit < items:
            links = [{"rel": "next", "href": f"{url}/search?token={number + 1}", "method": "GET"}]
        body = {"type": "FeatureCollection", "features": features, "links": links}
        return json.dumps({**body, "numberMatched": items}).encode()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # one segment a page, not one a line

        def do_GET(self) -> None:
            asked = urlsplit(self.path)
            if asked.path == "/search":
                body = page(int(parse_qs(asked.query).get("token", ["0"])[0]))
            else:
                links = [{"rel": "search", "href": f"{url}/search", "method": "GET"}]
                classes = ["https://api.stacspec.org/v1.0.0/item-search"]
                landing = {"type": "Catalog", "conformsTo": classes, "links": links}
                body = json.dumps(landing).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/geo+json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    url = f"http://127.0.0.1:{server.server_port}"
    if items <= 20_000:
        for number in range(-(-items // limit)):
            page(number)
    print(url, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    _serve(int(sys.argv[1]), int(sys.argv[2]))
