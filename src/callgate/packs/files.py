"""Files: those of a workspace behind its wall, and private ones in the home.

`ToolContext` has the files of a call (`workspace_files`, `environment`); here is what goes with
them."""

from callgate.config.locks import alone_in as alone_in
from callgate.config.mcp_tokens import TokenFile as TokenFile
from callgate.core.directories import make_private_directory as make_private_directory
from callgate.core.directories import sync_directory as sync_directory
from callgate.core.directories import sync_file as sync_file
from callgate.core.environment import off_loop as off_loop
from callgate.core.environment import off_loop_surely as off_loop_surely
from callgate.core.text.wildcards import compile_tokens as compile_tokens
from callgate.core.text.wildcards import parse_wildcards as parse_wildcards
from callgate.redaction.texts import redact as redact
from callgate.tools.files import WriteFile as WriteFile
from callgate.tools.search import local_files as local_files
from callgate.workspace import refusals as refusals
from callgate.workspace.excerpts import image_type as image_type
from callgate.workspace.opening import READ as READ
from callgate.workspace.paths import opening as opening
from callgate.workspace.paths import readable as readable
from callgate.workspace.paths import shown as shown
from callgate.workspace.protected import is_protected as is_protected
from callgate.workspace.spill import Shown as Shown
from callgate.workspace.spill import show as show
from callgate.workspace.tree import File as File
from callgate.workspace.tree import Tree as Tree
