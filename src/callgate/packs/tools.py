"""A package of tools and what it is given. Light: a package imports this to say what it has."""

from callgate.core.environment import Environment as Environment
from callgate.core.models import Key as Key
from callgate.core.models import ModelError as ModelError
from callgate.core.models import ModelErrorKind as ModelErrorKind
from callgate.core.tools import ToolFactory as ToolFactory
from callgate.core.tools import ToolKind as ToolKind
from callgate.sources.packs.values import Embedder as Embedder
from callgate.sources.packs.values import Pack as Pack
from callgate.sources.packs.values import PackContext as PackContext
from callgate.sources.packs.values import PackTool as PackTool
from callgate.tools.loading import Load as Load
from callgate.tools.loading import LoadedTool as LoadedTool
from callgate.tools.loading import Row as Row
from callgate.tools.loading import factories as factories
