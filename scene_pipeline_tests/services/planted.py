"""Faults planted in a server by triggers, and conditions to wait for."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg
import sqlalchemy as sa

from scene_pipeline.warehouse.migrate import migrate_warehouse

GATE = 77  # an advisory lock that the test holds and a trigger waits for
WAIT_IN_COPY = f"""
CREATE FUNCTION wait_in_copy() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  IF NEW.item_id = 'b' THEN PERFORM pg_advisory_xact_lock_shared({GATE}); END IF; RETURN NEW;
END $$;
CREATE TRIGGER wait_in_copy BEFORE INSERT ON scenes.scene_footprints
  FOR EACH ROW EXECUTE FUNCTION wait_in_copy();
"""
WAIT_AT_COMMIT = f"""
CREATE FUNCTION wait_at_commit() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  PERFORM pg_advisory_xact_lock_shared({GATE}); RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER wait_at_commit AFTER INSERT OR UPDATE ON scenes.partition_versions
  DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION wait_at_commit();
"""
RAISE_STATE = """
CREATE SEQUENCE calls;
CREATE FUNCTION raise_state() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  IF nextval('public.calls') <= {times} THEN
    RAISE EXCEPTION 'planted' USING ERRCODE = '{state}';
  END IF; RETURN NULL;
END $$;
CREATE TRIGGER raise_state BEFORE INSERT ON scenes.scene_footprints
  FOR EACH STATEMENT EXECUTE FUNCTION raise_state();
"""
DROP_A_ROW = """
CREATE FUNCTION drop_a_row() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  IF NEW.item_id = 'b' THEN RETURN NULL; END IF; RETURN NEW;
END $$;
CREATE TRIGGER drop_a_row BEFORE INSERT ON scenes.scene_footprints
  FOR EACH ROW EXECUTE FUNCTION drop_a_row();
"""


def migrate(url: str) -> str:
    engine_url = sa.make_url(url).set(drivername="postgresql+psycopg")
    migrate_warehouse(engine_url, schema="scenes")
    return url


@contextmanager
def session(url: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(url, autocommit=True) as connection:
        yield connection


def wait_until(condition: Callable[[], bool], *, deadline_s: float = 30) -> None:
    ends = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < ends, "the awaited state never came"
        time.sleep(0.01)


def waiting_pid(connection: psycopg.Connection) -> int | None:
    row = connection.execute(
        "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND objid = %s AND NOT granted",
        [GATE],
    ).fetchone()
    return row[0] if row else None
