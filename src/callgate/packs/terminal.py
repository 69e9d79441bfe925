"""Output and errors of commands, and the settings of their package."""

from callgate.cli.errors import OK as OK
from callgate.cli.nested_calls import refuse_within_a_call as refuse_within_a_call
from callgate.cli.programs import open_in_browser as open_in_browser
from callgate.cli.ui.output import print_json as print_json
from callgate.cli.ui.tables import Cell as Cell
from callgate.cli.ui.tables import Column as Column
from callgate.cli.ui.tables import print_field as print_field
from callgate.cli.ui.tables import print_rows as print_rows
from callgate.cli.ui.terminal import columns as columns
from callgate.cli.ui.terminal import is_terminal as is_terminal
from callgate.cli.ui.terminal import paint_for as paint_for
from callgate.cli.ui.terminal import say as say
from callgate.cli.ui.visible import clip as clip
from callgate.cli.ui.visible import visible as visible
from callgate.config.load import SettingsError as SettingsError
from callgate.config.settings_file import read_settings as read_settings
