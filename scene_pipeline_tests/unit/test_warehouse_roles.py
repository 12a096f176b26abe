"""The file for administrators says what the code would do."""

from __future__ import annotations

from pathlib import Path

from scene_pipeline.settings import Caps
from scene_pipeline.warehouse.roles import Roles, role_statements

SCRIPT = Path(__file__).parents[2] / "infra" / "postgis-roles.sql"


def test_the_script_for_administrators_is_the_codes_own() -> None:
    lines = [line for line in SCRIPT.read_text().splitlines() if line and line[:2] != "--"]
    ours = role_statements(Roles(), database="DBNAME")
    assert [line.replace(':"DBNAME"', '"DBNAME"') for line in lines] == [
        "CREATE EXTENSION IF NOT EXISTS postgis;",
        *(f"{statement};" for statement in ours),
    ]


def test_the_limit_is_the_caps() -> None:
    assert Roles().writer_limit == Caps().postgis_writers
