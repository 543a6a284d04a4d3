"""Clouds by every variant: a few rendered scenes, reconstructed from the variants' weights and scored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory

from gbinet.errors import InputError
from gbinet.evaluation.cloud import CloudScore, compare_clouds, score_cloud
from gbinet.formats.atomic import write_json
from gbinet.fusion.fuse import FusionConfig, fuse
from gbinet.inference.device import pick_device, pick_precision
from gbinet.inference.predictor import DepthConfig, estimate_depths
from gbinet.inference.prepare import prepare
from gbinet.model.gbinet import GBiNet
from gbinet.pipeline.demo import DemoConfig, render_scene, true_cloud
from gbinet.pointcloud import PointCloud
from gbinet.provenance import hash_of
from gbinet.scene import Scene
from gbinet.scenes.depth_folder import DepthFolder
from gbinet_research.dense import DenseNet
from gbinet_research.results import CLOUDS, read_result, weights_path
from gbinet_research.run import Tell
from gbinet_research.variants import MOST_STAGES, Budget, Variant

FIRST_SEED = 8  # of the scenes
MILLIMETRES = 1000.0  # per unit of the scenes, which is the metre
CUT = 0.02  # metres: as in DTU's protocol, larger distances do not count
# Variants differ in what their confidence means, so that only geometry filters.
FUSION = FusionConfig(min_confidence=0.0, blank_confidence=0.0, keep_burnt_out=True, min_views=3)


def score_clouds(variants: Sequence[Variant], budget: Budget, out: Path, tell: Tell) -> None:
    """Write clouds.json from the NAME.safetensors in `out`; scores of the same weights stay."""
    with TemporaryDirectory(prefix="gbinet-clouds-") as work:
        _score_clouds(variants, budget, out, Path(work), tell)


def _score_clouds(variants: Sequence[Variant], budget: Budget, out: Path, work: Path, tell: Tell) -> None:
    path = out / CLOUDS
    found = read_result(path) or {}
    scenes: list[Scene] = []
    for variant in variants:
        name = variant.name
        weights = weights_path(out, name)
        if not weights.is_file():
            tell(f"{name}: no weights in {out} yet, so no cloud")
            continue
        model = variant.network.from_pretrained(weights)
        key = {"weights": hash_of(model), "scenes": budget.cloud_scenes, "size": list(budget.cloud_size)}
        stored = found.get(name)
        if isinstance(stored, dict) and stored.get("key") == key:
            continue
        scenes = scenes or _scenes(budget, work, tell)
        scores: dict[int, dict[str, float | None]] = {}
        for stages in _stages(model, name):
            scores[stages] = _mean([_score(model, scene, stages, work / "clouds") for scene in scenes])
            tell(f"{name}, {stages} stages: {scores[stages]}")
        found[name] = {"key": key, "stages": scores}
        write_json(path, found)


def _stages(model: GBiNet, name: str) -> list[int]:
    """The network's own number; for the comparison of stages, those around it too."""
    own = model.config.stages
    return list(range(own - 2, MOST_STAGES + 1)) if name == "gbinet" and own == MOST_STAGES - 1 else [own]


def _scenes(budget: Budget, work: Path, tell: Tell) -> list[Scene]:
    width, height = budget.cloud_size
    found = []
    for number in range(budget.cloud_scenes):
        seed = FIRST_SEED + number
        found.append(
            render_scene(work / "scenes" / str(seed), DemoConfig(width=width, height=height, seed=seed))
        )
        tell(f"scene {seed} is rendered")
    return found


def _score(model: GBiNet, scene: Scene, stages: int, folder: Path) -> CloudScore | None:
    """None where nothing was reconstructed."""
    size = max(scene.views[0].camera.width, scene.views[0].camera.height)
    config = DepthConfig(max_size=size, views=5, stages=stages)
    if isinstance(model, DenseNet):  # which nobody else knows how to make ready
        model = prepare(model, pick_device(), pick_precision("auto", pick_device()))
    estimate_depths(scene, model, folder / "depth", config, overwrite=True)
    cloud = folder / "cloud.ply"
    fuse(scene, DepthFolder(scene, folder / "depth"), cloud, FUSION, device=pick_device())
    points = PointCloud.load(cloud).xyz.numpy()
    if not len(points):
        return None
    truth = true_cloud(scene).xyz.numpy()
    distances = compare_clouds(points, truth, max_distance=CUT, device=pick_device())
    return score_cloud(distances, (0.001, 0.002), CUT)


def _mean(scores: list[CloudScore | None]) -> dict[str, float | None]:
    """Means over scenes, in millimetres; None where a scene has no cloud."""
    if not scores:
        raise InputError("there are no scenes to reconstruct: cloud_scenes is 0")
    names = ("accuracy", "completeness", "overall")
    whole = [asdict(s) for s in scores if s is not None]
    if len(whole) < len(scores):
        return dict.fromkeys((*names, "points"), None)
    result = {n: MILLIMETRES * sum(s[n] for s in whole) / len(whole) for n in names}
    return {**result, "points": sum(s["points"] for s in whole) / len(whole)}
