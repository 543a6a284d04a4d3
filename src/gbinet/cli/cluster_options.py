"""Options of the verbs that can work on Ray."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import tyro

from gbinet.cli.options import otherwise
from gbinet.cluster.session import CORES, LOCAL, ClusterConfig


@dataclass(frozen=True)
class ClusterOptions:
    """Many workers instead of this process."""

    # Compute on Ray (extra 'cluster'), with the same result. Without an address: on all GPUs or cores of this
    # machine. With an address such as HOST:PORT or auto: on a running cluster whose machines see the same
    # files.
    cluster: Annotated[
        str | None, tyro.conf.arg(metavar="[ADDRESS]", help_behavior_hint="(default: this process)")
    ] = None
    worker_cores: Annotated[int | None, otherwise(f"{CORES}, or 1 if no machine has more", "INT")] = None
    """Cores per worker of --cluster, if there are no GPUs."""

    def config(self) -> ClusterConfig | None:
        return None if self.cluster is None else ClusterConfig(self.cluster, self.worker_cores)


_ADDRESS = re.compile(r"auto|local|\w+://.+|[^/\\]+:\d+")


def spelled_out(arguments: Sequence[str]) -> list[str]:
    """`--cluster` alone means the cluster of this machine: its name is put behind it."""
    result: list[str] = []
    for number, word in enumerate(arguments):
        result.append(word)
        following = arguments[number + 1] if number + 1 < len(arguments) else ""
        if word == "--cluster" and not _ADDRESS.fullmatch(following):
            result.append(LOCAL)
    return result


ClusterFlags = Annotated[ClusterOptions, tyro.conf.arg(name="")]
