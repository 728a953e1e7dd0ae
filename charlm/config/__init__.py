"""The config of a run: read from YAML, changed by overrides, and checked as a whole.

schema.py      Config: declares every option, with its default, range and help
optimizers.py  the options of optimizers and learning rate schedules; those of cells are in charlm/cells/
parse.py       a config from YAML and settings over it, or all its faults at once; the configs that come with charlm
yaml.py        YAML as people expect it
listing.py     the options that a config has: listed, compared, written
"""

from charlm.config.listing import commented, differences, dump_config, flatten, ignored_options
from charlm.config.parse import Settings, load_config, merged, parse_config, purpose, read_settings, shipped_configs
from charlm.config.schema import Config
