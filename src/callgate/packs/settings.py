"""Base classes and checks for the settings tables of built-in packages."""

from callgate.config.load import address_problem as address_problem
from callgate.config.load import hosts_problem as hosts_problem
from callgate.config.schema import EmbeddingsTable as EmbeddingsTable
from callgate.config.schema import SettingsPart as SettingsPart
from callgate.config.schema import Table as Table
