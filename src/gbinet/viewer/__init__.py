"""Pictures of depth maps and clouds: colours, point splats, the report, the live viewer."""
