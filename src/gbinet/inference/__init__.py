"""The network over a whole scene: device, precision, feature cache, tiles, one depth map per view."""
