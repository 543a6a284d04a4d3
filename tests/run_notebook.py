"""Runs a notebook without Jupyter: cells in order, in one namespace; what they show becomes their outputs.

python tests/run_notebook.py examples/05_photos_to_cloud.ipynb    # runs it and stores the outputs in the file
"""

from __future__ import annotations

import ast
import base64
import contextlib
import io
import json
import sys
from pathlib import Path
from typing import Any


def run_notebook(path: Path) -> dict[str, Any]:
    """The notebook with the outputs of this run. An error of a cell is an error here."""
    notebook: dict[str, Any] = json.loads(path.read_text())
    names: dict[str, Any] = {"__name__": "__main__"}
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for number, cell in enumerate(code, start=1):
        cell["outputs"], cell["execution_count"] = _run_cell("".join(cell["source"]), number, names), number
    return notebook


def _run_cell(source: str, number: int, names: dict[str, Any]) -> list[dict[str, Any]]:
    tree = ast.parse(source, f"<cell {number}>")
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed, value = io.StringIO(), None
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, f"<cell {number}>", "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), f"<cell {number}>", "eval"), names)
    outputs: list[dict[str, Any]] = []
    if printed.getvalue():
        lines = printed.getvalue().splitlines(keepends=True)
        outputs.append({"output_type": "stream", "name": "stdout", "text": lines})
    if value is not None:
        outputs.append(
            {
                "output_type": "execute_result",
                "execution_count": number,
                "metadata": {},
                "data": _shown(value),
            }
        )
    return outputs


def _shown(value: Any) -> dict[str, Any]:
    """As Jupyter would show it: a picture, or its text."""
    if hasattr(value, "_repr_jpeg_"):
        picture = io.BytesIO()
        value.convert("RGB").save(picture, "JPEG", quality=85)
        return {"image/jpeg": base64.b64encode(picture.getvalue()).decode(), "text/plain": ["a picture"]}
    return {"text/plain": repr(value).splitlines(keepends=True)}


if __name__ == "__main__":
    import os
    import tempfile

    target = Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        finished = run_notebook(target)
    target.write_text(json.dumps(finished, indent=1, ensure_ascii=False) + "\n")
