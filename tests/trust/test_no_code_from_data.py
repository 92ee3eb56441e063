"""Nothing that was read can become code, a shell command, a program's path or an unchecked connection: kept by reading
the source of the package, since a test that runs it could only try some of the ways."""

from __future__ import annotations

import ast
import ctypes
import importlib
import marshal
import os
import pickle
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import yaml
from code_from_data import SAFE_LOADER, USABLE, findings

import headrace

PACKAGE = Path(headrace.__file__).parent

ALLOWED = {
    ("serve/wire.py", "ForkingPickler"): "jobs and batches between a trainer and its own workers, on a socket pair "
    "without a name that only these two processes have; nothing that was read from data is unpickled, but as the value "
    "that a worker made of it",
    ("serve/wire.py", "ctypes"): "the address of an array",
    ("serve/wire.py", "sys.modules"): "torch, if the trainer has it",
    ("serve/wire.py", "torch is handed on"): "compared with None, where it is the one of `sys.modules`",
    ("serve/worker.py", "ForkingPickler"): "an error is tried out before it goes the same way",
    ("serve/worker.py", "multiprocessing.get_context"): "starts the workers, with a function of ours",
    (
        "serve/peers.py",
        "all_gather_object",
    ): "receipts between the ranks of one job, in the trainer's own process group",
    ("serve/peers.py", "sys.modules"): "torch, if the trainer has it",
    ("serve/peers.py", "torch.distributed is handed on"): "asked whether it is up",
    ("serve/wrappers.py", "sys.modules"): "four packages that wrap loaders, from a table in the same file",
    ("serve/wrappers.py", "sys._getframe"): "finds who iterates over us",
    ("serve/wrappers.py", "f_globals"): "the name of its module",
    ("serve/wrappers.py", "f_locals"): "the wrapper itself",
    ("serve/device.py", "torch.cuda"): "kept for its streams",
    ("run.py", "sys.modules"): "torch and Accelerate, if the trainer has them",
    ("recipe_yaml.py", "typing.get_type_hints"): "of our own classes",
    ("catalog/remote.py", "builtins"): "the module of an error's class, compared",
    ("__init__.py", "import_module"): "the public names, from a table in the same file",
    ("__init__.py", "globals"): "where they are kept",
    ("fetch/media/images.py", "import_module"): "one of six Pillow plugins, from a table in the same file",
    ("fetch/media/ffmpeg.py", "av is handed on"): "to other functions of the same file, which take it from this one",
    ("fetch/values.py", "sys.modules"): "pyarrow, to have it give memory back",
    ("make/values.py", "literal_eval"): "lists as Python prints them; short, shallow, without names and operators",
    ("make/load.py", "transformers.AutoTokenizer"): "with trust_remote_code=False",
    ("tools/child.py", "Popen"): "the demo starts itself, from a list",
    ("synth/__init__.py", "import_module"): "one of our own modules, from a table in the same file",
    ("synth/facts.py", "format"): "templates of our own, in a table of world.py",
    ("synth/world.py", "format"): "the same",
    ("lerobot/info.py", "format"): "a `Template` of ours, which was parsed into literals and known fields",
    ("lerobot/template.py", "string.Formatter"): "takes a template apart; fills in nothing",
    ("make/chat_budget.py", "locals"): "an argument that jinja2 gives",
    ("make/chat_parts.py", "__self__"): "the value whose method a template calls, which is counted",
    ("make/chat_sandbox.py", "__self__"): "the same",
    ("make/chat_parts.py", "jinja2.filters.make_attrgetter"): "of the sandbox, as the filters of jinja2 use it",
    ("make/chat_parts.py", "jinja2.sandbox.SandboxedEnvironment"): "an annotation",
    ("make/chat_parts.py", "jinja2.sandbox.SandboxedFormatter"): "what formats in the sandbox",
    ("make/chat_parts.py", ".vformat"): "the same",
    ("make/chat_sandbox.py", "from_string"): "chat templates, which run in a sandbox that counts what they do",
    ("make/chat_sandbox.py", "jinja2.sandbox.ImmutableSandboxedEnvironment"): "that sandbox",
    ("make/chat_sandbox.py", "jinja2.Template"): "an annotation",
    ("make/formatters/base.py", "format"): "a formatter's method of that name",
}


