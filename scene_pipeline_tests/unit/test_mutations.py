"""The table of rules and tests is true: each rule is where it says, each test exists."""

from __future__ import annotations

import pytest

from scene_pipeline_tests.mutations import MUTATIONS, PROJECT, Mutation

TESTS = PROJECT / "scene_pipeline_tests"


def test_the_readme_lists_every_rule() -> None:
    readme = (TESTS / "README.md").read_text()
    rows = [f"| {m.rule} | `{m.module}.py` | `{m.test}` |" for m in MUTATIONS]
    assert [row for row in readme.splitlines() if row.endswith("` |") and "::" in row] == rows


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.rule)
def test_the_rule_and_its_test_are_there(mutation: Mutation) -> None:
    module = PROJECT / "scene_pipeline" / "ingest" / f"{mutation.module}.py"
    assert module.read_text().count(mutation.old) == 1
    path, _, name = mutation.test.partition("::")
    assert f"def {name}(" in (TESTS / path).read_text()
