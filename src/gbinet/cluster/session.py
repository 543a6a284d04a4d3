"""The connection to Ray: a cluster that is running already, or one on this machine for the time of a run."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from gbinet.cores import usable_cores
from gbinet.errors import GBiNetError, InputError, check_positive
from gbinet.formats.optional import optional, own_sigterm

LOCAL = "local"
CORES = 2  # of a worker, by default


@dataclass(frozen=True)
class ClusterConfig:
    """Where workers run.

    Attributes:
        address: Of a running Ray ("10.0.0.1:6379", or "auto" on one of its machines); "local" starts one over
            the GPUs or cores of this machine, and ends it with the run.
        cores: Cores of a worker, where there are no GPUs; None = 2, or 1 where no machine has more.
            With GPUs, every one has a worker.
    """

    address: str = LOCAL
    cores: int | None = None

    def __post_init__(self) -> None:
        if self.cores is not None:
            check_positive("--worker-cores", self.cores)


@dataclass(frozen=True)
class Cluster:
    """A connection to Ray."""

    ray: Any  # the module
    config: ClusterConfig

    def has_gpus(self, device: str) -> bool:
        """Whether workers take GPUs: those of the cluster, unless `device` says otherwise."""
        if ":" in device:
            kind = device.partition(":")[0]
            raise InputError(
                f"--device {device}: with --cluster, Ray chooses among all; give --device {kind}"
            )
        found = self.ray.cluster_resources().get("GPU", 0) >= 1
        if device == "cuda" and not found:
            raise InputError("--device cuda: the cluster has no GPU; try --device cpu")
        return found and device in ("auto", "cuda")

    def machines(self) -> list[int]:
        """The cores of each machine."""
        return [int(node["Resources"].get("CPU", 0)) for node in self.ray.nodes() if node["Alive"]]

    def worker_cores(self) -> int:
        """Cores of a worker without a GPU: no more than the largest machine has, or none would ever start."""
        largest = max(self.machines(), default=0)
        if self.config.cores is None:
            return min(CORES, largest or CORES)
        if 0 < largest < self.config.cores:  # 0: the machines that compute are still to join
            raise InputError(
                f"--worker-cores {self.config.cores}: no machine of the cluster has so many; the largest has "
                f"{largest}"
            )
        return self.config.cores


@contextmanager
def connected(config: ClusterConfig | None) -> Iterator[Cluster | None]:
    """A cluster for the time of the block; None where none is asked for.

    A connection to Ray that the caller has is used, and left as it is.
    """
    if config is None:
        yield None
        return
    ray = optional("ray", "--cluster", "cluster")
    if ray.is_initialized():
        yield Cluster(ray, config)
        return
    _connect(ray, config)
    try:
        yield Cluster(ray, config)
    finally:
        ray.shutdown()


def _connect(ray: Any, config: ClusterConfig) -> None:
    # Read when Ray starts: no statistics for its makers, and no change of what a worker without GPUs sees.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if config.address == LOCAL:
        options |= {"num_cpus": usable_cores(), "include_dashboard": False}
    _check_reachable(config.address)
    try:
        with own_sigterm():
            ray.init(address=config.address, **options)
    except (ConnectionError, RuntimeError, ValueError, AssertionError, OSError) as error:
        if config.address == LOCAL:
            raise GBiNetError(f"--cluster: Ray does not start on this machine: {error}") from error
        raise InputError(
            f"--cluster {config.address}: Ray cannot connect there ({str(error).splitlines()[0]}). All "
            "machines need the same version of Ray; if the cluster asks for a token, set it as Ray's page "
            "on token authentication says"
        ) from error


def _check_reachable(address: str) -> None:
    """Raise an InputError if nothing listens at the address: Ray itself would try again for minutes."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if not port.isdecimal():
        return
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except (OSError, OverflowError) as error:
        raise InputError(
            f"--cluster {address}: no Ray answers there ({error}); start one with `ray start --head`, or "
            "give --cluster alone to use this machine"
        ) from error
