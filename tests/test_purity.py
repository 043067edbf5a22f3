"""Pure modules, as ``.importlinter`` lists them, load nothing that moves tensors or talks to others.

import-linter reads the imports of each module; that a module loads its packages' ``__init__`` too shows here only.
"""

from __future__ import annotations

import configparser
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
HEAVY = ("google", "grpc", "mlfabric.channels", "mlfabric.v1", "mlfabric.wire", "torch")
LOADS = """
import importlib, sys
for name in {pure!r}:
    importlib.import_module(name)
    loaded = [heavy for heavy in {heavy!r} if heavy in sys.modules]
    if loaded:
        sys.exit(f"{{name}} loads {{loaded}}")
"""


def test_pure_modules_load_no_channels_and_no_torch():
    contracts = configparser.ConfigParser()
    contracts.read(ROOT / ".importlinter")
    pure = contracts["importlinter:contract:pure"]["source_modules"].split()
    code = LOADS.format(pure=pure, heavy=HEAVY)
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
