"""`python -m gbinet`: the same as the command `gbinet`."""

from __future__ import annotations

from gbinet.cli.main import main

raise SystemExit(main())
