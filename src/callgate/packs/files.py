"""Files of a workspace, within its boundary, and private files in the home.

`ToolContext` has the files of a call (`workspace_files`, `environment`); this module has functions
for them.
"""

from callgate.config.home import alone_in as alone_in
from callgate.config.secret_opening import TokenFile as TokenFile
from callgate.core.local.disk import make_private_directory as make_private_directory
from callgate.core.local.disk import sync_directory as sync_directory
from callgate.core.local.disk import sync_file as sync_file
from callgate.core.local.environment import off_loop as off_loop
from callgate.core.local.environment import off_loop_surely as off_loop_surely
from callgate.core.patterns import compile_tokens as compile_tokens
from callgate.core.patterns import parse_wildcards as parse_wildcards
from callgate.redaction.texts import redact as redact
from callgate.tools.files import WriteFile as WriteFile
from callgate.tools.search import local_files as local_files
from callgate.workspace import refusals as refusals
from callgate.workspace.excerpts import Shown as Shown
from callgate.workspace.excerpts import image_type as image_type
from callgate.workspace.excerpts import show as show
from callgate.workspace.opening import READ as READ
from callgate.workspace.paths import opening as opening
from callgate.workspace.paths import readable as readable
from callgate.workspace.paths import shown as shown
from callgate.workspace.protected import is_protected as is_protected
from callgate.workspace.tree import File as File
from callgate.workspace.tree import Tree as Tree
