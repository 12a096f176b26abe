"""The rule of the frontier on evidence alone, without a database."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from scene_pipeline.ingest.bounds import Bound
from scene_pipeline.ingest.frontier_plan import (
    Epoch,
    Evidence,
    Member,
    MemberProof,
    PublishedFrontier,
    StreamBound,
    plan_frontier,
)

DAY = timedelta(days=1)
NOW = datetime(2024, 6, 20, tzinfo=UTC)
EPOCH = Epoch(1, 1, "current", (Member("a", "x"), Member("b", "y")))


def prove(stream: str, days_ago: int | None, *, leaving_at: datetime | None = None) -> MemberProof:
    bound = None if days_ago is None else Bound(NOW - days_ago * DAY)
    return MemberProof(StreamBound(stream, bound, "lag", "active", "", NOW), leaving_at)


def publish(*proofs: MemberProof, before: PublishedFrontier | None = None) -> PublishedFrontier:
    return plan_frontier(Evidence(before, EPOCH, proofs), now=NOW)[0]


def test_the_least_bound_is_published_and_its_holder_named() -> None:
    plan = publish(prove("a", 3), prove("b", 5))
    assert (plan.bound, plan.holder, plan.revision) == (Bound(NOW - 5 * DAY), "b", 1)
    assert publish(prove("a", 3), prove("b", 5), before=plan) == plan


@pytest.mark.parametrize("days_ago", [9, None])
def test_it_never_goes_back(days_ago: int | None) -> None:
    """A state database restored from a backup, say, proves less than was published."""
    before = publish(prove("a", 3), prove("b", 5))
    after = publish(prove("a", 3), prove("b", days_ago), before=before)
    assert after.bound == before.bound
    assert after.holder == "b"
    assert "b " in after.withheld
    assert after.revision == 2


def test_a_member_without_a_certificate_withholds_the_scalar() -> None:
    plan = publish(prove("a", 3), prove("b", None))
    assert (plan.bound, plan.holder) == (None, "b")
    assert [part.stream for part in plan.vector] == ["a", "b"]


def test_a_pending_epoch_waits_until_it_takes_nothing_back() -> None:
    before = publish(prove("a", 3), prove("b", 5))
    pending = replace(EPOCH, number=2, state="pending", members=(Member("a", "x"),))
    cutover = NOW - 4 * DAY
    for days_ago, promoted in ((5, False), (4, True)):
        leaving = prove("b", days_ago, leaving_at=cutover)
        evidence = Evidence(
            before, EPOCH, (prove("a", 3), prove("b", 5)), pending, (prove("a", 3), leaving)
        )
        plan, promote = plan_frontier(evidence, now=NOW)
        assert (promote, plan.epoch) == (promoted, 2 if promoted else 1)
        assert plan.bound == Bound(NOW - (3 if promoted else 5) * DAY)
