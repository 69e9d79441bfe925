"""The tables of `settings.toml` that belong to the packages which we ship."""

from callgate.tools.tables import USUAL_VARIABLES as USUAL_VARIABLES
from callgate.tools.tables import DocumentsTable as DocumentsTable
from callgate.tools.tables import EmbeddingsTable as EmbeddingsTable
from callgate.tools.tables import GoogleTable as GoogleTable
from callgate.tools.tables import MemoryTable as MemoryTable
from callgate.tools.tables import WebTable as WebTable
