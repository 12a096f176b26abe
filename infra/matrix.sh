#!/bin/sh
# Unit and contract tests on other versions, each in an environment of its own:
#   sh infra/matrix.sh lowest|newest|3.12|3.13…
# lowest: the lower bounds that pyproject.toml declares; newest: what resolves today; a number:
# that Python on the lock file, where uv finds one on this machine.
set -eu
variant=$1
here=$(CDPATH= cd "$(dirname "$0")/.." && pwd)
python=3.11
case $variant in 3.*) python=$variant ;; esac
if ! found=$(uv python find --no-python-downloads "$python" 2>/dev/null); then
  echo "Python $python is not on this machine: not tested"
  exit 0
fi

venv="$here/.venv-$variant"
uv venv --quiet --clear --python "$found" "$venv"
install="uv pip install --quiet --python $venv/bin/python"
cd "$here"
case $variant in
  lowest) $install --resolution lowest-direct -e . --group test ;;
  newest) $install --upgrade -e . --group test ;;
  *) $install --require-hashes -r requirements-dev.lock && $install --no-deps -e . ;;
esac
echo "$variant: $("$venv/bin/python" --version), $(uv pip list --quiet --python "$venv/bin/python" | wc -l) packages"
"$venv/bin/pytest" -q -n 2 --dist loadfile -m "not full and not browser and not daemon" \
  scene_pipeline_tests/unit scene_pipeline_tests/contracts scene_pipeline_tests/golden
