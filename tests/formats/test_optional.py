"""Libraries that are imported where they are needed leave the process as it was."""

from __future__ import annotations

import signal
import subprocess
import sys

# As in an own process: what a library does when it is imported, it does once.
STOPPED = """
import os, signal
from gbinet.formats.optional import load_pycolmap
class Stopped(BaseException): pass
def stop(number, frame): raise Stopped
signal.signal(signal.SIGTERM, stop)
load_pycolmap()
try:
    os.kill(os.getpid(), signal.SIGTERM)
except Stopped:
    print("tidied up")
"""


def test_sigterm_is_ours_after_pycolmap_was_imported() -> None:
    ended = subprocess.run([sys.executable, "-c", STOPPED], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "tidied up\n", "")


def test_own_sigterm_puts_the_handler_back() -> None:
    from gbinet.formats.optional import own_sigterm

    before = signal.getsignal(signal.SIGTERM)
    with own_sigterm():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    assert signal.getsignal(signal.SIGTERM) is before
