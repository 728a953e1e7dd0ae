"""What the exercises share: finds open holes, runs an exercise's check, and says in plain words what is wrong."""

import ast
import sys
import traceback
from pathlib import Path

import numpy as np


class Wrong(Exception):
    """An answer is not right yet; the message says why."""


class Open(Exception):
    """A hole was used in a way that leaves nothing to compute."""


class Hole:
    """What a `...` is: whatever is computed from it is a hole, too."""

    def _again(self, *_, **__):
        return self

    def _stop(self, *_, **__):
        raise Open

    __array_ufunc__ = __array_function__ = __call__ = __getitem__ = __neg__ = _again
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _again
    __pow__ = __rpow__ = __matmul__ = __rmatmul__ = __lt__ = __le__ = __gt__ = __ge__ = _again
    __bool__ = __float__ = __index__ = __iter__ = __array__ = _stop

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return self


passed = []
"""What was compared and is right."""


def expect(condition, message):
    if not condition:
        raise Wrong(message)


def close(found, right, tolerance=1e-6):
    try:
        found, right = np.asarray(found, dtype=float), np.asarray(right, dtype=float)
    except (TypeError, ValueError):
        return False
    return found.shape == right.shape and bool(np.allclose(found, right, rtol=tolerance, atol=tolerance))


def compare(name, found, right, hint, *mistakes, tolerance=1e-6):
    """Wrong unless `found` is close to `right`, or still a hole. mistakes: pairs of the value that a mistake gives, and
    its own hint."""
    if isinstance(found, Hole):
        return
    if close(found, right, tolerance):
        passed.append(name)
        return
    expect(found is not None, f"{name}: found None, so nothing was returned.\n{hint}")
    expect(np.shape(found) == np.shape(right), f"{name}: found {_form(found)}, expected {_form(right)}.\n{hint}")
    hint = next((own for value, own in mistakes if close(found, value, tolerance)), hint)
    with np.printoptions(precision=4, suppress=True):
        expect(False, f"{name}: found {_short(found)}, expected {_short(right)}.\n{hint}")


def numeric(loss, x, epsilon=1e-5):
    """The gradient of loss() with respect to the array x, by experiment."""
    dx = np.zeros_like(x)
    for place in np.ndindex(x.shape):
        values = []
        for step in (epsilon, -epsilon):
            x[place] += step
            values.append(loss())
            x[place] -= step
        dx[place] = (values[0] - values[1]) / (2 * epsilon)
    return dx


def examine(check):
    """Run the check of an exercise and end the program: exit code 0 if all is right, else 1.

    While there are holes, only what can be computed without them is checked.
    """
    file = Path(check.__code__.co_filename)
    source = file.read_text(encoding="utf-8")
    holes = open_holes(source)
    left = f"{len(holes)} left to fill in; replace `...` on line {', '.join(map(str, holes))}"
    more = f"\n{left}" if holes else ""
    try:
        with np.errstate(all="ignore"):
            seen = check_so_far(check, source) if holes else check()
    except Wrong as wrong:
        sys.exit(f"{file.name}: not yet. {wrong}{more}")
    except Exception as error:
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename) == file]
        fault = f"{frames[-1].line}\n{type(error).__name__}: {error}"
        sys.exit(f"{file.name}: line {frames[-1].lineno} stopped.\n  {fault}{more}")
    if holes:
        so_far = f"right so far: {', '.join(passed)}; " if passed else ""
        sys.exit(f"{file.name}: {so_far}{left}")
    print(f"{file.name}: right. {seen}")
    following = sorted(file.parent.glob(f"{int(file.name[:2]) + 1:02}_*.py"))
    if following:
        here = Path.cwd()
        print("Next: python", following[0].relative_to(here) if following[0].is_relative_to(here) else following[0])
    else:
        print("That was the last one.")


def check_so_far(check, source):
    """Run the check line by line, without those that a hole stops, or that need a value from such a line."""
    tree = _Holes().visit(ast.parse(source))
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    names, missing = {**check.__globals__, "HOLE": Hole()}, set()
    exec(compile(ast.fix_missing_locations(ast.Module(functions, [])), check.__code__.co_filename, "exec"), names)
    [own] = [node for node in functions if node.name == check.__name__]
    for line in own.body[:-1]:  # the last one returns what was seen
        try:
            exec(compile(ast.Module([line], []), check.__code__.co_filename, "exec"), names)
        except Exception as error:
            is_open = isinstance(error.__cause__ or error, Open)  # the cause where numpy raises its own
            if not is_open and not (isinstance(error, NameError) and error.name in missing):
                raise
            used = [node for node in ast.walk(line) if isinstance(node, ast.Name)]
            for node in used:
                if isinstance(node.ctx, ast.Store):
                    names.pop(node.id, None)
            missing |= {node.id for node in used} - names.keys()


class _Holes(ast.NodeTransformer):
    def visit_Constant(self, node):
        return ast.copy_location(ast.Name("HOLE", ast.Load()), node) if node.value is ... else node


def open_holes(source):
    """The lines in which `...` stands."""
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant)]
    return sorted(node.lineno for node in nodes if node.value is ...)


def _form(value):
    shape = np.shape(value)
    return f"the shape {list(shape)}" if shape else "one number"


def _short(value):
    return f"{value:.6g}" if isinstance(value, int | float | np.floating) else str(value).replace("\n", "")
