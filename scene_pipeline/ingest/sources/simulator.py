"""A deterministic provider: sun-synchronous satellites over the set area, some Items faulty.

The orbit is circular. With the secular rates of J2 (Vallado, Fundamentals of Astrodynamics and
Applications, 4th ed., sections 9.6 and 11.4; constants of EGM96) its inclination follows from
the node turning with the mean Sun, and its height from a ground track that repeats after
``revolutions`` nodal periods in ``cycle_days``. Such an orbit crosses the equator at one local
mean solar time, from which each node's longitude follows.

Faults are those that providers publish: a ring that crosses the antimeridian without a cut, a
bow-tie (repairable), a null geometry (unusable). All choices derive from SHA-256 of the id, so
every platform and version simulates the same Items.
"""

from __future__ import annotations

import bisect
import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import cached_property, lru_cache
from typing import Any

from scene_pipeline.ingest.bounds import Bound
from scene_pipeline.ingest.sources.base import Area, Declaration, Page, Query, format_scope

__all__ = ["MISSIONS", "SIMULATED", "Mission", "Simulator", "simulate_items"]

_MU_KM3_S2 = 398600.4418
_EARTH_RADIUS_KM = 6378.137
_J2 = 1.0826267e-3
_TROPICAL_YEAR_S = 365.2421897 * 86400
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
_FRAME_DEG = 0.7  # along track, about 78 km
_ONE_IN_BOW_TIE, _ONE_IN_UNUSABLE = 60, 90


@dataclass(frozen=True)
class Mission:
    """A satellite; ``local_time_h`` is the mean solar time of its descending node, in hours.

    ``phase`` (of one revolution) tells satellites of a constellation apart; ``lanes`` is how
    many scenes lie side by side in its swath.
    """

    platform: str
    constellation: str
    revolutions: int
    cycle_days: int
    local_time_h: float
    phase: float
    swath_km: float
    lanes: int
    gsd_m: float

    @property
    def nodal_period_s(self) -> float:
        """From one descending node to the next."""
        return self.cycle_days * 86400 / self.revolutions

    @cached_property
    def orbit(self) -> tuple[float, float]:
        """Semi-major axis in km and inclination in radians, by fixed-point iteration."""
        axis_km, inclination = 7000.0, math.pi / 2
        for _ in range(50):
            motion = math.sqrt(_MU_KM3_S2 / axis_km**3)
            oblate = 1.5 * _J2 * (_EARTH_RADIUS_KM / axis_km) ** 2
            inclination = math.acos(-2 * math.pi / _TROPICAL_YEAR_S / (oblate * motion))
            # Nodal rate: mean motion, with the secular drifts of anomaly and perigee.
            drift = 1 + oblate * (3 - 4 * math.sin(inclination) ** 2)
            period_s = self.nodal_period_s * drift
            axis_km = (_MU_KM3_S2 * (period_s / (2 * math.pi)) ** 2) ** (1 / 3)
        return axis_km, inclination

    def locate(self, node_lon_deg: float, along: float, across: float) -> tuple[float, float]:
        """Lon and lat in degrees, ``along`` the track after the descending node, ``across`` to
        its left; both are Earth-central angles in radians. The longitude is not wrapped.
        """
        inclination = self.orbit[1]
        sin_i, cos_i = math.sin(inclination), math.cos(inclination)
        # Position turned towards the orbit's normal; x points to the descending node.
        x = math.cos(along) * math.cos(across)
        y = math.sin(along) * cos_i * math.cos(across) + sin_i * math.sin(across)
        z = -math.sin(along) * sin_i * math.cos(across) + cos_i * math.sin(across)
        # The Earth turns under the orbit at the mean Sun's rate, because the node follows the Sun.
        turned_deg = 360 * self.nodal_period_s / 86400 * along / (2 * math.pi)
        lon_deg = node_lon_deg + math.degrees(math.atan2(y, x)) - turned_deg
        return lon_deg, math.degrees(math.asin(z))

    def off_nadir_deg(self, across: float) -> float:
        """View angle at the satellite towards a point ``across`` (radians) from the track."""
        ratio = self.orbit[0] / _EARTH_RADIUS_KM
        return math.degrees(math.atan2(math.sin(abs(across)), ratio - math.cos(across)))


