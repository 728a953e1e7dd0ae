"""What the exercises share: finds open holes, runs an exercise's check, and says in plain words what is wrong."""

import ast
import inspect
import linecache
import re
import runpy
import sys
import traceback
from pathlib import Path

import numpy as np

CHECKS = Path(__file__).absolute().parent.parent / "checks"
"""The folder with the checks, and so the answers. A class may get the exercises without it."""


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
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __pow__ = __rpow__ = __matmul__ = __rmatmul__ = _again
    __lt__ = __le__ = __gt__ = __ge__ = __eq__ = __ne__ = __and__ = __or__ = __invert__ = _again
    __abs__ = __pos__ = __round__ = __setitem__ = _again
    __bool__ = __float__ = __index__ = __len__ = __iter__ = __array__ = _stop

    def __format__(self, _form=""):
        return "..."

    __repr__ = __format__

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


def examine(names):
    """Say what is right and what is wrong in the exercise with these global names; end with exit code 0 or 1."""
    file = Path(names["__file__"])
    is_right, verdict = judge(file, names)
    if not is_right:
        sys.exit(verdict)
    print(verdict)
    following = sorted(other for other in file.parent.glob("[0-9]*.py") if other.name > file.name)
    if following:
        here = Path.cwd()
        print("Next: python", following[0].relative_to(here) if following[0].is_relative_to(here) else following[0])
    else:
        print("That was the last one.")


def judge(file, names):
    """Whether all of an exercise is right, and the verdict in words.

    names: the global names of the exercise. While there are holes, only what can be computed without them is checked.
    """
    passed.clear()
    source = file.read_text(encoding="utf-8")
    holes = open_holes(source)
    left = f"{len(holes)} left to fill in; replace `...` on line {', '.join(map(str, holes))}"
    more = f"\n{left}" if holes else ""
    own_check = check_of(file)
    if not own_check:
        return not holes, f"{file.name}: {left if holes else 'nothing left to fill in. Your teacher has the check.'}"
    check = runpy.run_path(str(own_check))["check"]
    try:
        with np.errstate(all="ignore"):
            seen = check_so_far(check, names, source) if holes else check(**arguments_of(check, names))
    except Wrong as wrong:
        return False, f"{file.name}: not yet. {wrong}{more}"
    except Exception as error:
        return False, f"{file.name}: {_stopped(error, file, own_check)}{more}"
    if holes:
        so_far = f"right so far: {', '.join(passed)}; " if passed else ""
        return False, f"{file.name}: {so_far}{left}"
    return True, f"{file.name}: right. {seen}"


def check_of(file):
    """The check of an exercise, whose name may have additions such as a learner's; None if it is not here."""
    return next((check for check in CHECKS.glob("[0-9]*.py") if check.stem in file.stem), None)


def arguments_of(check, names):
    """What a check is called with: those functions of the exercise that its parameters name."""
    parameters = inspect.signature(check).parameters
    for name in parameters:
        expect(callable(names.get(name)), f"The function {name} is missing. Take it from the exercise again.")
    return {name: names[name] for name in parameters}


def check_so_far(check, names, source):
    """Run the check line by line, without those that a hole stops, or that need a value from such a line."""
    functions = [node for node in _Holes().visit(ast.parse(source)).body if isinstance(node, ast.FunctionDef)]
    names = {**names, "HOLE": Hole()}
    exec(compile(ast.fix_missing_locations(ast.Module(functions, [])), names["__file__"], "exec"), names)
    names, missing = {**check.__globals__, **arguments_of(check, names)}, set()
    file = check.__code__.co_filename
    *_, own = ast.parse(Path(file).read_text(encoding="utf-8")).body
    for line in own.body[:-1]:  # the last one returns what was seen
        before = {name: value.copy() for name, value in names.items() if isinstance(value, np.ndarray)}
        try:
            exec(compile(ast.Module([line], []), file, "exec"), names)
        except Exception as error:
            is_open = isinstance(error.__cause__ or error, Open)  # the cause where numpy raises its own
            if not is_open and not (isinstance(error, NameError) and error.name in missing):
                raise
            names |= before  # what the line has changed on its way
            used = [node for node in ast.walk(line) if isinstance(node, ast.Name)]
            for node in used:
                if isinstance(node.ctx, ast.Store):
                    names.pop(node.id, None)
            missing |= {node.id for node in used} - names.keys()


def _stopped(error, file, check):
    """Where a Python error has stopped an exercise, and why; for arrays that do not fit, their shapes."""
    frames = {}  # the innermost of each file
    for frame, line in traceback.walk_tb(error.__traceback__):
        frames[Path(frame.f_code.co_filename).absolute()] = frame, line
    place = file.absolute() if file.absolute() in frames else check
    frame, line = frames[place]
    code = linecache.getline(str(place), line).strip()
    where = "the check stopped at what your functions return" if place == check else f"line {line} stopped"
    fault = f"{type(error).__name__}: {error}"
    values = {**frame.f_globals, **frame.f_locals}
    arrays = {name: values.get(name) for name in re.findall(r"[^\W\d]\w*", code)}
    shapes = [f"{name} {list(value.shape)}" for name, value in arrays.items() if isinstance(value, np.ndarray)]
    is_of_shapes = re.search("match|broadcast|aligned|same shape", str(error))
    if shapes and is_of_shapes and isinstance(error, ValueError | IndexError):
        fault = f"The shapes do not fit: {', '.join(shapes)}."
        if "@" in code:
            fault += " In A @ B the last length of A must be the first of B; A.T has the lengths of A exchanged."
    return f"{where}.\n  {code}\n{fault}"


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
    return f"{value:.6g}" if isinstance(value, int | float | np.floating) else str(np.asarray(value)).replace("\n", "")
