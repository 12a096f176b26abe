#!/bin/sh
# Puts secrets from files into the environment, then becomes the command: where NAME_FILE names a
# file, NAME gets its content. Only names of this project and of provider keys are looked at.
set -eu
for name in $(env | sed -n 's/^\(SCENE_PIPELINE_[A-Z0-9_]*\|DAGSTER_PG_URL\|[A-Z0-9_]*_KEY\)_FILE=.*/\1/p'); do
  eval "file=\$${name}_FILE"
  content=$(cat "$file")
  export "$name=$content"
  unset "${name}_FILE"
done
exec "$@"
