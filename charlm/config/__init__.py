"""The config of a run: read from YAML, changed by overrides, and checked as a whole.

schema.py      Config: every option, its default, its range and its help
optimizers.py  the options of optimizers and learning rate schedules
parse.py       load_config, parse_config: a config from YAML and overrides, or all its faults at once
overrides.py   KEY=VALUE: what overrides set
faults.py      pydantic's errors as lines for a person
yaml.py        YAML as people expect it
options.py     the options of a config: listed, compared, written
shipped.py     the configs that come with charlm
"""

from charlm.config.options import commented, differences, dump_config, flatten, ignored_options
from charlm.config.overrides import valid_overrides
from charlm.config.parse import load_config, parse_config
from charlm.config.schema import Config

__all__ = [
    "Config", "commented", "differences", "dump_config", "flatten", "ignored_options", "load_config", "parse_config",
    "valid_overrides",
]  # fmt: skip
