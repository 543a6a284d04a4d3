"""On a real Ray: the bytes of one process, from any number of workers, whatever happens to them."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from ball_scene import SceneMaker
from test_kill_sweep import contents

from gbinet.cluster import depth as cluster_depth
from gbinet.cluster.depth import DepthJob
from gbinet.cluster.session import ClusterConfig, connected
from gbinet.errors import GBiNetError
from gbinet.fusion.fuse import FusionConfig
from gbinet.inference.predictor import DepthConfig
from gbinet.model.config import GBiNetConfig
from gbinet.model.gbinet import GBiNet
from gbinet.pipeline.reconstruct import ReconstructConfig, run
from gbinet.scene import Scene
from gbinet.scenes.kinds import write_scene

ray = pytest.importorskip("ray")

CONFIG = ReconstructConfig(
    DepthConfig(max_size=64, views=3),
    FusionConfig(min_confidence=0.0, min_views=1, max_reprojection=50.0, max_relative_depth=0.9),
)
ONE_CORE = ClusterConfig(cores=1)


@pytest.fixture
def model() -> GBiNet:
    torch.manual_seed(0)
    return GBiNet(GBiNetConfig(stages=2)).eval()


@pytest.fixture(autouse=True)
def no_ray_is_left() -> Iterator[None]:
    yield
    assert not ray.is_initialized()


def own_processes(title: str) -> list[int]:
    """Processes below this one whose command line begins so."""
    parents, found = {}, []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, IndexError):
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if (folder / "cmdline").read_bytes().startswith(title.encode()):
                found.append(int(folder.name))

    def ours(process: int) -> bool:
        while process > 1:
            if process == os.getpid():
                return True
            process = parents.get(process, 0)
        return False

    return [process for process in found if ours(process)]


def test_a_local_cluster_gives_the_bytes_of_one_process(
    ball_scene: SceneMaker, model: GBiNet, tmp_path: Path
) -> None:
    scene = ball_scene(views=6)
    run(scene, model, tmp_path / "one", CONFIG)
    seen = []
    run(scene, model, tmp_path / "two", CONFIG, cluster=ONE_CORE, progress=lambda *what: seen.append(what))
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    assert len([what for what in seen if what[0] == "depth"]) == 6
    assert own_processes("ray::") == []


@contextlib.contextmanager
def two_machines(cores: int, second: dict[str, str] | None = None) -> Iterator[Any]:
    """A cluster of two nodes with so many cores each, to which this process is connected; the second node."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": cores})
    try:
        node = cluster.add_node(num_cpus=cores, env_vars=second or {})
        with contextlib.ExitStack() as stack:
            stack.callback(ray.shutdown)
            ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
            yield cluster, node
    finally:
        cluster.shutdown()


def reconstructed(
    scene: Scene, model: GBiNet, out: Path, on_depth: Callable[[int], None] | None = None
) -> dict[str, bytes | None]:
    """Through the cluster that is connected; `on_depth` is called with the number of maps so far."""

    def progress(step: str, done: int, total: int, what: str) -> None:
        if step == "depth" and on_depth:
            on_depth(done)

    run(scene, model, out, CONFIG, cluster=ONE_CORE, progress=progress)
    return contents(out)


