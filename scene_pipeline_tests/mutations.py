"""Removes one rule of ingest at a time, and asks whether its test fails.

``python -m scene_pipeline_tests.mutations [WORD]`` works on a copy of the project. The table in
README.md is this list; a test holds the two together.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

PROJECT = Path(__file__).parents[1]
RULES = "integration/test_ingest_rules.py::"
PAGER = "unit/test_pager.py::"


@dataclass(frozen=True, slots=True)
class Mutation:
    """``old`` in a module of ``scene_pipeline/ingest`` becomes ``new``; ``test`` must fail."""

    rule: str
    module: str
    old: str
    new: str
    test: str


MUTATIONS = (
    Mutation(
        "At equal values an excluded endpoint is the smaller", "bounds",
        'return self.value, self.endpoint == "included"', "return self.value, True",
        "unit/test_bounds.py::test_at_equal_values_the_excluded_endpoint_is_smaller",
    ),
    Mutation(
        "An unknown endpoint gives no scalar", "bounds",
        'if not known or any(bound.endpoint == "unknown" for bound in known)', "if not known",
        "unit/test_bounds.py::test_merge_promises_nothing_that_a_part_does_not",
    ),
    Mutation(
        "A checkpoint moves by compare-and-swap", "checkpoints",
        "if taken.rowcount != 1:", "if False:",
        RULES + "test_a_stale_retry_changes_nothing_and_is_told",
    ),
    Mutation(
        "A changed scope never resumes an old token", "ingester",
        "return fingerprint(source.scope, collection", "return fingerprint(collection",
        RULES + "test_another_scope_never_resumes_a_token_and_joins_anew",
    ),
    Mutation(
        "A page asked for in another way starts afresh", "pager",
        "fresh = checkpoint.request == request and", "fresh =",
        PAGER + "test_a_window_starts_afresh",
    ),
    Mutation(
        "A repeated request is a loop", "pager",
        "if page.next_token is not None and (repeated or page.next_token == current.token):",
        "if False:",
        PAGER + "test_a_request_that_was_answered_already_is_a_loop",
    ),
    Mutation(
        "A page of seen Items is a loop", "pager",
        "if ids and not new_ids and current.pages > 0:", "if False:",
        PAGER + "test_a_page_of_seen_items_is_a_loop",
    ),
    Mutation(
        "Twenty empty pages are an error", "pager",
        "and empty_pages >= MAX_EMPTY_PAGES", "and False",
        PAGER + "test_twenty_empty_pages_in_a_row_are_an_error",
    ),
    Mutation(
        "A certificate is for the time at which the traversal began", "pager",
        "final = Bound(ended.began_at - timedelta(hours=declaration.lag_hours))",
        "final = Bound(ended.began_at)",
        PAGER + "test_a_certificate_is_for_the_time_at_which_the_traversal_began",
    ),
    Mutation(
        "The earlier of two clocks counts", "ingester",
        "began_at = min(began_at, page.server_at)", "began_at = max(began_at, page.server_at)",
        "property/test_ingest_simulation.py::test_schedules_never_break_the_promise",
    ),
    Mutation(
        "A certificate never passes its window or the present", "pager",
        "return min(final, ceiling, key=lambda bound: bound.order)", "return final",
        PAGER + "test_an_explicit_claim_never_passes_window_or_present",
    ),
    Mutation(
        "A window after an unproven one proves nothing", "pager",
        "if bound is not None and _is_contiguous(ended, first) and", "if bound is not None and",
        PAGER + "test_a_window_after_an_unproven_one_proves_nothing",
    ),
    Mutation(
        "A shortfall holds the bound", "pager",
        "if ended.ids < ended.matched:", "if False:",
        PAGER + "test_a_shortfall_is_enumerated_once_more_then_held",
    ),
    Mutation(
        "A held Item holds the bound", "pager",
        "    if held:\n", "    if False:\n",
        PAGER + "test_a_held_item_holds_the_bound_and_says_so",
    ),
    Mutation(
        "Offset paging needs two equal traversals", "pager",
        'if declaration.paging == "offset" and ended.pages > 1 and not same:', "if False:",
        PAGER + "test_offset_paging_needs_two_equal_traversals",
    ),
    Mutation(
        "The rescan lane never moves a bound", "pager",
        'bound = certify(ended, declaration) if ended.lane == "forward" else None',
        "bound = certify(ended, declaration)",
        PAGER + "test_the_rescan_lane_never_moves_a_bound",
    ),
    Mutation(
        "A page fetched ahead answers its own token alone", "ingester",
        "if coming is None or current.traversal is None or current.token != coming.token:",
        "if coming is None:",
        RULES + "test_a_page_fetched_ahead_is_dropped_when_its_token_is",
    ),
    Mutation(
        "Replays are absorbed by receipts", "landing",
        "        or row.outcome not in _KNOWN\n", "        or True\n",
        RULES + "test_a_version_that_comes_again_changes_nothing",
    ),
    Mutation(
        "The old place of an Item that moved is touched", "registry",
        "else old_places | new.places", "else new.places",
        RULES + "test_an_item_that_moves_touches_its_old_and_its_new_place",
    ),
    Mutation(
        "Covered partitions that change are reopened", "registry",
        "covered = [key for key in keys if bound is not None and bound.covers_day(key[0])]",
        "covered = []",
        RULES + "test_an_item_behind_the_frontier_reopens_its_own_keys_alone",
    ),
    Mutation(
        "A broken declaration is recorded", "landing",
        "if each.acquired_at < bound.value", "if False",
        RULES + "test_an_item_behind_the_frontier_reopens_its_own_keys_alone",
    ),
    Mutation(
        "Gone only after two exact rescans", "rescan",
        "RESCANS_TO_TOMBSTONE = 2", "RESCANS_TO_TOMBSTONE = 1",
        RULES + "test_gone_after_two_exact_rescans_and_back_when_seen_again",
    ),
    Mutation(
        "A source that does not count buries nothing", "pager",
        'exact=declaration.matched == "exact"', "exact=True",
        RULES + "test_a_source_that_does_not_count_buries_nothing",
    ),
    Mutation(
        "A reprocessed twin supersedes the older scene", "registry",
        "replace(each, superseded=position != winner)", "replace(each, superseded=False)",
        RULES + "test_reprocessed_twins_leave_one_scene",
    ),
    Mutation(
        "A page placed by an older grid loses", "barrier",
        "if newest != prepared.routing:", "if False:",
        RULES + "test_no_frontier_for_a_grid_before_the_lake_is_assigned_to_it",
    ),
    Mutation(
        "No frontier before the lake is assigned to the new grid", "frontier_plan",
        "if evidence.pending is None or evidence.unassigned:", "if evidence.pending is None:",
        RULES + "test_no_frontier_for_a_grid_before_the_lake_is_assigned_to_it",
    ),
    Mutation(
        "A newcomer is complete through the frontier first", "frontier_plan",
        "return merged is not None and merged.order >= published.order", "return True",
        RULES + "test_a_stream_joins_once_it_is_complete_through_the_frontier",
    ),
    Mutation(
        "A stream leaves when it is sealed", "frontier_plan",
        "if not all(proof.is_sealed for proof in evidence.pending_proofs):", "if False:",
        RULES + "test_a_stream_leaves_when_it_is_sealed",
    ),
    Mutation(
        "A retired provider leaves a gap", "membership",
        "_record_gap(connection, region, number, member,", "(lambda *a, **k: None)(connection,",
        RULES + "test_a_retired_provider_leaves_a_gap_that_readers_see",
    ),
    Mutation(
        "A stream without a proof withholds the scalar", "frontier_plan",
        "    if unproven:\n", "    if False:\n",
        RULES + "test_a_retired_provider_leaves_a_gap_that_readers_see",
    ),
    Mutation(
        "The frontier moves upward only", "frontier_plan",
        "if published is not None and (bound is None or bound.order < published.order):",
        "if False:",
        "unit/test_frontier_plan.py::test_it_never_goes_back",
    ),
    Mutation(
        "A stale aggregator loses", "frontier",
        "if (before and before.revision) != (evidence.published and evidence.published.revision):",
        "if False:",
        RULES + "test_a_stale_aggregator_recomputes",
    ),
    Mutation(
        "A scene of the future is quarantined", "pages",
        "if scene.acquired_at > now + FUTURE_TOLERANCE:", "if False:",
        RULES + "test_what_cannot_be_kept_is_quarantined_by_name",
    ),
    Mutation(
        "Removed raw is refused, never empty", "raw",
        "if raw_from is not None and key.day < raw_from:", "if False:",
        RULES + "test_removed_raw_is_refused_by_name",
    ),
)  # fmt: skip


def survives(mutation: Mutation, copy: Path) -> str:
    """What is wrong with a mutation: it cannot be made, or its test passes all the same."""
    module = copy / "scene_pipeline" / "ingest" / f"{mutation.module}.py"
    text = module.read_text()
    if text.count(mutation.old) != 1:
        return f"{mutation.module}.py has {text.count(mutation.old)} times {mutation.old!r}"
    module.write_text(text.replace(mutation.old, mutation.new))
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-x", f"scene_pipeline_tests/{mutation.test}"],
            cwd=copy, capture_output=True, text=True, check=False,
            env={**os.environ, "PYTHONPATH": str(copy)},
        )  # fmt: skip
    finally:
        module.write_text(text)
    return "" if done.returncode == 1 else f"{mutation.test} ended with {done.returncode}"


def main(word: str = "") -> int:
    """Try every mutation whose rule or module contains ``word``; returns how many survive."""
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "project"
        copy.mkdir()
        for name in ("scene_pipeline", "scene_pipeline_tests"):
            shutil.copytree(PROJECT / name, copy / name)
        shutil.copy(PROJECT / "pyproject.toml", copy)
        for mutation in MUTATIONS:
            if word in f"{mutation.rule} {mutation.module}":
                fault = survives(mutation, copy)
                wrong += bool(fault)
                print(f"{'SURVIVES' if fault else 'killed':8}  {mutation.rule}  {fault}")
    return wrong


if __name__ == "__main__":
    sys.exit(min(1, main(*sys.argv[1:2])))
