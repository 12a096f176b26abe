"""Migrations, names, search paths, roles and the view, on a real PostGIS."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
import shapely
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from psycopg import sql
from sqlalchemy.engine import URL

from scene_pipeline.errors import (
    MigrationError,
    ScenePipelineError,
    WarehouseUnavailableError,
)
from scene_pipeline.scenes.schema import SCENE_COLUMNS
from scene_pipeline.warehouse import Replaced, migrations
from scene_pipeline.warehouse.migrate import migrate_warehouse
from scene_pipeline.warehouse.postgis import PostGISWarehouse
from scene_pipeline.warehouse.roles import Roles
from scene_pipeline.warehouse.tables import REVISION, VERSION_TABLE, build_tables
from scene_pipeline_tests.services.postgres import PostgresCluster
from scene_pipeline_tests.services.scene_rows import REGION, key_of, make_partition

pytestmark = pytest.mark.postgres

HOSTILE = ["EO-Data", "select", 'quote"d', "per%cent %(x)s", "co:lon :x", "two words", "ünï", "a.b"]


@pytest.fixture
def url(postgis_url: str) -> URL:
    return engine_url(postgis_url)


def engine_url(url: str) -> URL:
    return sa.make_url(url).set(drivername="postgresql+psycopg")


def open_schema(url: URL, schema: str = "scenes", *, deadline_s: float = 20) -> PostGISWarehouse:
    return PostGISWarehouse(url, schema=schema, region=REGION, deadline_s=deadline_s)


@contextmanager
def connect(url: URL) -> Iterator[sa.Connection]:
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    with engine.begin() as connection:
        yield connection


@pytest.mark.parametrize("schema", HOSTILE)
def test_any_schema_name_is_quoted_everywhere(url: URL, schema: str) -> None:
    """A36: capitals, dashes, keywords, quotes, percent signs, colons."""
    name = url.database
    roles = Roles(f"Ow:ner {name}", f'wri"ter% {name}', f"read-er {name}")
    migrate_warehouse(url, schema=schema, roles=roles, with_roles=True)
    migrate_warehouse(url, schema=schema, roles=roles, with_roles=True)
    warehouse = open_schema(url, schema)
    partition = make_partition(key_of(), 3)
    warehouse.replace(partition)
    assert [type(o) for o in warehouse.replace_many([partition])] == [Replaced]
    assert warehouse.read(key_of()).equals(partition.rows)
    with connect(url) as connection:
        homes = connection.scalars(
            sa.text("SELECT schemaname FROM pg_tables WHERE tablename = 'scene_footprints'")
        )
        assert homes.all() == [schema]
        view = sql.Identifier(schema, "current_scenes").as_string(None)
        rows = connection.connection.dbapi_connection.execute(f"SELECT count(*) FROM {view}")
        assert rows.fetchone() == (3,)
    migrate_warehouse(url, schema=schema, revision="base")


def test_migrations_go_up_down_and_up_again(url: URL) -> None:
    def names() -> set[str]:
        with connect(url) as connection:
            inspector = sa.inspect(connection)
            tables = inspector.get_table_names("scenes")
            return {*tables, *inspector.get_view_names("scenes")}

    ours = {"scene_footprints", "partition_versions", "current_scenes"}
    assert migrate_warehouse(url, schema="scenes") == REVISION
    assert names() == ours | {VERSION_TABLE}
    open_schema(url).replace(make_partition(key_of(), 3))
    migrate_warehouse(url, schema="scenes")
    assert open_schema(url).count_rows([key_of()]) == {key_of(): 3}, "up again keeps the rows"
    migrate_warehouse(url, schema="scenes", revision="base")
    assert names() == {VERSION_TABLE}
    with pytest.raises(MigrationError, match=r"revision None, this version needs") as caught:
        open_schema(url).replace(make_partition(key_of(), 3))
    assert "scene-pipeline migrate" in caught.value.next_step
    migrate_warehouse(url, schema="scenes")
    assert open_schema(url).read_versions([key_of()]) == {}


def test_the_migrated_database_is_the_one_schema(url: URL) -> None:
    migrate_warehouse(url, schema="scenes")
    tables = build_tables("scenes")
    with connect(url) as connection:
        options = {
            "compare_type": True,
            "include_schemas": True,
            "include_name": lambda name, kind, _: kind != "schema" or name == "scenes",
            "include_object": lambda _, name, kind, *rest: name != VERSION_TABLE,
        }
        context = MigrationContext.configure(connection, opts=options)
        assert compare_metadata(context, tables.metadata) == []
        inspector = sa.inspect(connection)
        columns = inspector.get_columns("scene_footprints", "scenes")
        indexes = inspector.get_indexes("scene_footprints", "scenes")
    told = {column["name"]: column["comment"] for column in columns}
    expected = {c.name.replace("geometry", "geom"): c.doc for c in SCENE_COLUMNS}
    del expected["bbox"]  # the geometry column carries its bounds
    assert told == expected
    gist = [i for i in indexes if i.get("dialect_options", {}).get("postgresql_using") == "gist"]
    assert len(gist) == 1, "A36: made once"


def test_the_code_asks_for_the_newest_migration() -> None:
    scripts = ScriptDirectory(str(Path(migrations.__file__).parent))
    assert scripts.get_current_head() == REVISION


def test_nothing_depends_on_the_search_path(postgres: PostgresCluster) -> None:
    """A36: PostGIS in a schema of its own, and a database whose search path is empty."""
    name = postgres.new_database()
    postgres.execute("DROP EXTENSION postgis CASCADE", database=name)
    postgres.execute('CREATE SCHEMA "GIS ext"', database=name)
    postgres.execute('CREATE EXTENSION postgis SCHEMA "GIS ext"', database=name)
    postgres.execute(f"ALTER DATABASE \"{name}\" SET search_path = ''")
    url = engine_url(postgres.url(name))
    migrate_warehouse(url, schema="scenes")
    warehouse = open_schema(url)
    partition = make_partition(key_of(), 4)
    warehouse.replace(partition)
    assert warehouse.read(key_of()).equals(partition.rows)
    with connect(url) as connection:
        assert connection.scalar(sa.text("SELECT count(*) FROM scenes.current_scenes")) == 4


def test_a_database_without_postgis_says_who_can_help(postgres: PostgresCluster) -> None:
    name = postgres.new_database()
    postgres.execute("DROP EXTENSION postgis CASCADE", database=name)
    postgres.execute(f'CREATE ROLE "plain_{name}" LOGIN')
    postgres.execute(f'GRANT CREATE ON DATABASE "{name}" TO "plain_{name}"')
    with pytest.raises(MigrationError, match="has no PostGIS: permission denied") as caught:
        migrate_warehouse(engine_url(postgres.url(name, user=f"plain_{name}")), schema="scenes")
    assert "CREATE EXTENSION postgis" in caught.value.next_step
    migrate_warehouse(engine_url(postgres.url(name)), schema="scenes")  # the superuser may


def test_a_server_that_is_not_there_fails_the_migration_by_name() -> None:
    url = sa.make_url("postgresql+psycopg://u:hunter2-secret@127.0.0.1:1/db")
    with pytest.raises(WarehouseUnavailableError) as caught:
        migrate_warehouse(url, schema="scenes")
    assert "127.0.0.1" in str(caught.value)
    assert "hunter2-secret" not in str(caught.value)


def test_what_each_role_may_do(postgres: PostgresCluster, url: URL) -> None:
    name = str(url.database)
    roles = Roles(f"o_{name}", f"w_{name}", f"r_{name}", writer_limit=3)
    migrate_warehouse(url, schema="plain", roles=roles, with_roles=True)  # as the superuser
    owner, writer, reader = (
        engine_url(postgres.url(name, user=role))
        for role in (roles.owner, roles.writer, roles.reader)
    )
    migrate_warehouse(owner, schema="scenes", roles=roles)
    partition = make_partition(key_of(), 5)
    assert open_schema(writer).replace(partition).written_rows == 5
    assert open_schema(writer).replace(partition).deleted_rows == 5

    reading = open_schema(reader)
    assert reading.read(key_of()).equals(partition.rows)
    assert reading.count_rows([key_of()]) == {key_of(): 5}
    with pytest.raises(WarehouseUnavailableError, match="permission denied") as caught:
        reading.replace(partition)
    assert "rights" in caught.value.next_step

    for role, statement in [
        (writer, "DROP TABLE scenes.scene_footprints"),
        (writer, "TRUNCATE scenes.scene_footprints"),
        (writer, "UPDATE scenes.schema_revision SET version_num = '9'"),
        (writer, "CREATE TABLE scenes.mine ()"),
        (reader, "DELETE FROM scenes.scene_footprints"),
        (reader, "UPDATE scenes.partition_versions SET raw_seq = 9"),
    ]:
        with (
            pytest.raises(sa.exc.ProgrammingError, match=r"denied|must be owner"),
            connect(role) as connection,
        ):
            connection.execute(sa.text(statement))
    with connect(url) as connection:
        limit = "SELECT rolconnlimit FROM pg_roles WHERE rolname = :name"
        assert connection.scalar(sa.text(limit), {"name": roles.writer}) == 3


def test_reads_go_through_the_readers_role(postgres: PostgresCluster, url: URL) -> None:
    """A check needs no place among the writers."""
    name = str(url.database)
    roles = Roles(f"o_{name}", f"w_{name}", f"r_{name}", writer_limit=1)
    migrate_warehouse(url, schema="scenes", roles=roles, with_roles=True)
    as_writer = postgres.url(name, user=roles.writer)
    warehouse = PostGISWarehouse(
        engine_url(as_writer),
        schema="scenes",
        region=REGION,
        deadline_s=0.3,
        reader_url=engine_url(postgres.url(name, user=roles.reader)),
    )
    with psycopg.connect(as_writer):
        assert warehouse.read_versions([key_of()]) == {}
        assert warehouse.count_rows([key_of()]) == {key_of(): 0}
        with pytest.raises(WarehouseUnavailableError, match="too many connections"):
            warehouse.replace(make_partition(key_of(), 1))


WALL = {
    "SRID": ("ST_SetSRID(ST_Multi(ST_MakeEnvelope(0, 0, 1, 1)), 4326)", "SRID"),
    "type": ("ST_MakeEnvelope(0, 0, 1, 1, 3857)", "does not match column type"),
    "Z": ("ST_Force3D(ST_Multi(ST_MakeEnvelope(0, 0, 1, 1, 3857)))", "Z dimension"),
    "null": ("NULL", "null value"),
}


@pytest.mark.parametrize("name", WALL)
def test_the_column_itself_refuses_what_does_not_fit(url: URL, name: str) -> None:
    """A34, A35, A40: the wall behind our own check, for whoever writes past it."""
    migrate_warehouse(url, schema="scenes")
    open_schema(url).replace(make_partition(key_of(), ["a"]))
    expression, text = WALL[name]
    with pytest.raises(sa.exc.DBAPIError, match=text), connect(url) as connection:
        connection.execute(sa.text(f"UPDATE scenes.scene_footprints SET geom = {expression}"))


def test_a_whole_scene_is_one_row_of_current_scenes(url: URL) -> None:
    migrate_warehouse(url, schema="scenes")
    warehouse = open_schema(url)
    whole = shapely.Polygon([(0, 0), (20, 1), (21, 9), (3, 10)])
    pieces = {
        f"7-{column}-0": shapely.intersection(whole, shapely.box(7 * column, 0, 7 * column + 7, 10))
        for column in range(3)
    }
    for share, (tile, piece) in enumerate(pieces.items(), start=1):
        columns = {
            "geometry": [shapely.MultiPolygon([piece]).wkb],
            "area_share": [share / 10],
            "updated_at": [None],
        }
        partition = make_partition(key_of(3, tile), ["wide"], columns=columns)
        warehouse.replace(partition)
    warehouse.replace(make_partition(key_of(4, "7-0-0"), ["other"]))
    with connect(url) as connection:
        rows = connection.execute(
            sa.text(
                "SELECT item_id, acq_date, tiles, area_share, ST_AsBinary(geom), ST_SRID(geom)"
                " FROM scenes.current_scenes ORDER BY item_id"
            )
        ).all()
        registered = connection.execute(
            sa.text("SELECT type, srid FROM geometry_columns WHERE f_table_name = 'current_scenes'")
        ).one()
    assert [row[0] for row in rows] == ["other", "wide"]
    _, day, tiles, share, wkb, srid = rows[1]
    assert (day, tiles, share, srid) == (key_of(3).day, list(pieces), pytest.approx(0.6), 3857)
    united = shapely.from_wkb(bytes(wkb))
    assert united.geom_type == "MultiPolygon"
    assert len(united.geoms) == 1, "no seam is left where the tiles met"
    assert not united.geoms[0].interiors
    assert shapely.symmetric_difference(united, whole).area < 1e-9 * whole.area
    assert tuple(registered) == ("MULTIPOLYGON", 3857)


def test_errors_of_the_writer_are_of_our_tree(url: URL) -> None:
    """Before the first migration there is not even a schema."""
    with pytest.raises(ScenePipelineError) as caught:
        open_schema(url).replace(make_partition(key_of(), 1))
    assert isinstance(caught.value, MigrationError)
    assert "scene-pipeline migrate" in caught.value.next_step
