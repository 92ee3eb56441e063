"""Nothing that was read can become code, a shell command, a program's path or an unchecked connection: kept by reading
the source of the package, since a test that runs it could only try some of the ways."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from code_from_data import SAFE_LOADER, findings

import headrace

PACKAGE = Path(headrace.__file__).parent

ALLOWED = {
    ("serve/wire.py", "ForkingPickler"): "jobs and batches between a trainer and its own workers, on a socket pair "
    "without a name that only these two processes have; nothing that was read from data is unpickled, but as the value "
    "that a worker made of it",
    ("serve/worker.py", "ForkingPickler"): "an error is tried out before it goes the same way",
    (
        "serve/peers.py",
        "all_gather_object",
    ): "receipts between the ranks of one job, in the trainer's own process group",
    ("__init__.py", "import_module"): "the public names, from a table in the same file",
    ("fetch/media/images.py", "import_module"): "one of six Pillow plugins, from a table in the same file",
    ("make/values.py", "literal_eval"): "lists as Python prints them; short, shallow, without names and operators",
    ("tools/child.py", "Popen"): "the demo starts itself, from a list",
    ("synth/__init__.py", "import_module"): "one of our own modules, from a table in the same file",
    ("synth/facts.py", "format"): "templates of our own, in a table of world.py",
    ("synth/world.py", "format"): "the same",
    ("lerobot/info.py", "format"): "a `Template` of ours, which was parsed into literals and known fields",
    ("make/chat_sandbox.py", "from_string"): "chat templates, which run in a sandbox that counts what they do",
    ("make/formatters/base.py", "format"): "a formatter's method of that name",
}


def test_the_package_has_nothing_that_turns_data_into_code() -> None:
    found, used = [], set()
    for path in sorted(PACKAGE.rglob("*.py")):
        name = str(path.relative_to(PACKAGE))
        for line, what in findings(ast.parse(path.read_text())):
            if name.startswith("testing/") and what == "format":
                continue  # names of files that a test gives
            if (name, what) in ALLOWED:
                used.add((name, what))
            else:
                found.append(f"{name}:{line}: {what}")
    assert found == []
    assert used == set(ALLOWED), "a reason for what is not there any more"


SEEN = {
    "import pickle": "import pickle",
    "import pickle as p\np.loads(x)": "pickle.loads",
    "from pickle import loads": "import pickle",
    "from pickle import loads as read\nread(x)": "pickle.loads",
    "import cloudpickle": "import cloudpickle",
    "import dill": "import dill",
    "import marshal": "import marshal",
    "import shelve": "import shelve",
    "from joblib import load": "import joblib",
    "import jsonpickle": "import jsonpickle",
    "import pyarrow.ipc as ipc": "import pyarrow.ipc",
    "import pyarrow as pa\npa.ipc.open_file(x)": "pyarrow.ipc.open_file",
    "from pyarrow import feather": "import pyarrow.feather",
    "import tarfile": "import tarfile",
    "import runpy": "import runpy",
    "from runpy import run_path": "import runpy",
    "import code\ncode.interact()": "code.interact",
    "import ctypes\nctypes.CDLL(x)": "ctypes.CDLL",
    "from ctypes import cdll": "import ctypes",
    "import logging.config": "import logging.config",
    "import torch\ntorch.hub.load(x, y)": "torch.hub",
    "eval(text)": "eval",
    "f = exec": "exec",
    "compile(text, '', 'exec')": "compile",
    "__import__(name)": "__import__",
    "import builtins\nbuiltins.eval(x)": "eval",
    "import builtins as b\nb.exec(x)": "exec",
    "from builtins import eval as e\ne(x)": "eval",
    "import builtins\ngetattr(builtins, 'ev' + 'al')(x)": "eval",
    "import builtins\ngetattr(builtins, f'{\"ex\"}ec')(x)": "exec",
    "import builtins\ngetattr(builtins, name)(x)": "getattr of a module",
    "import os\ngetattr(os, name)(x)": "getattr of a module",
    "__builtins__['exec'](x)": "exec",
    "import builtins\nbuiltins.__dict__['eval'](x)": "eval",
    "import builtins\nvars(builtins)['eval'](x)": "eval",
    "globals()['eval'](x)": "eval",
    "import sys\nsys.modules['pickle'].loads(x)": "pickle.loads",
    "import sys\nsys.modules.get('pickle')": "pickle",
    "run = eval\nagain = run\nagain(x)": "eval",
    "(e := eval)(x)": "eval",
    "e: object = eval": "eval",
    "import importlib\nimportlib.import_module(row)": "import_module",
    "from importlib import import_module as im\nim(row)": "import_module",
    "import importlib\nimportlib.import_module('pickle').loads(x)": "pickle.loads",
    "from importlib import reload": "importlib.reload",
    "import importlib.util\nimportlib.util.spec_from_file_location(n, p)": "importlib.util.spec_from_file_location",
    "import types\ntypes.FunctionType(c, {})": "types.FunctionType",
    "import yaml\nyaml.load(text)": "yaml.load",
    "from yaml import load\nload(text)": "yaml.load",
    "from yaml import load as read\nread(text, Loader=x)": "yaml.load",
    "import yaml as y\ny.load(text, Loader=y.Loader)": "yaml.load",
    "import yaml\nyaml.load(text, Loader=yaml.Loader)": "yaml.load",
    "import yaml\nloader = yaml.UnsafeLoader\nyaml.load(text, Loader=loader)": "yaml.load",
    "import yaml\nyaml.unsafe_load(text)": "yaml.unsafe_load",
    "from yaml import unsafe_load": "yaml.unsafe_load",
    "import yaml\nyaml.full_load_all(text)": "yaml.full_load_all",
    "import yaml\nread = yaml.load": "yaml.load is handed on",
    "import yaml\ngetattr(yaml, 'load')(text)": "yaml.load",
    "import numpy as np\nnp.load(path)": "numpy.load",
    "from numpy import load": "numpy.load",
    "import numpy\nnumpy.load(path, allow_pickle=True)": "allow_pickle=True",
    "read(path, allow_pickle=True)": "allow_pickle=True",
    "read(path, **{'allow_pickle': True})": "allow_pickle=True",
    "import torch\ntorch.load(path)": "torch.load",
    "import torch as t\nt.load(path)": "torch.load",
    "from torch import load\nload(path)": "torch.load",
    "import torch\ntorch.load(path, weights_only=False)": "weights_only=False",
    "import torch\nmap(torch.load, paths)": "torch.load is handed on",
    "import importlib as loader\nloader.__import__(name)": "importlib.__import__",
    "import yaml\nyaml.add_constructor(tag, make)": "yaml.add_constructor",
    "from yaml import add_multi_constructor": "yaml.add_multi_constructor",
    "import torch\ntorch.jit.load(path)": "torch.jit.load",
    "import torch\ntorch.package.PackageImporter(path)": "torch.package.PackageImporter",
    "import pandas as pd\npd.eval(text)": "pandas.eval",
    "frame.query(text)\nimport pandas\npandas.DataFrame.eval(frame, text)": "pandas.DataFrame.eval",
    "import timeit\ntimeit.timeit(text)": "import timeit",
    "import cProfile\ncProfile.run(text)": "import cProfile",
    "import pdb\npdb.run(text)": "import pdb",
    "import pandas as pd\npd.read_pickle(path)": "pandas.read_pickle",
    "from pandas import read_pickle": "pandas.read_pickle",
    "frame.to_pickle(path)": ".to_pickle",
    "import subprocess\nsubprocess.run(command, shell=True)": "shell=True",
    "run(command, shell=asked)": "shell=asked",
    "run(command, **{'shell': True})": "shell=True",
    "from subprocess import getoutput": "subprocess.getoutput",
    "import subprocess as s\ns.Popen(x)": "Popen",
    "import os\nos.system(command)": "os.system",
    "from os import system\nsystem(command)": "os.system",
    "import os as o\no.popen(command)": "os.popen",
    "import os\nos.execvp(a, b)": "os.execvp",
    "import os\nos.spawnl(0, a)": "os.spawnl",
    "import asyncio\nasyncio.create_subprocess_shell(x)": "asyncio.create_subprocess_shell",
    "import tempfile\ntempfile.mktemp()": ".mktemp",
    "from tempfile import mktemp": "tempfile.mktemp",
    "tar.extractall(folder)": ".extractall",
    "import shutil as s\ns.unpack_archive(x)": "shutil.unpack_archive",
    "loader.exec_module(m)": ".exec_module",
    "pa.ipc.open_stream(data)": ".open_stream",
    "from_pretrained(name, trust_remote_code=given)": "trust_remote_code=given",
    "get(url, verify=False)": "verify=False",
    "Image.MAX_IMAGE_PIXELS = None": "MAX_IMAGE_PIXELS is set",
    "template.format(chunk=1)": "format",
    "env.from_string(text)": "from_string",
    "made().from_string(text)": "from_string",
    "import ast\nast.literal_eval(x)": "literal_eval",
}


@pytest.mark.parametrize("source", SEEN)
def test_what_is_looked_for_is_found(source: str) -> None:
    found = [what for _, what in findings(ast.parse(source))]
    assert any(what.startswith(SEEN[source]) for what in found), found


@pytest.mark.parametrize(
    "source",
    [
        f"import yaml\nloader = {SAFE_LOADER}\nyaml.load(text, Loader=loader)",
        "import yaml\nyaml.safe_load(text)",
        "from yaml import safe_load as load\nload(text)",
        "import re\nre.compile(pattern)",
        "from re import compile as make\nmake(pattern)",
        "import json\njson.load(file)",
        "from json import load\nload(file)",
        "'{}'.format(1)",
        "import subprocess\nsubprocess.run([a], shell=False)",
        "import torch\ntorch.from_numpy(array)",
        "import torch\ntorch.load(path, weights_only=True)",
        "model.eval()",
        "self.exec(x)",
        "import os\nos.stat(path)",
        "getattr(row, name)",
        "import os\ngetattr(os, 'O_TMPFILE', 0)",
        "import sys\nsys.modules['json'].loads(x)",
        "known['eval']",
        "import importlib.util\nimportlib.util.find_spec('torch')",
        "loader.load(path)",
        "def compiled(code): return code",
        "evaluate(x)",
        "import numpy as np\nnp.loadtxt(path)",
        "from types import MappingProxyType",
    ],
)
def test_what_is_harmless_is_let_through(source: str) -> None:
    assert list(findings(ast.parse(source))) == []
