"""Retention and gc on a region that was built: what goes, what stays, what is refused."""

from __future__ import annotations

import os
from datetime import date
from pathlib import Path

import pytest
import sqlalchemy as sa

from scene_pipeline.defs.makers import FootprintMaker, TableMaker
from scene_pipeline.defs.pipeline import Pipeline
from scene_pipeline.errors import DataError, MigrationError
from scene_pipeline.settings import read_settings
from scene_pipeline.state.database import migrate_state, open_state
from scene_pipeline_tests.services.command import CONFIG, Command

RETENTION = "\n[retention]\nraw_days = 1\ntable_months = 1\n"
WINDOW = ("--from", "2024-05-31", "--to", "2024-06-01")


def set_retention(folder: Path) -> None:
    """Two covered days, the newest of which stays; a page holds few Items."""
    config = CONFIG.replace("2024-06-01", "2024-05-31").replace("2024-06-03", "2024-06-02")
    stream = "rescan_days = 0\npage_limit = 5\n"
    (folder / "scene_pipeline.toml").write_text(config + stream + RETENTION)


def test_given_up_days_are_refused_and_keep_their_files(command: Command, tmp_path: Path) -> None:
    set_retention(tmp_path)
    assert command("ingest", "run").code == 0
    early = command("expire", "--dry-run", "--json").document
    assert early["raw_from"] == early["raw_needed_from"] == "2024-05-31", "nothing is built yet"

    launched = command("backfill", "launch", *WINDOW, "--local")
    assert launched.code == 0, launched.out
    lake = tmp_path / ".scene_pipeline/lake/fiji"
    files = {path: path.read_bytes() for path in lake.rglob("date=*/*.parquet")}
    assert len(files) == 12

    shown = command("expire", "--dry-run", "--json").document
    assert (shown["raw_from"], shown["rows_from"]) == ("2024-06-01", "2024-06-01")
    segments = set(lake.glob("raw/*/*.parquet"))
    gone = command("expire", "--json").document
    assert gone["segments_removed"] > 0
    assert gone["rows_removed"] > 0
    left = set(lake.glob("raw/*/*.parquet"))
    assert len(segments - left) == gone["segments_removed"]
    again = command("expire", "--json").document
    assert (again["segments_removed"], again["rows_removed"]) == (0, 0)

    pipeline = Pipeline(read_settings())
    keys = list(pipeline.definition.iter_window(date(2024, 5, 31), date(2024, 6, 1)))
    for maker, what in ((FootprintMaker(pipeline), "raw scenes"), (TableMaker(pipeline), "rows")):
        refused = {key for key, made in maker.make(keys) if isinstance(made, DataError)}
        assert refused == {key for key in keys if key.day == date(2024, 5, 31)}, what
    assert {path: path.read_bytes() for path in lake.rglob("date=*/*.parquet")} == files
    counted = pipeline.warehouse.count_rows(keys)
    assert sum(counted[key] for key in keys if key.day == date(2024, 5, 31)) == 0
    assert sum(counted.values()) > 0
    after = command("ingest", "run", "--json").document
    assert after["frontier"]["last_covered_day"] == "2024-06-01", "the streams go on as before"
    pipeline.state.dispose()


def test_gc_takes_what_nothing_refers_to(command: Command, tmp_path: Path) -> None:
    assert command("gc", "--json").document["before"] is None, "no stream has brought a page"
    assert command("ingest", "run").code == 0
    lake = tmp_path / ".scene_pipeline/lake/fiji"
    used = set(lake.glob("raw/*/*.parquet"))
    assert used
    old, young = lake / "raw/ab" / f"{'ab' * 32}.parquet", lake / "raw/ac" / f"{'ac' * 32}.parquet"
    for path in (old, young):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"of a page that was never committed")
    for path in (old, *used):
        os.utime(path, (0, 0))
    listed = command("gc", "--json").document
    (orphan,) = listed["orphans"]
    assert orphan["path"] == old.relative_to(lake.parent).as_posix()
    assert old.exists(), "it is only listed"
    assert command("gc", "--delete").code == 0
    assert set(lake.glob("raw/*/*.parquet")) == {*used, young}


def test_an_older_database_is_refused_then_migrated(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/state.db"
    _go_back(url)
    engine = open_state(url)  # SQLite migrates itself
    assert "rows_from" in {each["name"] for each in sa.inspect(engine).get_columns("regions")}
    engine.dispose()


@pytest.mark.postgres
def test_a_server_behind_is_refused_before_anything_starts(
    command: Command, postgis_url: str
) -> None:
    _go_back(postgis_url)
    with pytest.raises(MigrationError, match="revision 0001, this version needs"):
        open_state(postgis_url)
    for arguments in (("migrate", "--check"), ("init",), ("dev",), ("ingest", "run")):
        refused = command(*arguments, STATE_URL=postgis_url)
        assert (refused.code, "scene-pipeline migrate" in refused.err) == (2, True), arguments
    assert command("migrate", STATE_URL=postgis_url).code == 0
    assert command("migrate", "--check", STATE_URL=postgis_url).code == 0
    both = {"STATE_URL": postgis_url, "WAREHOUSE_URL": postgis_url}
    refused = command("migrate", "--check", **both)
    assert (refused.code, "as the schema's owner" in refused.err) == (2, True)


def _go_back(url: str) -> None:
    """The database as the first release made it."""
    from alembic import command as alembic
    from alembic.config import Config

    from scene_pipeline.state import database

    migrate_state(url)
    engine = open_state(url)
    config = Config()
    folder = Path(database.__file__).parent / "migrations"
    config.set_main_option("script_location", str(folder))
    config.attributes["engine"] = engine
    alembic.downgrade(config, "0001")
    engine.dispose()
