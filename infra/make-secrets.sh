#!/bin/sh
# Makes the secrets of one server, once: infra/make-secrets.sh FOLDER [POSTGRES]
# POSTGRES is the host and port that the containers see. A file that is there stays as it is.
set -eu
folder=$1
postgres=${2:-postgres:5432}
mkdir -p "$folder"
umask 077

random() { head -c 24 /dev/urandom | od -An -tx1 | tr -d ' \n'; }
put() { [ -e "$folder/$1" ] || printf '%s' "$2" >"$folder/$1"; }

[ -e "$folder/passwords.env" ] || for name in POSTGRES DAGSTER STATE OWNER WRITER READER WEB; do
  echo "${name}_PASSWORD=$(random)"
done >"$folder/passwords.env"
. "$folder/passwords.env"
put postgres_password "$POSTGRES_PASSWORD"
put dagster_pg_url "postgresql://dagster:$DAGSTER_PASSWORD@$postgres/dagster"
put state_url "postgresql://scenes_state:$STATE_PASSWORD@$postgres/state"
put warehouse_url "postgresql://scenes_writer:$WRITER_PASSWORD@$postgres/warehouse"
put warehouse_reader_url "postgresql://scenes_reader:$READER_PASSWORD@$postgres/warehouse"
put warehouse_owner_url "postgresql://scenes_owner:$OWNER_PASSWORD@$postgres/warehouse"
put s3_access_key "scenes"
put s3_secret_key "$(random)"
put s3.json "{\"identities\": [{\"name\": \"scenes\", \"actions\": [\"Admin\", \"Read\", \"Write\", \"List\"],
  \"credentials\": [{\"accessKey\": \"scenes\", \"secretKey\": \"$(cat "$folder/s3_secret_key")\"}]}]}"
put htpasswd "operator:$(openssl passwd -apr1 "$WEB_PASSWORD")"
# The containers run as users of their own, who must read them.
chmod 755 "$folder"
chmod 644 "$folder"/*
echo "secrets are in $folder; the web page's user is operator, its password WEB_PASSWORD there"
