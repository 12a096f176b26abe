"""Any sequence of replacements, beside a model of plain dicts, on both warehouses."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from scene_pipeline.errors import StaleVersionError
from scene_pipeline.scenes.keys import PartitionKey
from scene_pipeline.warehouse import PartitionRows, Replaced, Warehouse
from scene_pipeline.warehouse.geopackage import GeoPackageWarehouse
from scene_pipeline_tests.services.scene_rows import key_of, make_partition

KEYS = [key_of(day, tile) for day in (1, 2, 3) for tile in ("7-1-1", "7-1-2")]
Items = dict[str, int | None]  # Item → when it was published (None: unknown)
items = st.dictionaries(st.sampled_from("abcde"), st.none() | st.integers(1, 3), max_size=5)
keys, versions = st.sampled_from(KEYS), st.integers(1, 3)


def published(number: int | None) -> datetime | None:
    return None if number is None else datetime(2024, 7, number, tzinfo=UTC)


class Model:
    """What the port promises, said as dicts."""

    def __init__(self) -> None:
        self.versions: dict[PartitionKey, int] = {}
        self.rows: dict[PartitionKey, Items] = {key: {} for key in KEYS}

    def replace(self, key: PartitionKey, new: Items, raw_seq: int) -> bool:
        """Whether it is accepted; if so, done."""
        if raw_seq < self.versions.get(key, 0):
            return False
        others = [other for other in KEYS if other.day != key.day]
        for item, when in new.items():
            known = [self.rows[other][item] for other in others if item in self.rows[other]]
            if when is not None and any(there is not None and there > when for there in known):
                return False
        for other in others:
            self.rows[other] = {i: w for i, w in self.rows[other].items() if i not in new}
        self.versions[key], self.rows[key] = raw_seq, dict(new)
        return True


class WarehouseBesideModel(RuleBasedStateMachine):
    open_region: Callable[[str], Warehouse]
    regions = (f"region-{n}" for n in count())

    def __init__(self) -> None:
        super().__init__()
        self.region = next(self.regions)
        self.warehouse = type(self).open_region(self.region)
        self.model = Model()

    def build(self, key: PartitionKey, new: Items, raw_seq: int) -> PartitionRows:
        columns = {
            "updated_at": list(map(published, new.values())),
            "created_at": [None] * len(new),
        }
        return make_partition(key, list(new), raw_seq=raw_seq, region=self.region, columns=columns)

    @rule(key=keys, new=items, raw_seq=versions)
    def replace(self, key: PartitionKey, new: Items, raw_seq: int) -> None:
        partition = self.build(key, new, raw_seq)
        if self.model.replace(key, new, raw_seq):
            self.warehouse.replace(partition)
        else:
            with pytest.raises(StaleVersionError):
                self.warehouse.replace(partition)

    @rule(batch=st.dictionaries(keys, st.tuples(items, versions), min_size=1))
    def replace_many(self, batch: dict[PartitionKey, tuple[Items, int]]) -> None:
        ordered = sorted(batch.items())
        partitions = [self.build(key, new, raw_seq) for key, (new, raw_seq) in ordered]
        outcomes = list(self.warehouse.replace_many(partitions))
        accepted = [self.model.replace(key, new, raw_seq) for key, (new, raw_seq) in ordered]
        assert [isinstance(outcome, Replaced) for outcome in outcomes] == accepted

    @invariant()
    def is_the_model(self) -> None:
        found = self.warehouse.read_versions(KEYS)
        assert {key: version.raw_seq for key, version in found.items()} == self.model.versions
        counts = {key: len(rows) for key, rows in self.model.rows.items()}
        assert self.warehouse.count_rows(KEYS) == counts
        assert all(version.rows == counts[key] for key, version in found.items())
        for key in KEYS:
            stored = self.warehouse.read(key)
            rows = zip(stored["item_id"].to_pylist(), stored["updated_at"].to_pylist(), strict=True)
            assert dict(rows) == {i: published(w) for i, w in self.model.rows[key].items()}


@pytest.fixture(params=["geopackage", pytest.param("postgis", marks=pytest.mark.postgres)])
def open_region(request: pytest.FixtureRequest) -> Iterator[Any]:
    if request.param == "postgis":
        from scene_pipeline.warehouse.migrate import migrate_warehouse
        from scene_pipeline.warehouse.postgis import PostGISWarehouse

        url = sa.make_url(request.getfixturevalue("postgis_url")).set(
            drivername="postgresql+psycopg"
        )
        migrate_warehouse(url, schema="scenes")
        yield lambda region: PostGISWarehouse(url, schema="scenes", region=region, deadline_s=20)
    else:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "scenes.gpkg"
            yield lambda region: GeoPackageWarehouse(path, region=region, deadline_s=20)


def test_every_sequence_of_replacements_follows_the_model(open_region: Any) -> None:
    class Machine(WarehouseBesideModel):
        pass

    Machine.open_region = staticmethod(open_region)
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=12 if settings().max_examples <= 50 else 300,
            stateful_step_count=12,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )
