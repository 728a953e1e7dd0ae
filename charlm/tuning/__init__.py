"""`charlm tune`: a search for better settings around a config. Each trial is an ordinary run."""

from charlm.errors import StudyError

try:
    import optuna  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "optuna":
        raise
    raise StudyError("tune: optuna is not installed; pip install optuna matplotlib") from None
