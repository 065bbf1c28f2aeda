"""The stubs say what the module has, no more and no less, with the same arguments and defaults."""

import ast
import inspect
from pathlib import Path
from typing import Any

import bifolio
from bifolio import _native

STUB = Path(bifolio.__file__).with_name("_native.pyi")
TREE = ast.parse(STUB.read_text())
# What every class has.
OBJECT = {*dir(object), "__module__", "__weakref__", "__buffer__", "__release_buffer__", "__getitem__", "__len__"}


def names(body: list[ast.stmt]) -> dict[str, ast.stmt]:
    return {node.name: node for node in body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}


def arguments(function: ast.FunctionDef) -> list[tuple[str, Any, Any]]:
    """Name, kind and default of every argument."""
    given, kinds = function.args, inspect.Parameter
    positional = [(arg.arg, kinds.POSITIONAL_ONLY) for arg in given.posonlyargs]
    positional += [(arg.arg, kinds.POSITIONAL_OR_KEYWORD) for arg in given.args]
    defaults = [kinds.empty] * (len(positional) - len(given.defaults)) + [ast.literal_eval(d) for d in given.defaults]
    found = [(name, kind, default) for (name, kind), default in zip(positional, defaults, strict=True)]
    if given.vararg:
        found.append((given.vararg.arg, kinds.VAR_POSITIONAL, kinds.empty))
    for arg, default in zip(given.kwonlyargs, given.kw_defaults, strict=True):
        found.append((arg.arg, kinds.KEYWORD_ONLY, kinds.empty if default is None else ast.literal_eval(default)))
    return found


def check(function: ast.FunctionDef, real: Any) -> None:
    if function.name in {"__getitem__", "__len__", "__buffer__", "__await__", "__new__"}:
        return
    real_arguments = [(p.name, p.kind, p.default) for p in inspect.signature(real).parameters.values()]
    # Nobody passes it by name.
    mine, theirs = ([arg for arg in found if arg[0] != "self"] for found in (arguments(function), real_arguments))
    assert mine == theirs, function.name


def test_functions_are_those_of_the_module() -> None:
    stubbed = names(TREE.body)
    real = {name for name in dir(_native) if not name.startswith("__")}
    assert stubbed.keys() == real
    for name, node in stubbed.items():
        if isinstance(node, ast.FunctionDef):
            check(node, getattr(_native, name))


def test_classes_are_those_of_the_module() -> None:
    for name, node in names(TREE.body).items():
        if not isinstance(node, ast.ClassDef):
            continue
        real = getattr(_native, name)
        if issubclass(real, BaseException):
            assert [ast.unparse(base) for base in node.bases] == [base.__name__ for base in real.__bases__]
            continue
        stubbed = names(node.body)
        # The CUDA array interface is there on some devices only, but the class has it.
        assert stubbed.keys() - OBJECT == {member for member in vars(real) if member not in OBJECT} - {"__doc__"}
        for member, function in stubbed.items():
            assert isinstance(function, ast.FunctionDef)
            if any(ast.unparse(decorator) == "property" for decorator in function.decorator_list):
                assert inspect.isgetsetdescriptor(vars(real)[member])
            else:
                check(function, getattr(real, member, None))


def test_everything_public_is_described() -> None:
    for name in bifolio.__all__:
        if name != "__version__":
            assert getattr(bifolio, name).__doc__, name
    kinds = "Acquired", "File", "Future", "Mapping", "Memory", "Region", "Report"
    for kind in (getattr(bifolio, name) for name in kinds):
        for name, member in vars(kind).items():
            if not name.startswith("_"):
                assert member.__doc__, f"{kind.__name__}.{name}"


def test_the_package_says_that_it_has_types() -> None:
    assert STUB.with_name("py.typed").exists()
    assert set(bifolio.__all__) <= set(dir(bifolio))
