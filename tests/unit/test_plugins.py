"""Policies of other packages: found as an installation leaves them, and refused where they are
broken."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples/comb"
GROUP = "yggrt.policies"
DRAFTERS = "yggrt.drafters"

USE = """
import sys
sys.path.insert(0, {tests!r})
from scripted import OracleDrafter, ScriptedGraphs
from yggrt.core.spec import format_tree_spec, parse_tree_spec, policy_names
from yggrt.engine import Engine
from yggrt.gate import OpenGate
from yggrt.policies import Room, settings_of
assert {{"comb", "egt", "plain"}} <= set(policy_names())
spec = parse_tree_spec("comb:teeth=3,depth=4")
assert format_tree_spec(spec) == "comb:depth=4,teeth=3"
graphs = ScriptedGraphs()
drafter, cache = OracleDrafter(graphs=graphs), graphs.new_cache()
engine = Engine(graphs, cache, drafter, spec, lambda rows, context: 1.0, 0.0, OpenGate())
tokens = [engine.start([1, 2, 3])]
while engine.room:
    tokens += engine.step().tokens
assert tokens == graphs.plain([1, 2, 3], len(tokens))
assert engine.stats.accepted > 0
room = Room(row_counts=(1, 8, 16), widths=(1, 4), max_depth=4, max_expanded=13)
assert [one.verify for one in settings_of("comb", room)] == [5, 9, 9]
print("used")
"""


def installed(folder: Path, name: str, entry_points: dict[str, str], group: str = GROUP) -> Path:
    """What an installer writes of a package beside its modules."""
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = [f"{key} = {value}" for key, value in entry_points.items()]
    (info / "entry_points.txt").write_text("\n".join([f"[{group}]", *lines]))
    return folder


def python(program: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {"PYTHONPATH": str(folder), "PATH": ""}
    return subprocess.run(
        [sys.executable, "-c", program],
        env=environment, cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip


def refusal(text: str, folder: Path) -> str:
    program = (
        "from yggrt.core.errors import RequestError\n"
        "from yggrt.core.spec import parse_tree_spec\n"
        f"try: parse_tree_spec({text!r})\n"
        "except RequestError as error: print(error.message, '|', error.tip)\n"
    )
    done = python(program, folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_example_is_one_file_and_one_entry_point(tmp_path: Path) -> None:
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    points = project["entry-points"][GROUP]
    assert len(points) == 1
    site = installed(tmp_path / "site", "yggdrasil_comb", points)
    shutil.copy(EXAMPLE / "comb_policy.py", site)
    done = python(USE.format(tests=str(ROOT / "tests")), site)
    assert (done.returncode, done.stdout) == (0, "used\n"), done.stderr
    assert "comb:depth=4,teeth=2" in refusal("beam:width=2", site)
    assert "comb has no key 'width'; its keys are depth, teeth" in refusal("comb:width=2", site)


def test_a_policy_that_cannot_be_imported_is_named_with_its_package(tmp_path: Path) -> None:
    site = installed(tmp_path / "site", "broken", {"comb": "nowhere_to_be_found:Comb"})
    said = refusal("comb:depth=4", site)
    assert "'comb' of the policies does not load: No module named 'nowhere_to_be_found'" in said
    assert "broken" in said
    # The others work all the same, and the list of examples leaves it out.
    assert refusal("egt:width=4,depth=4", site) == ""
    assert "egt:width=4" in refusal("beam", site)


def test_two_packages_with_one_name_are_refused(tmp_path: Path) -> None:
    site = installed(tmp_path / "site", "first", {"comb": "comb_policy:Comb"})
    installed(site, "second", {"comb": "comb_policy:Comb"})
    said = refusal("comb:depth=4,teeth=2", site)
    assert "registered 2 times, by first, second" in said


PARROT = """
from yggrt.drafters import UNLIMITED, Drafter

class Parrot(Drafter):
    max_expanded = max_model_len = UNLIMITED

    def start(self, ids):
        self.ids = list(ids)

    def candidates(self, paths, num):
        return [[((path or self.ids)[-1], 0.5)] for path in paths]

    def commit(self, tokens):
        self.ids += tokens

    def rewind(self, num_tokens):
        del self.ids[num_tokens:]
"""
USE_PARROT = """
from yggrt.core import plugins
from yggrt.core.errors import RequestError
from yggrt.core.spec import parse_tree_spec
from yggrt.drafters import GROUP
from yggrt.policies import policy_for
drafter = plugins.find(GROUP, "parrot")()
drafter.start([1, 7])
spec = parse_tree_spec("sequence:depth=3")
print(policy_for(spec)(7, spec, drafter, 0.0).tokens)
try: plugins.find(GROUP, "cuckoo")
except RequestError as error: print(error.message)
"""


def test_a_drafter_is_one_file_and_one_entry_point_as_well(tmp_path: Path) -> None:
    site = installed(tmp_path / "site", "parrot", {"parrot": "parrot:Parrot"}, DRAFTERS)
    (site / "parrot.py").write_text(PARROT)
    done = python(USE_PARROT, site)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "(7, 7, 7, 7)",
        "none of the drafters is called 'cuckoo'; there are lookahead, ngram, parrot",
    ]


def test_everything_built_in_is_registered() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    modules = {value.partition(":")[0] for value in project["entry-points"][GROUP].values()}
    files = {path.stem for path in (ROOT / "yggrt/policies").glob("*.py")} - {"__init__"}
    assert modules == {f"yggrt.policies.{name}" for name in files}