NETWORK = {
    "aiohttp",
    "ftplib",
    "http",
    "httpx",
    "requests",
    "smtplib",
    "socket",
    "ssl",
    "urllib3",
    "websockets",
    "xmlrpc",
}
CONNECTS = {
    "catalog/connections.py": "the one pool of connections, with the rule for tokens and hosts",
    "catalog/patience.py": "the deadline of a reply",
    "catalog/stop.py": "a socket pair without a name",
    "catalog/transport.py": "all requests of the Hub and of files behind https",
    "fetch/media/addresses.py": "whether an address is a public one",
    "fetch/media/urls.py": "media behind addresses, where the policy allows it",
    "serve/wire.py": "a socket pair without a name",
}
CLIENTS = {"adlfs", "datasets", "fsspec", "gcsfs", "huggingface_hub", "s3fs", "transformers"}
"""Packages that connect by themselves."""
ASKS_CLIENTS = {
    "catalog/remote.py": "files behind addresses that fsspec knows; for hf:// with the token by our rule",
    "catalog/transport.py": "the Hub's settings from the environment, and no request",
    "make/load.py": "files of a tokenizer by the Hub's client, with the token by our rule",
    "make/open_template.py": "whether transformers is installed, and no request",
    "run.py": "where the user's token is kept, and no request",
}


def test_connections_are_opened_in_one_place_for_the_hub_and_in_one_for_media() -> None:
    found = set()
    for path in PACKAGE.rglob("*.py"):
        name = str(path.relative_to(PACKAGE))
        names = imports_of(path)
        if any(one.partition(".")[0] in NETWORK or one.startswith("urllib.request") for one in names):
            found.add(name)
    assert {name for name in found if not name.startswith(("testing/", "synth/"))} == CONNECTS.keys()


def test_clients_that_connect_by_themselves_are_used_where_it_is_said() -> None:
    found = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if any(one.partition(".")[0] in CLIENTS for one in imports_of(path))
    }
    assert {name for name in found if not name.startswith("testing/")} == ASKS_CLIENTS.keys()


def imports_of(path: Path) -> list[str]:
    """What a file imports, anywhere in it: modules, and names from them."""
    names: list[str] = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return names


def test_the_package_has_nothing_that_turns_data_into_code() -> None:
    found, used = [], set()
    for path in sorted(PACKAGE.rglob("*.py")):
        name = str(path.relative_to(PACKAGE))
        for line, what in findings(ast.parse(path.read_text())):
            if name.startswith("testing/") and what == "format":
                continue  # names of files that a test gives
            reasons = [key for key in ALLOWED if key[0] == name and f"{what}.".startswith(f"{key[1]}.")]
            used.update(reasons)
            if not reasons:
                found.append(f"{name}:{line}: {what}")
    assert found == []
    assert used == set(ALLOWED), "a reason for what is not there any more"