# Repeat cycles, local times, swaths and resolutions are those of Sentinel-2 A and B and of
# Landsat 8; names and phases are made up.
MISSIONS: Mapping[str, Mission] = {
    mission.platform: mission
    for mission in (
        Mission("sim-2a", "sim-2", 143, 10, 10.5, 0.0, 290.0, 4, 10.0),
        Mission("sim-2b", "sim-2", 143, 10, 10.5, 0.5, 290.0, 4, 10.0),
        Mission("sim-8", "sim-8", 233, 16, 10.2, 0.25, 185.0, 2, 30.0),
    )
}


SIMULATED = Declaration(finality="explicit", matched="exact", requests_per_s=1e6)


@dataclass(frozen=True, slots=True)
class Simulator:
    """The `Source` over `simulate_items`; complete through ``start + days``, as it says itself."""

    start: date
    days: int = 14
    missions: tuple[str, ...] = tuple(MISSIONS)
    declaration: Declaration = SIMULATED

    @property
    def address(self) -> str:
        """A made-up address that names what is simulated."""
        return f"simulator:{','.join(self.missions)}"

    @property
    def scope(self) -> str:
        """Days are left out: a longer simulation continues the shorter one."""
        return format_scope(address=self.address, order="datetime,id", boundary="[start, end)")

    def fetch_page(self, query: Query, token: str | None) -> Page:
        """The ``limit`` Items after the one that ``token`` names."""
        end = min(query.end, self._end)
        items = simulate_items(query.collection, query.area, query.start, end, self.missions)
        first = 0 if token is None else bisect.bisect_right(items, token, key=_order)
        page = items[first : first + query.limit]
        more = first + query.limit < len(items)
        return Page(page, _order(page[-1]) if more else None, matched=len(items))

    def complete_through(self, query: Query) -> Bound:  # noqa: ARG002 - the port's signature
        """The midnight after the last simulated day, excluded."""
        return Bound(self._end)

    @property
    def _end(self) -> datetime:
        midnight = datetime(self.start.year, self.start.month, self.start.day, tzinfo=UTC)
        return midnight + timedelta(days=self.days)


def _order(item: Mapping[str, Any]) -> str:
    return f"{item['properties']['datetime']} {item['id']}"


@lru_cache(maxsize=4)
def simulate_items(
    collection: str, area: Area, start: datetime, end: datetime, missions: tuple[str, ...]
) -> Sequence[Mapping[str, Any]]:
    """Items with datetime in [start, end) whose bounds meet ``area``, by datetime and id."""
    found = [
        item for name in missions for item in _observe(MISSIONS[name], collection, area, start, end)
    ]
    return sorted(found, key=_order)


def _observe(
    mission: Mission, collection: str, area: Area, start: datetime, end: datetime
) -> Iterator[dict[str, Any]]:
    period_s, frame = mission.nodal_period_s, math.radians(_FRAME_DEG)
    frames = _frames_between(mission, area[1] - 3, area[3] + 3)
    first = math.floor((start - _EPOCH).total_seconds() / period_s - mission.phase) - 1
    last = math.ceil((end - _EPOCH).total_seconds() / period_s - mission.phase) + 1
    half = mission.swath_km / 2 / _EARTH_RADIUS_KM
    for revolution in range(first, last + 1):
        node_at = _EPOCH + timedelta(seconds=(revolution + mission.phase) * period_s)
        day_s = (node_at - _EPOCH).total_seconds() % 86400
        node_lon_deg = 15 * (mission.local_time_h - day_s / 3600)
        for number in frames:
            at = node_at + timedelta(seconds=round(period_s * _FRAME_DEG * (number + 0.5) / 360))
            at = at.replace(microsecond=0)  # as published: windows are cut by what Items say
            if not start <= at < end:
                continue
            for lane in range(mission.lanes):
                across = [half * (2 * (lane + side) / mission.lanes - 1) for side in (0, 1)]
                along = [frame * (number + side) for side in (0, 1)]
                ring = [
                    mission.locate(node_lon_deg, along[i], across[j])
                    for i, j in ((0, 0), (0, 1), (1, 1), (1, 0), (0, 0))
                ]
                if _meets(ring, area):
                    orbit = revolution % mission.revolutions + 1
                    place = f"R{orbit:03d}F{number + 200:03d}{'ABCDE'[lane]}"
                    off_nadir_deg = mission.off_nadir_deg(sum(across) / 2)
                    yield _write_item(
                        mission,
                        collection,
                        at=at,
                        place=place,
                        ring=ring,
                        off_nadir_deg=off_nadir_deg,
                    )


