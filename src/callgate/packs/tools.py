"""A package of tools and its context. Imports little: packages use this for their declaration."""

from callgate.core.local.environment import Environment as Environment
from callgate.core.models import Key as Key
from callgate.core.models import ModelError as ModelError
from callgate.core.models import ModelErrorKind as ModelErrorKind
from callgate.core.tools import ToolFactory as ToolFactory
from callgate.core.tools import ToolKind as ToolKind
from callgate.sources.packs import Embedder as Embedder
from callgate.sources.packs import Pack as Pack
from callgate.sources.packs import PackContext as PackContext
from callgate.sources.packs import PackTool as PackTool
from callgate.tools.loading import Load as Load
from callgate.tools.loading import LoadedTool as LoadedTool
from callgate.tools.loading import Row as Row
from callgate.tools.loading import factories as factories
