"""`gbinet demo`: a rendered scene, reconstructed and compared with the ground truth."""

from __future__ import annotations

from pathlib import Path

from gbinet.cli.options import Device, Out, Size, Weights


def run(
    out: Out = Path("gbinet-demo"),
    weights: Weights = None,
    seed: int = 8,
    views: int = 9,
    size: Size = (512, 384),
    device: Device = "auto",
) -> None:
    """Render a small scene, reconstruct it with the bundled weights, and compare it with the ground truth.

    Args:
        out: Folder for the photos, the depth maps, the cloud and the report.
        weights: Name of bundled weights, a weights file of gbinet, or a published .ckpt.
        seed: Random seed of the scene.
        views: Number of photos.
        size: WIDTHxHEIGHT of the photos in pixels.
    """
    from gbinet.cli.progress import StepBars
    from gbinet.cli.say import say, say_notes
    from gbinet.model.gbinet import GBiNet
    from gbinet.pipeline.demo import DemoConfig, figures, run_demo
    from gbinet.pipeline.record import duration

    model = GBiNet.from_pretrained(weights)
    config = DemoConfig(views=views, width=size[0], height=size[1], seed=seed)
    with StepBars() as bars:
        result = run_demo(out, model, config, device=device, progress=bars)
    done = result.reconstruction
    say_notes(done.warnings)
    print(f"{done.points:,} points from {views} photos in {duration(done.seconds)} on {done.depth.device}")
    for label, value in figures(result.score, result.threshold):
        print(f"  {label:36} {value}")
    within = next(iter(result.depth.within.values()))
    print(f"  {f'depths within {result.threshold * 1000:.1f} mm, all pixels':36} {within:.1%}")
    say(f"look at {done.report}")