def _frames_between(mission: Mission, south: float, north: float) -> range:
    """Numbers of the frames whose track lies in the latitudes, counted from the node."""
    sin_i = math.sin(mission.orbit[1])

    def frame_at(lat_deg: float) -> float:
        sine = math.sin(math.radians(max(-80.0, min(80.0, lat_deg)))) / sin_i
        return -math.degrees(math.asin(sine)) / _FRAME_DEG

    return range(math.floor(frame_at(north)), math.ceil(frame_at(south)))


def _meets(ring: Sequence[tuple[float, float]], area: Area) -> bool:
    """Whether the bounds of an unwrapped ring meet the area, whole turns apart or not."""
    west, south, east, north = area
    lons, lats = [lon for lon, _ in ring], [lat for _, lat in ring]
    width = (east - west) % 360 or 360.0
    offset = (min(lons) - west) % 360
    meets_lon = offset <= width or offset + max(lons) - min(lons) >= 360
    return meets_lon and min(lats) <= north and max(lats) >= south


def _write_item(
    mission: Mission,
    collection: str,
    *,
    at: datetime,
    place: str,
    ring: Sequence[tuple[float, float]],
    off_nadir_deg: float,
) -> dict[str, Any]:
    item_id = f"{mission.platform.upper()}_{at:%Y%m%dT%H%M%S}_{place}"
    chance = [
        int.from_bytes(hashlib.sha256(f"{item_id}/{use}".encode()).digest()[:4])
        for use in ("cloud", "delay", "fault")
    ]
    lons, lats = zip(*ring, strict=True)
    wrapped = [[_wrap(lon), round(lat, 6)] for lon, lat in ring]
    bounds = [_wrap(min(lons)), round(min(lats), 6), _wrap(max(lons)), round(max(lats), 6)]
    item: dict[str, Any] = {
        "type": "Feature",
        "stac_version": "1.1.0",
        "id": item_id,
        "collection": collection,
        "geometry": {"type": "Polygon", "coordinates": [wrapped]},
        "bbox": bounds,
        "properties": {
            "datetime": _format(at),
            "created": _format(at + timedelta(seconds=10_000 + chance[1] % 20_000)),
            "updated": _format(at + timedelta(seconds=40_000 + chance[1] % 30_000)),
            "platform": mission.platform,
            "constellation": mission.constellation,
            "instruments": ["msi"],
            "gsd": mission.gsd_m,
            "eo:cloud_cover": chance[0] % 10_001 / 100,
            "view:off_nadir": round(off_nadir_deg, 2),
            "view:sun_elevation": round(_sun_elevation_deg(at, sum(lons) / 5, lats[0]), 2),
            "grid:code": f"SIM-{place}",
            "processing:version": "01.00",
        },
        "assets": {"visual": {"href": f"https://simulator.invalid/{item_id}.tif"}},
        "links": [{"rel": "self", "href": f"https://simulator.invalid/{collection}/{item_id}"}],
    }
    if chance[2] % _ONE_IN_UNUSABLE == 0:
        item["geometry"] = None
        del item["bbox"]
    elif chance[2] % _ONE_IN_BOW_TIE == 1:
        wrapped[1], wrapped[2] = wrapped[2], wrapped[1]
    return item


def _wrap(lon_deg: float) -> float:
    return round((lon_deg + 180) % 360 - 180, 6)


def _format(at: datetime) -> str:
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")


def _sun_elevation_deg(at: datetime, lon_deg: float, lat_deg: float) -> float:
    """From the mean Sun, to about two degrees (no equation of time)."""
    tilt = -math.radians(23.44) * math.cos(2 * math.pi * (at.timetuple().tm_yday + 10) / 365.24)
    hour = math.radians((at - _EPOCH).total_seconds() % 86400 / 240 + lon_deg - 180)
    lat = math.radians(lat_deg)
    return math.degrees(
        math.asin(math.sin(lat) * math.sin(tilt) + math.cos(lat) * math.cos(tilt) * math.cos(hour))
    )
