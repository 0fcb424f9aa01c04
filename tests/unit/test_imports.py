"""The order of imports, as CONTRIBUTING.md draws it."""

from __future__ import annotations

import ast
import re
from graphlib import TopologicalSorter
from typing import Dict, Set

import pytest

from tests.conftest import REPO

PACKAGE = REPO / "fairseq_tg"
FILES = {
    "fairseq_tg." + ".".join(path.relative_to(PACKAGE).with_suffix("").parts): path for path in PACKAGE.rglob("*.py")
}


def picture() -> Dict[str, int]:
    """The place of every module and folder in the order."""
    (block,) = re.findall(r"```imports\n(.*?)```", (REPO / "CONTRIBUTING.md").read_text(), re.DOTALL)
    return {name: place for place, line in enumerate(block.splitlines()) for name in line.split()}


def imports(module: str) -> Set[str]:
    """The modules of the package that a module imports, wherever in its code."""
    found = set()
    for node in ast.walk(ast.parse(FILES[module].read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {node.module or ""} | {f"{node.module}.{alias.name}" for alias in node.names}
            assert not node.level, f"{module} has a relative import"
    return {name for name in found if name in FILES}


def test_every_module_is_in_the_picture() -> None:
    tops = {module.split(".")[1] for module in FILES} - {"__init__"}
    assert tops == set(picture())


@pytest.mark.parametrize("module", sorted(set(FILES) - {"fairseq_tg.__init__"}))
def test_nothing_is_imported_backwards(module: str) -> None:
    places = picture()
    top = module.split(".")[1]
    others = {name for name in imports(module) if name.split(".")[1] not in (top, "__init__")}
    behind = {name for name in others if places[name.split(".")[1]] >= places[top]}
    assert not behind


def names_in(node: ast.AST) -> str:
    """The name of a module of the package that a constant is, or that a text with values in it begins to be."""
    if isinstance(node, ast.JoinedStr) and isinstance(node.values[0], ast.Constant):
        begun = str(node.values[0].value)
        return begun if begun.startswith("fairseq_tg.") else ""
    return node.value if isinstance(node, ast.Constant) and node.value in FILES else ""


def test_one_module_is_imported_by_its_name() -> None:
    """`plugin`, by `registration`: others would be where the order of imports does not see them."""
    trees = {module: ast.parse(path.read_text()) for module, path in FILES.items()}
    named = {(module, names_in(node)) for module, tree in trees.items() for node in ast.walk(tree) if names_in(node)}
    itself = {(module, module) for module in FILES}  # which a module may start a process of
    assert named - itself == {("fairseq_tg.registration", "fairseq_tg.plugin")}


def test_flows_go_up_the_list() -> None:
    """Of those names that are in it."""
    (block,) = re.findall(r"## The flows\n.*?```text\n(.*?)```", (REPO / "CONTRIBUTING.md").read_text(), re.DOTALL)
    flows, places = [], picture()
    for line in block.splitlines():
        first, *calls = line.split("─►")
        names = [*first.split()[-1:], *(re.split(r"\W+", call.strip())[0] for call in calls)]
        flows.append([places[name] for name in names if name in places])
    assert len(flows) > 10 and all(flow == sorted(flow, reverse=True) for flow in flows)


def test_there_is_no_circle() -> None:
    list(TopologicalSorter({module: imports(module) - {module} for module in FILES}).static_order())


@pytest.mark.parametrize(
    "module", ["compiled", "evaluation.options", "recipe.options", "serve.options", "serve.server", "cli"]
)
def test_what_starts_at_once_imports_nothing_heavy(module: str) -> None:
    """Also through others, but for what a function imports when it is called."""
    heavy, seen, waiting = set(), set(), [f"fairseq_tg.{module}"]
    waiting += [f"{waiting[0]}.{name}" for name in ("__init__", "translator", "filter")]
    while waiting:
        name = waiting.pop()
        if name not in FILES or name in seen:
            continue
        seen.add(name)
        for node in ast.parse(FILES[name].read_text()).body:
            for found in [alias.name for alias in node.names] if isinstance(node, ast.Import) else []:
                heavy |= {found.split(".")[0]} & {"torch", "fairseq"}
            if isinstance(node, ast.ImportFrom):
                heavy |= {str(node.module).split(".")[0]} & {"torch", "fairseq"}
                waiting += [str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)]
    assert len(seen) > 1 and not heavy


def roots_of_fairseq(tree: ast.AST) -> Set[str]:
    """What a module calls those of fairseq's names that it imports."""
    found: Set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {(a.asname or a.name).split(".")[0] for a in node.names if a.name.split(".")[0] == "fairseq"}
        elif isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] == "fairseq":
            found |= {alias.asname or alias.name for alias in node.names}
    return found


def root(node: ast.AST) -> str:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def test_fairseq_is_changed_in_one_place() -> None:
    """By an attribute that is set, or with `read_data_only_in`."""
    changing = set()
    for module, path in FILES.items():
        tree = ast.parse(path.read_text())
        theirs = roots_of_fairseq(tree)
        for node in ast.walk(tree):
            targets = node.targets if isinstance(node, ast.Assign) else []
            changed = [target for target in targets if isinstance(target, ast.Attribute)]
            if isinstance(node, ast.Call) and root(node.func) in ("read_data_only_in", "setattr"):
                changed = node.args[:1]
            if any(root(target) in theirs for target in changed):
                changing.add(module)
    assert changing == {"fairseq_tg.loading.changes"}
