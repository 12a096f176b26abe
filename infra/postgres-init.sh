#!/bin/sh
# The first start of an empty server: three databases, and who owns what. The container runs it
# as the superuser; PASSWORDS and ROLES name the files with the passwords and the roles' SQL.
set -eu
. "$PASSWORDS"
run() { psql -v ON_ERROR_STOP=1 --quiet --username postgres "$@"; }

run --dbname postgres <<SQL
CREATE ROLE dagster LOGIN PASSWORD '$DAGSTER_PASSWORD';
CREATE ROLE scenes_state LOGIN PASSWORD '$STATE_PASSWORD';
CREATE DATABASE dagster OWNER dagster;
CREATE DATABASE state OWNER scenes_state;
CREATE DATABASE warehouse;
REVOKE CONNECT, TEMPORARY ON DATABASE dagster, state, warehouse FROM PUBLIC;
SQL
run --dbname warehouse --file "$ROLES"
run --dbname warehouse <<SQL
ALTER ROLE scenes_owner PASSWORD '$OWNER_PASSWORD';
ALTER ROLE scenes_writer PASSWORD '$WRITER_PASSWORD';
ALTER ROLE scenes_reader PASSWORD '$READER_PASSWORD';
SQL
