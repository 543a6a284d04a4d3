"""`gbinet VERB ...`: finds the verb's module, imports it only then, and turns errors into one sentence."""

from __future__ import annotations

import difflib
import importlib
import io
import logging
import os
import signal
import sys
import threading
from types import FrameType
from typing import Any

from gbinet.cli.say import for_programs, speak_to_programs

# Verb -> what it does. Each lives in gbinet/cli/<verb>.py as a typed function `run`, from which tyro derives
# the flags, or as a dict of such functions (`gbinet evaluate dtu`), or as a function `command` that makes one
# from the arguments, where defaults depend on them. Heavy imports happen inside these modules, so that
# `gbinet --help` answers at once.
VERBS: dict[str, str] = {
    "demo": "render a small scene, reconstruct it and compare it with the ground truth",
    "reconstruct": "turn photos, with or without known cameras, into a point cloud with a report",
    "depth": "compute depth maps of a scene",
    "fuse": "fuse depth maps, from gbinet or another program, into a point cloud",
    "view": "look at a reconstruction in the browser",
    "train": "train the network on rendered scenes or on a data set",
    "validate": "measure the accuracy of weights on rendered scenes, stage by stage",
    "calibrate": "calibrate the confidence of trained weights",
    "render": "render random textured scenes with exact depth, as a data set",
    "evaluate": "score depth maps and clouds: depth, cloud, dtu, tanks, tanks-upload, eth3d",
    "info": "show what a folder contains: views, sizes, depth ranges, source views, coverage",
    "convert": "convert scenes, depth maps and clouds from one format to another",
    "benchmark": "measure the time and memory of a depth map on this machine: speed, memory",
}


FOR_PROGRAMS = ("info", "reconstruct", "evaluate", "validate", "benchmark")  # verbs that take --json
_KEPT = "Finished work is kept; run the same command again to continue."
GO_ON = {  # verb -> what to say when it is stopped
    **dict.fromkeys(("demo", "reconstruct", "depth", "render"), _KEPT),
    "evaluate": "Finished scans of DTU are kept; run the same command again to continue.",
    "train": "Run the same command with --resume to continue from the last checkpoint, if there is one.",
}


def usage() -> str:
    lines = ["usage: gbinet VERB [OPTIONS]", "", "Turns photos into depth maps and a point cloud."]
    lines += [f"  {verb:12} {text}" for verb, text in VERBS.items()]
    lines += [
        "",
        "`gbinet VERB --help` lists a verb's options. --debug shows tracebacks.",
        f"--json prints one JSON object on stdout and the rest on stderr: {', '.join(FOR_PROGRAMS)}.",
        "`gbinet --completion bash` (or zsh) prints a script for completing verbs and options.",
    ]
    return "\n".join(lines)


def welcome() -> str:
    """What most people want."""
    return """\
Turns photos into depth maps and a point cloud.

  gbinet demo                             try it on a rendered scene
  gbinet reconstruct PHOTOS -o RESULT     make a cloud from your photos, with a report
  gbinet view RESULT                      look at it in the browser

`gbinet --help` lists all verbs."""


def main(argv: list[str] | None = None) -> int:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a name that the terminal cannot show is no reason to fail
            stream.reconfigure(errors="backslashreplace")
    arguments = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in arguments
    arguments = [a for a in arguments if a != "--debug"]
    if not arguments or arguments[0] in ("-h", "--help"):
        print(usage() if arguments else welcome())
        return 0
    verb = arguments[0]
    if verb == "--version":
        from gbinet import __version__

        print(f"gbinet {__version__}")
        return 0
    if verb == "--completion":
        from gbinet.cli.completion import script
        from gbinet.errors import InputError

        try:
            print(script(arguments[1] if len(arguments) > 1 else "bash"), end="")
        except InputError as error:
            print(f"gbinet: {error}", file=sys.stderr)
            return 2
        return 0
    if verb not in VERBS:
        near = difflib.get_close_matches(verb, VERBS, 1)
        hint = f" Did you mean `gbinet {near[0]}`?" if near else ""
        print(f"gbinet: there is no verb {verb!r}.{hint}\n\n{usage()}", file=sys.stderr)
        return 2
    speak_to_programs(verb in FOR_PROGRAMS and "--json" in arguments)
    if for_programs():
        arguments = [a for a in arguments if a != "--json"]
    try:
        return _run(verb, arguments[1:], debug)
    except KeyboardInterrupt:  # before there was anything to go on with
        print(f"\ngbinet {verb}: stopped", file=sys.stderr)
        return 130


def _run(verb: str, arguments: list[str], debug: bool) -> int:
    # Threads that spin while they wait take the core from the one they wait for when the machine is busy with
    # other things: a demo of 35 s then took 3 minutes. Waking up takes longer than many an operation, though,
    # so they spin for some ten microseconds first. Read when torch is loaded, which has not happened yet.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ["OMP_WAIT_POLICY"] = "passive"
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    import tyro

    from gbinet.cli.allocator import keep_freed_memory
    from gbinet.cli.cluster_options import spelled_out
    from gbinet.cli.optional_values import REGISTRY, flow
    from gbinet.errors import GBiNetError

    keep_freed_memory()
    arguments = spelled_out(arguments)

    logging.basicConfig(
        level=logging.DEBUG if debug else logging.WARNING, format="%(levelname)s: %(message)s"
    )
    before = _on_sigterm(_stop)
    try:
        module = importlib.import_module(f"gbinet.cli.{verb}")
        run = module.command(arguments) if hasattr(module, "command") else module.run
        flow(run)
        parse = tyro.extras.subcommand_cli_from_dict if isinstance(run, dict) else tyro.cli
        parse(run, args=arguments, prog=f"gbinet {verb}", description=VERBS[verb], registry=REGISTRY)
    except GBiNetError as error:
        if debug:
            raise
        print(f"gbinet {verb}: {error}", file=sys.stderr)
        return 2
    except _Terminated:
        print(f"\ngbinet {verb}: stopped by SIGTERM. {GO_ON.get(verb, '')}".rstrip(), file=sys.stderr)
        return 128 + signal.SIGTERM
    except KeyboardInterrupt:
        print(f"\ngbinet {verb}: stopped. {GO_ON.get(verb, '')}".rstrip(), file=sys.stderr)
        return 130
    except (OSError, MemoryError, RuntimeError) as error:
        from gbinet.inference.device import is_out_of_memory

        if debug or (isinstance(error, RuntimeError) and not is_out_of_memory(error)):
            raise
        message = "not enough memory" if is_out_of_memory(error) else str(error)
        print(f"gbinet {verb}: {message}", file=sys.stderr)
        return 2
    finally:
        _on_sigterm(before)
    return 0


class _Terminated(BaseException):
    """Somebody (a scheduler, a shutdown) asked us to end: like Ctrl-C, nothing may take it for an error."""


def _stop(number: int, frame: FrameType | None) -> None:
    raise _Terminated


def _on_sigterm(handler: Any) -> Any:
    """Set what SIGTERM does; returns what it did. Outside the main thread, nothing can be set."""
    if threading.current_thread() is threading.main_thread():
        return signal.signal(signal.SIGTERM, handler)
    return handler


if __name__ == "__main__":
    raise SystemExit(main())
