"""``python -m scene_pipeline_tests.benchmarks [--only NAME]``: what `make bench` runs."""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import sys
from pathlib import Path

from scene_pipeline_tests import benchmarks
from scene_pipeline_tests.benchmarks.harness import run_benchmarks

for module in pkgutil.iter_modules(benchmarks.__path__):
    if module.name.startswith("bench_"):
        importlib.import_module(f"{benchmarks.__name__}.{module.name}")

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--only", default=None, help="part of a benchmark's name")
parser.add_argument("--output", default="bench.json", type=Path)
arguments = parser.parse_args()
sys.exit(run_benchmarks(arguments.only, arguments.output))
