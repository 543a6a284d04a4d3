"""Every item is done once, whoever dies, refuses or loses it; in order where that is asked for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from fake_ray import Actor, FakeRay, RayError
from hypothesis import given
from hypothesis import strategies as st

from gbinet.camera import Camera
from gbinet.cluster import pool as pool_module
from gbinet.cluster.depth import nearby_groups, worker_share
from gbinet.cluster.pool import Pool, in_groups
from gbinet.cluster.session import Cluster, ClusterConfig
from gbinet.cluster.worker import Answer
from gbinet.errors import GBiNetError, InputError
from gbinet.inference.predictor import DepthConfig
from gbinet.scene import Scene, View


def pool_of(ray: FakeRay) -> Pool:
    return Pool(Cluster(ray, ClusterConfig(cores=1)), None, on_gpu=False)


def done(pool: Pool, groups: list[list[int]], ahead: int | None = None) -> list[int]:
    with pool:
        found = list(pool.results(groups, ahead))
    assert all(value == item * 10 and large == f"large {item}" for item, value, large in found)
    return [item for item, _, _ in found]


def fine(actor: Actor, item: int, lost: dict[int, str]) -> int:
    return item * 10


@given(
    items=st.integers(0, 40),
    size=st.integers(1, 9),
    workers=st.integers(1, 5),
    seed=st.integers(0, 99),
    ahead=st.none() | st.integers(1, 20),
)
def test_each_item_once(items: int, size: int, workers: int, seed: int, ahead: int | None) -> None:
    ray = FakeRay([f"node {i}" for i in range(workers)], fine, seed)
    order = list(range(items))[::-1]
    found = done(pool_of(ray), in_groups(order, size), ahead)
    assert found == order if ahead is not None else sorted(found) == sorted(order)
    assert ray.killed == ray.hired


@given(deaths=st.sets(st.integers(0, 30), max_size=12), seed=st.integers(0, 99), ordered=st.booleans())
def test_what_dead_workers_had_is_done_by_others(deaths: set[int], seed: int, ordered: bool) -> None:
    left = set(deaths)

    def dies(actor: Actor, item: int, lost: dict[int, str]) -> int:
        if item in left:
            left.remove(item)
            raise RayError("killed")
        return item * 10

    ray = FakeRay(["a", "b", "a"], dies, seed)
    order = list(range(25))
    found = done(pool_of(ray), in_groups(order, 6), 12 if ordered else None)
    assert found == order if ordered else sorted(found) == order


def test_none_is_begun_far_ahead() -> None:
    """Whoever waits for the first item must not pile up the others."""
    begun: list[int] = []

    def slow(actor: Actor, item: int, lost: dict[int, str]) -> int:
        begun.append(item)
        return item * 10

    pool = pool_of(FakeRay(["a", "b", "c"], slow))
    with pool:
        for item, _, _ in pool.results(in_groups(list(range(60)), 4), ahead=10):
            assert max(begun) <= item + 10


@pytest.mark.parametrize("trouble", ["lost", "full disk", "unreadable"])
@pytest.mark.parametrize("seed", range(5))
def test_who_is_far_ahead_does_what_a_slow_machine_could_not(
    trouble: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_module, "_RESIZE_INTERVAL", -1.0)  # a lost machine is noticed at once

    def behave(actor: Actor, item: int, lost: dict[int, str]) -> object:
        if item == 5 and not ray.slow:  # answers when the other machine may begin no more
            ray.slow = {actor.node}
            if trouble == "lost":
                ray.machines = [node for node in ray.machines if node != actor.node]
        if item == 5 and actor.node in ray.slow:
            if trouble == "lost":
                raise RayError("the machine is gone")
            return Answer(problem="bad", unreadable=5 if trouble == "unreadable" else None)
        return item * 10

    ray = FakeRay(["a", "b"], behave, seed)
    pool = pool_of(ray)
    assert done(pool, in_groups(list(range(200)), 16), ahead=64) == list(range(200))
    assert pool.lost == {}


def test_a_result_whose_machine_is_gone_is_made_again() -> None:
    ray = FakeRay(["a", "b"], fine)
    made: list[int] = []

    def large(item: int) -> object:
        made.append(item)
        return RayError("lost") if item == 5 and made.count(5) == 1 else f"large {item}"

    ray.large = large
    assert done(pool_of(ray), [list(range(10))], ahead=6) == list(range(10))
    assert made.count(5) == 2


def test_work_of_a_slow_worker_is_shared() -> None:
    """One group and two workers: both get some of it."""
    ray = FakeRay(["a", "b"], fine)
    assert sorted(done(pool_of(ray), [list(range(20))])) == list(range(20))
    assert {node for node, _ in ray.log} == {"a", "b"}


def test_an_item_at_which_workers_die_again_and_again_ends_the_run() -> None:
    def dies(actor: Actor, item: int, lost: dict[int, str]) -> int:
        if item == 3:
            raise RayError("out of memory")
        return item * 10

    with pytest.raises(GBiNetError, match=r"workers died at the same view.*--max-size"):
        done(pool_of(FakeRay(["a", "b"], dies)), [list(range(8))])


def test_a_machine_with_a_full_disk_is_left_alone() -> None:
    def full(actor: Actor, item: int, lost: dict[int, str]) -> object:
        return Answer(problem="the disk is full") if actor.node == "a" else item * 10

    ray = FakeRay(["a", "b", "a", "b"], full)
    assert sorted(done(pool_of(ray), in_groups(list(range(30)), 5))) == list(range(30))
    assert sum(node == "a" for node, _ in ray.log) <= 4  # two workers, two items each
    with pytest.raises(GBiNetError, match="the disk is full"):
        done(pool_of(FakeRay(["a", "a"], full)), [list(range(4))])


def test_a_photo_that_one_machine_cannot_read_is_read_by_another() -> None:
    def picky(actor: Actor, item: int, lost: dict[int, str]) -> object:
        return (
            Answer(problem="no photo", unreadable=item) if actor.node == "a" and item % 3 == 0 else item * 10
        )

    ray = FakeRay(["a", "b"], picky)
    pool = pool_of(ray)
    assert sorted(done(pool, in_groups(list(range(30)), 4))) == list(range(30))
    assert pool.lost == {}


def test_a_photo_that_nobody_can_read_is_left_out() -> None:
    def broken(actor: Actor, item: int, lost: dict[int, str]) -> object:
        near = {7, 8}  # views that use photo 8
        if item in near and 8 not in lost:
            return Answer(problem="8.jpg is broken", unreadable=8)
        return item * 10

    for ahead in (None, 5):
        pool = pool_of(FakeRay(["a", "b"], broken))
        assert sorted(done(pool, in_groups(list(range(12)), 4), ahead)) == list(range(12))
        assert pool.lost == {8: "8.jpg is broken"}


def test_a_pool_that_outlives_its_ray_starts_no_other() -> None:
    ray = FakeRay(["a", "b"], fine)
    with pool_of(ray) as pool:
        next(pool.results([list(range(10))]))
        ray.running = False
    assert (ray.hired, ray.killed) == (2, 0)


@given(machines=st.integers(1, 4), cores=st.integers(1, 6), asked=st.none() | st.integers(1, 6))
def test_workers_fit_into_machines(machines: int, cores: int, asked: int | None) -> None:
    ray = FakeRay([f"node {i}" for i in range(machines)], fine)
    ray.cores = cores
    cluster = Cluster(ray, ClusterConfig(cores=asked))
    if asked is not None and asked > cores:
        with pytest.raises(InputError, match=f"--worker-cores {asked}: no machine.*the largest has {cores}"):
            Pool(cluster, None, on_gpu=False)
        return
    pool = Pool(cluster, None, on_gpu=False)
    assert pool.cores == (asked or min(2, cores))
    assert pool.size() == machines * (cores // pool.cores)
    Pool(cluster, None, on_gpu=True)  # a GPU's worker asks for no more than one core


@given(cores=st.integers(1, 64), asked=st.none() | st.integers(1, 64), limit=st.none() | st.floats(0.5, 64))
def test_workers_of_a_machine_share_its_memory(cores: int, asked: int | None, limit: float | None) -> None:
    ray = FakeRay(["a", "b"], fine)
    ray.cores = cores
    cluster = Cluster(ray, ClusterConfig(cores=min(asked, cores) if asked else None))
    whole = DepthConfig(max_memory=limit)
    share = worker_share(whole, cluster)
    workers = Pool(cluster, None, on_gpu=False).size() / 2  # on each of two machines
    assert share.cache_memory * workers == pytest.approx(whole.cache_memory)
    assert share.max_memory is None if limit is None else share.max_memory * workers == pytest.approx(limit)
    assert replace(share, max_memory=limit, cache_memory=whole.cache_memory) == whole


def test_machines_that_are_still_to_join_are_waited_for() -> None:
    cluster = Cluster(FakeRay([], fine), ClusterConfig(cores=8))
    assert (cluster.worker_cores(), Pool(cluster, None, on_gpu=False).size()) == (8, 0)


def test_the_reason_is_reported_without_the_trace_of_ray() -> None:
    def dies(actor: Actor, item: int, lost: dict[int, str]) -> int:
        raise RayError(
            "\x1b[36mray::Worker.do()\x1b[39m (pid=7)\n  File x.py\n\x1b[31mNo memory\x1b[0m: 3 GB "
            "Some common causes include: (1)\n\n"
        )

    with pytest.raises(GBiNetError) as caught:
        done(pool_of(FakeRay(["a"], dies)), [[1]])
    assert str(caught.value).endswith("(--worker-cores): No memory: 3 GB")
    assert "\x1b" not in str(caught.value) and "x.py" not in str(caught.value)


def test_another_version_on_a_machine_is_reported() -> None:
    ray = FakeRay(["a"], fine)
    ray.version = "0.0.7"
    with pytest.raises(GBiNetError, match=r"a machine of the cluster has gbinet 0\.0\.7"):
        done(pool_of(ray), [[1]])


@given(count=st.integers(1, 60), size=st.integers(1, 20), seed=st.integers(0, 9))
def test_groups_hold_every_view_once(count: int, size: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    views = []
    for number in range(count):
        pose = torch.eye(4, dtype=torch.float64)
        pose[:3, 3] = torch.randn(3, generator=generator)
        views.append(View(str(number), Camera(torch.eye(3), pose, 8, 8), Path("photo")))
    todo = torch.randperm(count, generator=generator).tolist()[: max(1, count - 2)]
    groups = nearby_groups(Scene("scene", "test", Path(), tuple(views)), todo, size)
    assert sorted(view for group in groups for view in group) == sorted(todo)
    assert all(0 < len(group) <= size for group in groups)
    assert all([todo.index(view) for view in group] == sorted(map(todo.index, group)) for group in groups)
