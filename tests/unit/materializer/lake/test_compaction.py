"""Tests of the decisions of the compaction: which files are merged, and which snapshots expire."""

from __future__ import annotations

import math
from datetime import date, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratchet.materializer.lake.compaction import FileFacts, SnapshotFacts, first_merges, plan_expiry, plan_merges

TODAY = date(2026, 11, 20)
TARGET = 1000


def facts(path: str, size: int, day: date | None = TODAY, partition: str = "") -> FileFacts:
    return FileFacts(path, f"{day} {partition}", day, size, size)


@st.composite
def listings(draw: st.DrawFn) -> list[FileFacts]:
    days = st.one_of(st.none(), st.integers(0, 5).map(lambda back: TODAY - timedelta(days=back)))
    parts = draw(st.lists(st.tuples(days, st.sampled_from("ab"), st.integers(1, 700), st.integers(1, 700)), max_size=60))
    return [facts(f"f{n}", size, day, partition)._replace(rows=rows) for n, (day, partition, size, rows) in enumerate(parts)]


def merged(files: list[FileFacts], merges: list[tuple[FileFacts, ...]], name: str = "m") -> list[FileFacts]:
    """The files after the merges, if a merged file is as large as its parts."""
    gone = {file.path for merge in merges for file in merge}
    made = []
    for n, merge in enumerate(merges):
        rows, size = sum(file.rows for file in merge), sum(file.bytes for file in merge)
        made.append(merge[0]._replace(path=f"{name}{n}", rows=rows, bytes=size))
    return [file for file in files if file.path not in gone] + made


@pytest.mark.slow
@given(listings())
@settings(max_examples=300)
def test_a_file_is_in_one_merge_of_one_partition_and_a_second_plan_is_empty(files: list[FileFacts]) -> None:
    merges = plan_merges(files, TODAY, TARGET)
    chosen = [file.path for merge in merges for file in merge]
    assert len(chosen) == len(set(chosen))
    for merge in merges:
        assert len(merge) > 1
        assert len({file.partition for file in merge}) == 1
        assert sum(file.bytes for file in merge) <= TARGET
        assert all(file.bytes < TARGET // 2 for file in merge)
    after = merged(files, merges)
    assert sum(file.rows for file in after) == sum(file.rows for file in files)
    assert plan_merges(after, TODAY, TARGET) == []
    assert plan_merges(files[::-1], TODAY, TARGET) == merges


@given(listings(), st.integers(1, 3 * TARGET))
def test_a_commit_makes_whole_merges_and_all_of_them_are_made_in_the_end(files: list[FileFacts], target: int) -> None:
    merges = plan_merges(files, TODAY, TARGET)
    left = list(merges)
    while left:
        chosen = set(first_merges(left, target))
        whole = [merge for merge in left if chosen & set(merge)]
        assert sum(map(len, whole)) == len(chosen)
        assert len(whole) == 1 or sum(file.bytes for file in chosen) <= target
        left = [merge for merge in left if merge not in whole]


@given(st.lists(st.integers(1, 40), min_size=1, max_size=250), st.integers(1, 12), st.booleans())
@settings(max_examples=100, deadline=None)
def test_each_row_is_written_a_few_times_and_few_files_stay(sizes: list[int], every: int, is_closed: bool) -> None:
    day = TODAY - timedelta(days=9) if is_closed else TODAY
    files: list[FileFacts] = []
    written = 0
    for number, size in enumerate(sizes):
        files.append(facts(f"f{number}", size, day))
        if number % every == 0:
            merges = plan_merges(files, TODAY, TARGET)
            written += sum(file.bytes for merge in merges for file in merge)
            files = merged(files, merges, f"m{number}-")
    assert written <= sum(sizes) * (math.log(TARGET / min(sizes), 1.5 if is_closed else 2) + 2)
    files = merged(files, plan_merges(files, TODAY, TARGET))
    small = [file for file in files if file.bytes < TARGET // 2]
    assert len(small) <= math.log2(TARGET) + (2 if is_closed else 8)


def test_a_day_is_closed_a_day_after_its_end() -> None:
    def two(day: date) -> list[FileFacts]:
        return [facts("a", 10, day), facts("b", 10, day)]

    assert plan_merges(two(TODAY), TODAY, TARGET) == []
    assert plan_merges(two(TODAY - timedelta(days=1)), TODAY, TARGET) == []
    assert plan_merges(two(TODAY - timedelta(days=2)), TODAY, TARGET) == [tuple(two(TODAY - timedelta(days=2)))]


def test_late_rows_do_not_rewrite_a_large_file_of_their_day() -> None:
    day = TODAY - timedelta(days=9)
    assert plan_merges([facts("large", 400, day), facts("late", 10, day)], TODAY, TARGET) == []
    late = [facts("late", 10, day), facts("later", 10, day)]
    assert plan_merges([facts("large", 400, day), *late], TODAY, TARGET) == [tuple(late)]


@given(st.lists(st.tuples(st.booleans(), st.booleans()), max_size=60), st.integers(1, 10), st.integers(1, 20))
def test_expiry_keeps_held_snapshots_and_the_newest_appends_with_all_after_them(
    kinds: list[tuple[bool, bool]], keep: int, most: int
) -> None:
    snapshots = [SnapshotFacts(number, appended, held, number) for number, (appended, held) in enumerate(kinds)]
    old = plan_expiry(snapshots, keep, most)
    left = [one for one in snapshots if one.id not in set(old)]
    assert {one.id for one in snapshots if one.held} <= {one.id for one in left}
    loose = [one for one in snapshots if not one.held]
    assert old == [one.id for one in loose[: len(old)]], "the oldest ones expire"
    others = [one for one in left if not one.held and not one.appended]
    assert len(others) <= most
    assert plan_expiry(left, keep, most) == []
    if sum(not one.appended for one in loose) <= most:
        assert sum(one.appended for one in left if not one.held) == min(keep, sum(one.appended for one in loose))
