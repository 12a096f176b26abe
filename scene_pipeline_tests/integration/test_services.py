"""The private cluster that the other tests stand on."""

import psycopg
import pytest


@pytest.mark.postgres
def test_a_fresh_database_has_postgis(postgis_url: str) -> None:
    with psycopg.connect(postgis_url) as connection:
        row = connection.execute("SELECT ST_AsText(ST_Point(1, 2))").fetchone()
    assert row == ("POINT(1 2)",)
