"""`gbinet --completion bash` (or zsh): a script that completes verbs and options, made from the parsers."""

from __future__ import annotations

import importlib
import io
import re
from contextlib import redirect_stdout, suppress

from gbinet.errors import InputError

SHELLS = ("bash", "zsh")
_SCRIPT = """\
_gbinet() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} words=""
  if [ "$COMP_CWORD" -eq 1 ]; then words="{verbs}"
  else case "${{COMP_WORDS[1]}}" in
{cases}
  esac; fi
  COMPREPLY=($(compgen -W "$words" -- "$word"))
}}
complete -o default -F _gbinet gbinet
"""


def script(shell: str) -> str:
    """What the shell is to read at its start, e.g. `source <(gbinet --completion bash)`."""
    from gbinet.cli.main import VERBS

    if shell not in SHELLS:
        raise InputError(f"--completion is for {' and '.join(SHELLS)}, not '{shell}'")
    cases = [f'    {verb}) words="{" ".join([*below(verb), *flags(verb)])}" ;;' for verb in VERBS]
    text = _SCRIPT.format(verbs=" ".join(VERBS), cases="\n".join(cases))
    return text if shell == "bash" else f"autoload -U +X bashcompinit && bashcompinit\n{text}"


def below(verb: str) -> list[str]:
    """Names of the verbs below a verb: `gbinet evaluate dtu`."""
    run = getattr(importlib.import_module(f"gbinet.cli.{verb}"), "run", None)
    return list(run) if isinstance(run, dict) else []


def flags(verb: str) -> list[str]:
    """All long options of a verb and of those below it, as its help shows them."""
    from gbinet.cli.main import FOR_PROGRAMS

    found = {"--debug", "--json"} if verb in FOR_PROGRAMS else {"--debug"}
    for name in [[name] for name in below(verb)] or [[]]:
        found |= set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", help_of(verb, *name)))
    return sorted(found)


def help_of(*verb: str) -> str:
    """What `gbinet VERB --help` prints, without colours."""
    from gbinet.cli.main import main

    printed = io.StringIO()
    with redirect_stdout(printed), suppress(SystemExit):
        main([*verb, "--help"])
    return re.sub(r"\x1b\[[0-9;]*m", "", printed.getvalue()).strip()
