"""The parts of Hydra used here that are not its public API; ``hydra._internal`` is imported in no
other file. Hydra's range in pyproject.toml stays within 1.3 because of them.

- ``Hydra``: composes a configuration and knows the options of each group. The public ``compose``
  has neither run modes nor ``runtime.choices`` of a folder given on the command line.
- ``create_config_search_path``: where ``Hydra`` looks for yaml files.
- ``ConfigLoaderImpl``: sets overrides of single keys in a composed configuration, so that the jobs
  of a sweep that choose the same files share one composition.
- ``ConfigRepository``, ``ConfigSearchPathImpl``: read one yaml file of a group, without composing,
  for the parts of ``pe=combined`` and for encodings swapped in at test time.
- ``BasicSweeper``: splits overrides with several values into jobs, in Hydra's order.
- ``Callbacks``: the callbacks of a configuration, which jobs and launchers call.
- ``get_args_parser``: Hydra's own flags (--cfg, --info, -m, ..).
"""

from hydra._internal.callbacks import Callbacks
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import ConfigRepository
from hydra._internal.config_search_path_impl import ConfigSearchPathImpl
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra._internal.hydra import Hydra
from hydra._internal.utils import create_config_search_path, get_args_parser

__all__ = [
    "BasicSweeper",
    "Callbacks",
    "ConfigLoaderImpl",
    "ConfigRepository",
    "ConfigSearchPathImpl",
    "Hydra",
    "create_config_search_path",
    "get_args_parser",
]