SEEN = {
    "import pickle": "import pickle",
    "import pickle as p\np.loads(x)": "import pickle",
    "from pickle import loads": "import pickle",
    "from pickle import loads as read\nread(x)": "import pickle",
    "import cloudpickle": "import cloudpickle",
    "import dill": "import dill",
    "import marshal": "import marshal",
    "import shelve": "import shelve",
    "from joblib import load": "import joblib",
    "import jsonpickle": "import jsonpickle",
    "import pyarrow.ipc as ipc": "import pyarrow.ipc",
    "import pyarrow as pa\npa.ipc.open_file(x)": "pyarrow.ipc.open_file",
    "from pyarrow import feather": "pyarrow.feather",
    "import tarfile": "import tarfile",
    "import runpy": "import runpy",
    "from runpy import run_path": "import runpy",
    "import code\ncode.interact()": "import code",
    "import ctypes\nctypes.CDLL(x)": "import ctypes",
    "from ctypes import cdll": "import ctypes",
    "import logging.config": "import logging.config",
    "import torch\ntorch.hub.load(x, y)": "torch.hub",
    "eval(text)": "eval",
    "f = exec": "exec",
    "compile(text, '', 'exec')": "compile",
    "__import__(name)": "__import__",
    "import builtins\nbuiltins.eval(x)": "import builtins",
    "import builtins as b\nb.exec(x)": "import builtins",
    "from builtins import eval as e\ne(x)": "import builtins",
    "import builtins\ngetattr(builtins, 'ev' + 'al')(x)": "import builtins",
    "import builtins\ngetattr(builtins, f'{\"ex\"}ec')(x)": "import builtins",
    "import builtins\ngetattr(builtins, name)(x)": "builtins is handed on",
    "import os\ngetattr(os, name)(x)": "os is handed on",
    "__builtins__['exec'](x)": "__builtins__",
    "import builtins\nbuiltins.__dict__['eval'](x)": "builtins.__dict__",
    "import builtins\nvars(builtins)['eval'](x)": "builtins is handed on",
    "globals()['eval'](x)": "globals",
    "import sys\nsys.modules['pickle'].loads(x)": "pickle",
    "import sys\nsys.modules.get('pickle')": "pickle",
    "run = eval\nagain = run\nagain(x)": "eval",
    "(e := eval)(x)": "eval",
    "e: object = eval": "eval",
    "import importlib\nimportlib.import_module(row)": "import_module",
    "from importlib import import_module as im\nim(row)": "import_module",
    "import importlib\nimportlib.import_module('pickle').loads(x)": "pickle",
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
    "import asyncio\nasyncio.create_subprocess_shell(x)": "import asyncio",
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


HIDDEN = {
    # everything at once
    "from yaml import *\nload(t, Loader=Loader)": "import * from yaml",
    "from os import *\nsystem(x)": "import * from os",
    "from json import *": "import * from json",
    # handed on
    "import yaml, json\ny, z = yaml, json\ny.load(t)": "yaml is handed on",
    "import json, yaml\ny = json\ny = yaml\ny.load(t)": "yaml is handed on",
    "import yaml\nself.y = yaml\nself.y.load(t)": "yaml is handed on",
    "import yaml\ndef g(t, m=yaml): m.load(t)": "yaml is handed on",
    "import yaml\n(lambda m=yaml: m.load(t))()": "yaml is handed on",
    "import yaml\nfor y in (yaml,): y.load(t)": "yaml is handed on",
    "import yaml\n[y.load(t) for y in [yaml]]": "yaml is handed on",
    "import yaml\n(yaml if a else b).load(t)": "yaml is handed on",
    "import yaml\n(b or yaml).load(t)": "yaml is handed on",
    "import yaml\n(y := yaml).load(t)": "yaml is handed on",
    "import yaml\n[yaml][0].load(t)": "yaml is handed on",
    "import yaml\n{'y': yaml}['y'].load(t)": "yaml is handed on",
    "import yaml\nmatch yaml:\n    case y: y.load(t)": "yaml is handed on",
    "import yaml\nread(t, yaml)": "yaml is handed on",
    "import os.path\nf = os.path": "import os.path",
    "import numpy as np\nlib = np.lib\nlib.npyio.load(p)": "numpy.lib",
    "import torch\ns = torch.serialization": "torch.serialization",
    "import json as y\nimport yaml as y\ny.load(t)": "y stands for two things",
    # by name
    "import operator, builtins\noperator.attrgetter('eval')(builtins)": "builtins is handed on",
    "import operator\noperator.attrgetter('a.b')": ".attrgetter",
    "from operator import attrgetter\nimport os\nattrgetter('system')(os)(x)": "operator.attrgetter",
    "from operator import methodcaller\nimport os\nmethodcaller('system', x)(os)": "operator.methodcaller",
    "import builtins\nbuiltins.__getattribute__('eval')": "__getattribute__",
    "import os\nobject.__getattribute__(os, 'system')(x)": "os is handed on",
    "import os\nos.__dict__['system'](x)": "os.__dict__",
    "import os\nvars(os)['system'](x)": "os is handed on",
    "import os\nvars(os).get('system')(x)": "os is handed on",
    "vars()['os'].system(x)": "vars()",
    "import pkgutil\npkgutil.resolve_name('os:system')": "import pkgutil",
    "finder.resolve_name('os:system')": ".resolve_name",
    "import yaml\ngetattr(yaml, *['load'])(x)": "yaml is handed on",
    "import yaml\nn = 'load'\ngetattr(yaml, n)(x)": "yaml is handed on",
    "import yaml\nf = getattr\nf(yaml, 'load')(x)": "yaml is handed on",
    "import yaml\ngetattr(getattr(yaml, 'loader'), 'UnsafeLoader')": "yaml.loader.UnsafeLoader",
    "eval.__call__(x)": "eval",
    "f.__globals__['o' + 's'].system(x)": "__globals__",
    "getattr(f, '__globals__')": "__globals__",
    "().__class__.__base__.__subclasses__()": "__subclasses__",
    "import sys\nm = sys.modules\nm['os'].system(x)": "sys.modules",
    "import sys\nsys.modules['os'].system(x)": "os",
    "from sys import modules\nmodules['pickle'].loads(x)": "pickle",
    "import sys\nsys.path.insert(0, x)": "sys.path.insert",
    # the same by another path
    "import yaml\nyaml.loader.UnsafeLoader(x).get_single_data()": "yaml.loader.UnsafeLoader",
    "from yaml.loader import UnsafeLoader\nUnsafeLoader(x)": "import yaml.loader",
    "import yaml\nyaml.constructor.UnsafeConstructor": "yaml.constructor.UnsafeConstructor",
    "import torch\ntorch.serialization.load(p)": "torch.serialization.load",
    "from torch.serialization import load\nload(p)": "import torch.serialization",
    "from torch import serialization": "torch.serialization",
    "import numpy as np\nnp.lib.npyio.load(p)": "numpy.lib.npyio.load",
    "import multiprocessing.connection as c\nc.Connection(fd).recv()": "multiprocessing.connection.Connection",
    "import yaml\nyaml.SafeLoader.add_constructor(t, f)": ".add_constructor",
    "loader.add_multi_constructor(t, f)": ".add_multi_constructor",
    "import yaml\nclass A(yaml.Loader): pass": "yaml.Loader",
    "import glob\nglob.os.system(x)": "glob.os.system",
    "import random\nrandom._os.system(x)": "random._os.system",
    "from glob import os\nos.system(x)": "glob.os",
    "from headrace.catalog import files\nfiles.os.system(x)": "headrace.catalog.files.os.system",
    "from headrace.recipe_yaml import yaml\nyaml.load(t)": "headrace.recipe_yaml.yaml",
    "from headrace.serve.wire import ForkingPickler": "ForkingPickler",
    "from .tools import yaml": "import .tools",
    "self.os.system(x)": "os",
    "from headrace import recipe_yaml as r\nm = r\nm.yaml.load(t, Loader=m.yaml.Loader)": "yaml",
    "from torch import nn\nm = nn.modules\nm.torch.load(p)": "torch.nn.modules",
    "import torch\nf = torch.nn.functional": "torch.nn.functional",
    "import dataclasses\ndataclasses.FunctionType(c, {})": ".FunctionType",
    "import torch.distributed as dist\ndist.broadcast_object_list(x)": "torch.distributed.broadcast_object_list",
    # programs and templates
    "import subprocess\nsubprocess.run([row])": "subprocess.run",
    "import subprocess\nsubprocess.run(row, 0, None, None, None, None, None, True, True)": "subprocess.run",
    "import subprocess\nsubprocess.check_output(row)": "subprocess.check_output",
    "from subprocess import check_output\ncheck_output(row)": "subprocess.check_output",
    "import asyncio\nasyncio.create_subprocess_exec(row)": "import asyncio",
    "import os\nos.posix_spawn(row)": "os.posix_spawn",
    "import jinja2\njinja2.Template(text)": "jinja2.Template",
    "from jinja2 import Template\nTemplate(text).render()": "jinja2.Template",
    "import jinja2\njinja2.Environment().compile(text)": "jinja2.Environment",
    "from jinja2.sandbox import SandboxedEnvironment": "jinja2.sandbox.SandboxedEnvironment",
    "import string\nstring.Formatter().vformat(t, a, k)": "string.Formatter",
    "from PIL import ImageMath\nImageMath.eval(x)": "PIL.ImageMath",
    "import importlib.machinery\nimportlib.machinery.ExtensionFileLoader('a', p)": "import importlib.machinery",
    "import sqlite3\nsqlite3.connect(x).load_extension(y)": ".load_extension",
    "import typing\ntyping.get_type_hints(x)": "typing.get_type_hints",
    "import inspect\ninspect.signature(f, eval_str=True)": "eval_str=True",
    "import transformers\ntransformers.pipeline(x, **options)": "transformers.pipeline",
    "import pandas\npandas.read_hdf(x)": "pandas.read_hdf",
    "import pyarrow\npyarrow.deserialize(x)": "pyarrow.deserialize",
    "import pydoc\npydoc.locate(x)": "import pydoc",
    "import webbrowser": "import webbrowser",
    "from functools import reduce\nreduce(getattr, names, thing)": "getattr is handed on",
    "f = getattr\nf(thing, name)": "getattr is handed on",
    "print.__self__.eval(x)": "__self__",
    "getattr(print, '__self__').exec(x)": "__self__",
    "vars(thing)['eval'](x)": "vars(...) [...]",
    "vars(thing).get('eval')(x)": "vars(...) get",
    "import dataclasses\ndataclasses.make_dataclass(x, [])": ".make_dataclass",
    "import typing\ntyping.ForwardRef(x)._evaluate(a, b)": "._evaluate",
    "import concurrent.futures as c\nc.ProcessPoolExecutor().submit(x)": ".ProcessPoolExecutor",
}
"""What a list of forbidden names alone did not find."""


@pytest.mark.parametrize("source", [*SEEN, *HIDDEN])
def test_what_is_looked_for_is_found(source: str) -> None:
    found = [what for _, what in findings(ast.parse(source))]
    assert any(what.startswith((SEEN | HIDDEN)[source]) for what in found), found


HARMFUL = {
    *map(id, (eval, exec, compile, __import__, os.system, os.popen, os.execv, pickle.loads, pickle.Unpickler)),
    *map(id, (marshal.loads, subprocess.run, subprocess.Popen, importlib.import_module, ctypes.CDLL, np.load)),
    *map(id, (types.FunctionType, types.CodeType, yaml.load, yaml.unsafe_load, yaml.Loader, yaml.UnsafeLoader)),
}


@pytest.mark.parametrize("root", sorted(USABLE & {*sys.stdlib_module_names, "yaml", "numpy", "collections.abc"}))
def test_no_module_that_may_be_imported_leads_to_a_harmful_one(root: str) -> None:
    """As those of this Python are: modules inside modules, by the ways that are let through."""
    seen, ways = set(), [(root, importlib.import_module(root))]
    for way, module in ways:
        for name, value in vars(module).items():
            whole = f"import {root}\n{way}.{name}"
            if not name.isidentifier() or (isinstance(value, types.ModuleType) and id(value) in seen):
                continue
            if id(value) in HARMFUL:
                assert list(findings(ast.parse(f"{whole}(x)"))), whole
            elif isinstance(value, types.ModuleType) and not list(findings(ast.parse(f"{whole}.anything"))):
                seen.add(id(value))
                ways.append((f"{way}.{name}", value))


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
        "import torch\ntorch.from_numpy(array)",
        "import torch\ntorch.load(path, weights_only=True)",
        "model.eval()",
        "self.exec(x)",
        "import os\nos.stat(path)",
        "getattr(row, name)",
        "import os\ngetattr(os, 'O_TMPFILE', 0)",
        "known['eval']",
        "import importlib.util\nimportlib.util.find_spec('torch')",
        "loader.load(path)",
        "def compiled(code): return code",
        "evaluate(x)",
        "import numpy as np\nnp.loadtxt(path)",
        "from types import MappingProxyType",
        "import json\nread = json.load\nread(file)",
        "import numpy as np\nf = np.cumsum",
        "import numpy as np\nnp.maximum.accumulate(x)",
        "import yaml\nclass Loader(yaml.SafeLoader):\n    pass",
        "import yaml\ntry:\n    f()\nexcept (OSError, yaml.YAMLError):\n    pass",
        "from importlib import metadata\nmetadata.version('torch')",
        "import os\nos.path.join(a, b)",
        "from os import path\npath.exists(a)",
        "import os\nopen_file = os.open",
        "import time\nhasattr(time, 'CLOCK_BOOTTIME')",
        "from operator import itemgetter\nitemgetter(1)",
        "from collections import abc\nabc.Mapping",
        "from headrace.errors import shown\nf = shown",
        "vars(self).items()",
        "self.__dict__.update(state)",
        "{'y': rows}['y'].load(t)",
        "for y in (rows,): y.load(t)",
        "from contextlib import suppress\nwith suppress(OSError): pass",
        "import multiprocessing\nmultiprocessing.parent_process()",
        "row.text('code')",
    ],
)
def test_what_is_harmless_is_let_through(source: str) -> None:
    assert list(findings(ast.parse(source))) == []
