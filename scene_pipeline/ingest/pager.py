"""The rules of one traversal (pure): which window comes next, when a page is wrong, what ends it.

Only the absence of ``next`` ends a traversal. A certificate is given at its end alone, for the
time at which it began.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from hashlib import blake2b

from scene_pipeline.errors import SourceFaultError
from scene_pipeline.ingest.bounds import Bound
from scene_pipeline.ingest.checkpoints import Checkpoint, Window
from scene_pipeline.ingest.sources.base import Declaration, Page

__all__ = ["Closing", "ItemId", "certify", "close_window", "plan_window", "turn_page"]

# Collection and id.
ItemId = tuple[str, str]

MAX_EMPTY_PAGES = 20
# Passes over one window before it is held: one more for a shortfall; offset paging compares two
# passes and may be disturbed.
MAX_PASSES_SHORT = 2
MAX_PASSES_OFFSET = 4


def plan_window(
    checkpoint: Checkpoint,
    *,
    first: datetime,
    end: datetime,
    window: timedelta,
    request: str,
    declaration: Declaration,
    now: datetime,
) -> Checkpoint | None:
    """What to enumerate next, or None where the lane has nothing to do.

    A running traversal goes on from its token, unless pages are now asked for in another way,
    its token is older than the declared lifetime, or the source broke its contract: then the
    window starts afresh. A sweep covers [bound, ``end``) in windows; without a bound it starts
    at ``first``, or, where no bound can ever be given, where the last sweep ended.
    """
    if checkpoint.window is not None:
        fresh = checkpoint.request == request and checkpoint.state != "faulted"
        if (
            checkpoint.traversal is not None
            and fresh
            and not _is_expired(checkpoint, declaration, now)
        ):
            return checkpoint
        return replace(checkpoint.restarted(), request=request)
    reached, sweep_end = checkpoint.reached, checkpoint.sweep_end
    if reached is None or sweep_end is None or reached >= sweep_end:
        reached, sweep_end = _find_start(checkpoint, first, declaration), end
    if reached >= sweep_end:
        return None
    return replace(
        checkpoint.restarted(),
        request=request,
        window=Window(reached, min(reached + window, sweep_end)),
        sweep_end=sweep_end,
        passes=0,
        last_ids=None,
        last_ids_sum=None,
    )


def _find_start(checkpoint: Checkpoint, first: datetime, declaration: Declaration) -> datetime:
    if checkpoint.lane == "rescan":
        return first
    if checkpoint.bound is not None:
        return max(first, checkpoint.bound.value)
    if declaration.finality != "lag" and checkpoint.reached is not None:
        return checkpoint.reached
    return first


def _is_expired(checkpoint: Checkpoint, declaration: Declaration, now: datetime) -> bool:
    lifetime_s = declaration.token_lifetime_s
    return (
        lifetime_s is not None
        and checkpoint.token is not None
        and checkpoint.token_at is not None
        and (now - checkpoint.token_at).total_seconds() > lifetime_s
    )


def turn_page(
    current: Checkpoint,
    page: Page,
    *,
    ids: Collection[ItemId],
    new_ids: Collection[ItemId],
    repeated: bool,
    now: datetime,
) -> Checkpoint:
    """The position after ``page``; raises `SourceFaultError` where the page breaks the contract.

    ``ids`` are the page's, ``new_ids`` those not seen in this traversal before. ``repeated``:
    the request that ``page.next_token`` stands for was already made in this traversal.
    """
    if page.next_token is not None and (repeated or page.next_token == current.token):
        raise _fault(current, "its next link repeats a request that was already answered")
    if ids and not new_ids and current.pages > 0:
        raise _fault(current, "a page holds only Items that this traversal has already seen")
    empty_pages = 0 if ids else current.empty_pages + 1
    if page.next_token is not None and empty_pages >= MAX_EMPTY_PAGES:
        raise _fault(current, f"{empty_pages} empty pages in a row, each with a next link")
    counted = [count for count in (current.matched, page.matched) if count is not None]
    return replace(
        current,
        generation=current.generation + 1,
        token=page.next_token,
        token_at=now,
        pages=current.pages + 1,
        empty_pages=empty_pages,
        ids=current.ids + len(new_ids),
        ids_sum=(current.ids_sum + sum(map(_hash_id, new_ids))) % 2**62,
        matched=max(counted, default=None),
        state="active",
        reason="",
        since=current.since if current.state == "active" else now,
    )


def _hash_id(item_id: ItemId) -> int:
    digest = blake2b("\0".join(item_id).encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big")


def _fault(current: Checkpoint, what: str) -> SourceFaultError:
    return SourceFaultError(
        f"stream {current.stream}: {what}",
        where=f"page {current.pages + 1} of its traversal",
        next_step="its checkpoint has not moved; the next run enumerates the window afresh",
    )


@dataclass(frozen=True, slots=True)
class Closing:
    """What the end of a traversal means: the new position, and whether the enumeration is exact.

    ``complete``: the window is enumerated for good (its Items may still not be certified).
    """

    checkpoint: Checkpoint
    complete: bool
    exact: bool


def close_window(
    ended: Checkpoint, declaration: Declaration, *, held: int, first: datetime, now: datetime
) -> Closing:
    """Decide a traversal that has just ended: certify it, enumerate once more, or hold.

    ``held``: Items of this stream that wait for an operator. ``first``: where the stream's
    history starts; a certificate is given only where nothing before the window is unproven.
    """
    doubt, limit = _find_doubt(ended, declaration)
    passes = ended.passes + 1
    if doubt:
        again = replace(
            ended.restarted(), passes=passes, last_ids=ended.ids, last_ids_sum=ended.ids_sum
        )
        if passes >= limit:
            again = replace(_blocked(again, doubt, now), passes=0)
        return Closing(again, complete=False, exact=False)
    if held:
        waiting = _blocked(ended.restarted(), f"{held} unusable Items are held", now)
        return Closing(replace(waiting, passes=0), complete=False, exact=False)
    done = replace(
        ended.restarted(),
        window=None,
        passes=0,
        reached=ended.window.end if ended.window else ended.reached,
    )
    bound = certify(ended, declaration) if ended.lane == "forward" else None
    if bound is not None and _is_contiguous(ended, first) and _is_higher(bound, ended.bound):
        done = replace(done, bound=bound, bound_at=now)
    return Closing(done, complete=True, exact=declaration.matched == "exact")


def _blocked(checkpoint: Checkpoint, reason: str, now: datetime) -> Checkpoint:
    return replace(checkpoint, state="blocked", reason=reason, since=now)


def _find_doubt(ended: Checkpoint, declaration: Declaration) -> tuple[str, int]:
    """Why the traversal does not prove its window, and after how many passes to hold."""
    if declaration.matched == "exact":
        if ended.matched is None:
            return "its exact count is declared, but no page gave one", MAX_PASSES_SHORT
        if ended.ids < ended.matched:
            return f"shortfall: {ended.ids} of {ended.matched} Items were served", MAX_PASSES_SHORT
    # Even with an exact count a deletion and an insertion can hide a row that offset skipped.
    same = (ended.ids, ended.ids_sum) == (ended.last_ids, ended.last_ids_sum)
    if declaration.paging == "offset" and ended.pages > 1 and not same:
        return "offset paging: no two traversals served the same Items", MAX_PASSES_OFFSET
    return "", 0


def certify(ended: Checkpoint, declaration: Declaration) -> Bound | None:
    """The certificate of a traversal that ended without doubt, or None where none can be given.

    ``lag``: everything before (when the traversal began - lag) is published, so everything of
    the window before that was enumerated. ``explicit``: as far as the source itself said before
    the traversal began. Never past the window, never past the time it began.
    """
    if ended.window is None or ended.began_at is None:
        return None
    if declaration.finality == "lag" and declaration.lag_hours is not None:
        final = Bound(ended.began_at - timedelta(hours=declaration.lag_hours))
    elif declaration.finality == "explicit" and ended.claimed is not None:
        final = ended.claimed
    else:
        return None
    ceiling = Bound(min(ended.window.end, ended.began_at))
    return min(final, ceiling, key=lambda bound: bound.order)


def _is_contiguous(ended: Checkpoint, first: datetime) -> bool:
    proven = first if ended.bound is None else max(first, ended.bound.value)
    return ended.window is not None and ended.window.start <= proven


def _is_higher(bound: Bound, than: Bound | None) -> bool:
    return than is None or bound.order > than.order
