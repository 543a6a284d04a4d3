"""What `fuse` and `convert` write from a result on the map lies on the map, as what the run itself wrote."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from ball_scene import SceneMaker
from oracle import Oracle

from gbinet.cli.main import main
from gbinet.errors import FormatError
from gbinet.formats.las import las_crs, read_las
from gbinet.formats.ply import read_ply
from gbinet.formats.xyz import read_xyz
from gbinet.fusion.fuse import FusionConfig
from gbinet.georeference.on_map import frame_in
from gbinet.georeference.place import PlaceConfig
from gbinet.inference.predictor import DepthConfig
from gbinet.pipeline.reconstruct import ReconstructConfig, run

pytest.importorskip("pyproj")
pytest.importorskip("laspy")

CRS = "EPSG:32615"
START = np.array([500000.0, 5200000.0, 300.0])


@pytest.fixture
def result(ball_scene: SceneMaker, tmp_path: Path) -> Path:
    """The output folder of a run with known camera positions, in the unit of the scene."""
    scene = ball_scene(views=6)
    rows = ["name,x,y,z"]
    for view in scene.views:
        place = view.camera.centre.double().numpy() + START
        rows.append(",".join([view.image_path.name, *(f"{value:.12g}" for value in place)]))
    table = tmp_path / "positions.csv"
    table.write_text("\n".join(rows) + "\n")
    place = PlaceConfig(positions=table, crs=CRS)
    config = ReconstructConfig(DepthConfig(max_size=64, views=3), FusionConfig(min_views=2), place=place)
    run(scene, Oracle(scene), tmp_path / "result", config)  # type: ignore[arg-type]
    return tmp_path / "result"


def gbinet(*arguments: object) -> int:
    return main([str(a) for a in arguments])


def same_places(cloud: np.ndarray, other: np.ndarray) -> bool:
    return len(cloud) == len(other) > 100 and np.allclose(np.sort(cloud, 0), np.sort(other, 0), atol=2e-3)


@pytest.mark.parametrize("ending", ["las", "laz"])
def test_a_result_is_fused_to_where_its_run_put_it(result: Path, tmp_path: Path, capsys, ending) -> None:
    target = tmp_path / f"fused.{ending}"
    assert gbinet("fuse", result, "-o", target, "--min-views", 2) == 0
    assert f"map coordinates in {CRS}" in capsys.readouterr().out
    assert las_crs(target) == CRS
    assert same_places(read_las(target).xyz.numpy(), read_las(result / "cloud.laz").xyz.numpy())
    assert gbinet("fuse", result, "-o", tmp_path / "fused.ply", "--min-views", 2) == 0
    local = read_ply(tmp_path / "fused.ply").xyz.numpy()
    assert same_places(local, read_ply(result / "cloud.ply").xyz.numpy())


def test_a_cloud_beside_its_georeference_is_converted_to_the_map(
    result: Path, tmp_path: Path, capsys
) -> None:
    on_map = read_las(result / "cloud.laz").xyz.numpy()
    for crs in ([], ["--crs", CRS], ["--crs", "epsg:32615"]):
        assert gbinet("convert", result / "cloud.ply", tmp_path / "a.laz", *crs) == 0
        assert "georeference.json" in capsys.readouterr().out
        assert las_crs(tmp_path / "a.laz") == CRS
        assert same_places(read_las(tmp_path / "a.laz").xyz.numpy(), on_map)
    assert gbinet("convert", result / "cloud.ply", tmp_path / "a.xyz") == 0
    assert same_places(read_xyz(tmp_path / "a.xyz").xyz.double().numpy(), on_map)
    assert gbinet("convert", result / "cloud.laz", tmp_path / "b.las") == 0  # it is on the map already
    assert las_crs(tmp_path / "b.las") == CRS
    assert same_places(read_las(tmp_path / "b.las").xyz.numpy(), on_map)
    for other, problem in (("EPSG:25832", "omit --crs"), ("nonsense", "not a coordinate system")):
        assert gbinet("convert", result / "cloud.ply", tmp_path / "c.laz", "--crs", other) == 2
        error = capsys.readouterr().err
        assert problem in error and error.count("\n") == 1
    assert not (tmp_path / "c.laz").exists()
    shutil.copy(result / "cloud.ply", tmp_path / "alone.ply")  # nothing says where it lies
    assert gbinet("convert", tmp_path / "alone.ply", tmp_path / "d.laz", "--crs", CRS) == 0
    assert (
        np.abs(read_las(tmp_path / "d.laz").xyz.numpy()).max() < 1000 and las_crs(tmp_path / "d.laz") == CRS
    )


def test_fusion_into_the_result_writes_its_copies_again(result: Path, capsys) -> None:
    before = len(read_las(result / "cloud.laz"))
    (result / "cloud.las").write_text("mine")  # no run wrote it
    assert gbinet("fuse", result, "-o", result, "--min-views", 4) == 0
    assert "also: " in capsys.readouterr().out
    renewed, local = read_las(result / "cloud.laz"), read_ply(result / "cloud.ply").xyz.double().numpy()
    offset = json.loads((result / "georeference.json").read_text())["offset"]
    assert len(renewed) < before and las_crs(result / "cloud.laz") == CRS
    assert same_places(renewed.xyz.numpy(), local + offset)
    assert (result / "cloud.las").read_text() == "mine"


@pytest.mark.parametrize(
    "text", ["[]", "{", '{"offset": [1, 2], "crs": null}', '{"offset": [1, 2, 3], "crs": 5}']
)
def test_a_georeference_that_says_nothing_is_refused(tmp_path: Path, text: str) -> None:
    assert frame_in(tmp_path) is None
    (tmp_path / "georeference.json").write_text(text)
    with pytest.raises(FormatError, match=r"georeference\.json"):
        frame_in(tmp_path)