@pytest.mark.slow
def test_two_and_four_workers_in_any_order(
    ball_scene: SceneMaker, model: GBiNet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = ball_scene(views=20)
    run(scene, model, tmp_path / "one", CONFIG)
    whole = contents(tmp_path / "one")
    assert len(whole["cloud.ply"] or b"") > 10_000
    with two_machines(1):
        assert reconstructed(scene, model, tmp_path / "two") == whole
    plain = cluster_depth.depth_order

    def shuffled(scene: Scene) -> list[int]:
        order = plain(scene)
        random.Random(7).shuffle(order)
        return order

    monkeypatch.setattr(cluster_depth, "depth_order", shuffled)
    with two_machines(2):
        assert reconstructed(scene, model, tmp_path / "four") == whole


@pytest.mark.slow
def test_workers_and_machines_that_disappear(ball_scene: SceneMaker, model: GBiNet, tmp_path: Path) -> None:
    scene = ball_scene(views=16)
    run(scene, model, tmp_path / "one", CONFIG)
    whole = contents(tmp_path / "one")
    killed = []

    def kill_one(done: int) -> None:
        if done == 3:
            killed.extend(own_processes("ray::Worker")[:1])
            os.kill(killed[0], signal.SIGKILL)

    with two_machines(1) as (cluster, node):
        assert reconstructed(scene, model, tmp_path / "killed", kill_one) == whole
        assert killed

        def lose_machine(done: int) -> None:
            if done == 3:
                cluster.remove_node(node, allow_graceful=False)

        assert reconstructed(scene, model, tmp_path / "lost", lose_machine) == whole


class OnBadMachine(DepthJob):
    """Cannot read photo 2 on one machine."""

    def begin(self, item: int, following: Sequence[int], lost: dict[int, str]) -> Callable[[], Any]:
        if os.environ.get("BAD_MACHINE") == "no photo":
            read = self.worker._read

            def cannot(index: int) -> torch.Tensor:
                if index == 2:
                    raise GBiNetError("2.png cannot be read here")
                return read(index)

            self.worker._read = cannot  # type: ignore[method-assign]
        if os.environ.get("BAD_MACHINE") == "full disk":
            raise GBiNetError("cannot write: the disk is full")
        return super().begin(item, following, lost)


@pytest.mark.slow
@pytest.mark.parametrize("trouble", ["no photo", "full disk"])
def test_a_machine_that_cannot_read_or_write(
    trouble: str, ball_scene: SceneMaker, model: GBiNet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = ball_scene(views=12)
    run(scene, model, tmp_path / "one", CONFIG)
    monkeypatch.setattr(cluster_depth, "DepthJob", OnBadMachine)
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    with two_machines(1, {"BAD_MACHINE": trouble}):
        assert reconstructed(scene, model, tmp_path / "two") == contents(tmp_path / "one")


@pytest.mark.slow
def test_a_broken_photo_costs_its_view_as_in_one_process(
    ball_scene: SceneMaker, model: GBiNet, tmp_path: Path
) -> None:
    scene = ball_scene(views=8)
    scene.views[3].image_path.write_bytes(b"not a photo")
    one = run(scene, model, tmp_path / "one", CONFIG)
    two = run(scene, model, tmp_path / "two", CONFIG, cluster=ONE_CORE)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    assert list(one.depth.failed) == list(two.depth.failed) == ["003"]


@pytest.mark.slow
def test_verbs_on_a_cluster_that_is_running(ball_scene: SceneMaker, model: GBiNet, tmp_path: Path) -> None:
    """`gbinet depth` and `gbinet fuse --tiles` from a process of their own, by address."""
    from ray.cluster_utils import Cluster

    scene = write_scene(ball_scene(views=8), tmp_path / "scene", "mvsnet")
    weights = model.save(tmp_path / "random.safetensors")
    network = ["--weights", str(weights), "--max-size", "64", "--views", "3"]
    loose = ["--min-confidence", "0", "--min-views", "1", "--max-reprojection", "50", "--tiles", "2"]
    loose += ["--max-relative-depth", "0.9"]
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2})
    try:
        for name, more in (("one", []), ("two", ["--cluster", cluster.address, "--worker-cores", "1"])):
            out = str(tmp_path / name)
            for words in (["depth", str(scene), *network], ["fuse", out, *loose]):
                command = [sys.executable, "-m", "gbinet.cli.main", *words, "-o", out, *more]
                subprocess.run(command, check=True)
    finally:
        cluster.shutdown()
    found = contents(tmp_path / "two")
    assert found == contents(tmp_path / "one")
    assert sum(name.startswith("tiles/tile_") for name in found) > 1


@pytest.mark.slow
def test_a_driver_that_is_killed_and_started_again(
    ball_scene: SceneMaker, model: GBiNet, tmp_path: Path
) -> None:
    scene = write_scene(ball_scene(views=12), tmp_path / "scene", "mvsnet")
    weights = model.save(tmp_path / "random.safetensors")
    options = [
        str(scene), "--weights", str(weights), "--max-size", "64", "--views", "3", "--min-confidence", "0",
        "--min-views", "1", "--max-reprojection", "50", "--max-relative-depth", "0.9",
    ]  # fmt: skip
    command = [sys.executable, "-m", "gbinet.cli.main", "reconstruct", *options]
    subprocess.run([*command, "-o", str(tmp_path / "one")], check=True)
    on_ray = [*command, "-o", str(tmp_path / "two"), "--cluster", "--worker-cores", "1"]
    first = subprocess.Popen(on_ray)
    while first.poll() is None and len(list((tmp_path / "two" / "depth").glob("[!.]*.npz"))) < 2:
        time.sleep(0.02)
    assert first.poll() is None, "it ended before it could be killed"
    first.kill()
    first.wait()
    made = {path: path.stat().st_mtime_ns for path in (tmp_path / "two" / "depth").glob("[!.]*.npz")}
    subprocess.run(on_ray, check=True)
    assert contents(tmp_path / "two") == contents(tmp_path / "one")
    assert all(path.stat().st_mtime_ns == when for path, when in made.items()), (
        "finished maps were made again"
    )


def test_missing_files_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(GBiNetError, match="no Ray answers there"), connected(ClusterConfig("127.0.0.1:1")):
        pass
    monkeypatch.setitem(sys.modules, "ray", None)
    missing = pytest.raises(GBiNetError, match=r"--cluster needs ray: pip install 'gbinet\[cluster\]'")
    with missing, connected(ClusterConfig()):
        pass
