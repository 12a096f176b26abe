-- Roles of the warehouse. An administrator runs this once, in the warehouse's database:
--
--   psql -d warehouse -f infra/postgis-roles.sql
--
-- sets passwords with \password scenes_owner (and so on), and then runs
-- `scene-pipeline migrate` with the owner's URL, which makes the tables and grants the rights.
-- The limit is caps.postgis_writers: the wall behind Dagster's pool of the same size.

CREATE EXTENSION IF NOT EXISTS postgis;
CREATE ROLE "scenes_owner" LOGIN;
CREATE ROLE "scenes_writer" LOGIN CONNECTION LIMIT 4;
CREATE ROLE "scenes_reader" LOGIN;
GRANT CONNECT, CREATE ON DATABASE :"DBNAME" TO "scenes_owner";
GRANT CONNECT ON DATABASE :"DBNAME" TO "scenes_writer", "scenes_reader";
