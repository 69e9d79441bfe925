"""Semantic search: find the passages whose vectors are nearest to the query's vector.

    query -> embedder -> vector        passages without one -> batches -> embedder -> index
                            |                                                          |
                            +------------------> nearest <-----------------------------+

Loaded only if the settings name an embedder, which is a third-party program. If it fails, a search
still finds words and reports the reason in one sentence. Embedded passages are stored, and the next
search continues with the rest.
"""

from __future__ import annotations

import asyncio
from array import array
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from callgate import ToolContext, ToolExecutionError
from callgate.packs.settings import EmbeddingsTable
from callgate.packs.tools import Embedder, ModelError, ModelErrorKind
from callgate_catalogue.documents.index import Hit, Passage, opened
from callgate_catalogue.documents.searching import SearchRequest
from callgate_catalogue.documents.vectors import Pending, Scope, Vectors, Work, normalised
from callgate_catalogue.settings import Documents

BATCH = 64
"""Texts in one request."""
_FIRST_BATCH = 4
"""Size of the first batch, before the speed of the embedder is known."""
_AT_ONCE = 2
_QUICK_S, _SLOW_S = 2.0, 5.0
"""A faster batch is followed by a larger one, a slower batch by a smaller one."""
_OF_A_TEXT = (ModelErrorKind.REQUEST, ModelErrorKind.CONTEXT, ModelErrorKind.OVERLOADED)
"""Errors that a single rejected text may cause."""


class SemanticHits(NamedTuple):
    hits: Sequence[tuple[Hit, Passage]] = ()
    problem: str | None = None
    """The reason for missing or incomplete semantic results: one sentence."""
    embedded: int = 0
    """Number of passages that were embedded."""
    left: bool = False
    """Whether passages without a vector remain."""
    full: bool = False


async def find(
    request: SearchRequest, documents: Documents, context: ToolContext, most: int
) -> SemanticHits:
    table = documents.table.embeddings
    assert table is not None and documents.open_embedder is not None
    try:
        embedder = await asyncio.to_thread(documents.open_embedder)
        try:
            return await _Search(request, table, embedder, context).run(most)
        finally:
            await embedder.close()
    except (ModelError, ToolExecutionError) as error:  # an error of the embedder or of the index
        return SemanticHits(problem=str(error))


class _Search:
    def __init__(
        self,
        request: SearchRequest,
        table: EmbeddingsTable,
        embedder: Embedder,
        context: ToolContext,
    ) -> None:
        self._request, self._table = request, table
        self._embedder, self._context = embedder, context
        self._scope = Scope(request.origins, request.below, request.may_show)
        self._deadline = asyncio.get_running_loop().time() + table.refresh_s
        self._query = table.query_prefix + request.query
        self._dimensions = 0
        self._waiting: deque[Pending] = deque()
        self._batch = _FIRST_BATCH
        self._embedded = self._wanted = 0
        self._problem: str | None = None

    async def run(self, most: int) -> SemanticHits:
        try:
            async with asyncio.timeout_at(self._deadline):
                (numbers,) = await self._embedder.embed([self._query])
        except TimeoutError:
            return SemanticHits(problem=self._too_slow())
        self._dimensions = len(numbers)
        work = await asyncio.to_thread(self._work)
        self._waiting.extend(work.pending)
        self._wanted = len(work.pending)
        await self._embed_waiting()
        hits = await asyncio.to_thread(self._nearest, normalised(numbers), most)
        left = work.left or self._embedded < self._wanted
        return SemanticHits(hits, self._problem, self._embedded, left, work.full)

    def _vectors_name(self) -> str:
        return f"{self._embedder.name} {self._table.document_prefix}"

    def _work(self) -> Work:
        with opened(self._request.directory) as index:
            vectors = Vectors(index, self._vectors_name(), self._dimensions)
            vectors.begin()
            return vectors.work(
                self._scope,
                self._table.max_new,
                self._table.max_passages,
                self._request.should_stop,
            )

    def _nearest(self, query: array[float], most: int) -> list[tuple[Hit, Passage]]:
        with opened(self._request.directory) as index:
            vectors = Vectors(index, self._vectors_name(), self._dimensions)
            return vectors.nearest(query, self._scope, self._table.min_similarity, most)

    def _store(self, embedded: Sequence[tuple[Pending, Sequence[float] | None]]) -> None:
        with opened(self._request.directory) as index:
            Vectors(index, self._vectors_name(), self._dimensions).store(embedded)

    async def _embed_waiting(self) -> None:
        """Embed pending passages until the deadline."""
        if not self._waiting:
            return
        self._tell()
        try:
            async with asyncio.timeout_at(self._deadline), asyncio.TaskGroup() as group:
                for _ in range(_AT_ONCE):
                    group.create_task(self._work_off())
        except TimeoutError:
            if self._embedded == 0:
                self._problem = self._too_slow()

    async def _work_off(self) -> None:
        clock = asyncio.get_running_loop().time
        while self._waiting and self._problem is None:
            count = min(self._batch, len(self._waiting))
            batch = [self._waiting.popleft() for _ in range(count)]
            began = clock()
            try:
                await self._embed(batch)
            except (ModelError, ToolExecutionError) as error:
                self._problem = str(error)
                return
            took = clock() - began
            if took < _QUICK_S:
                self._batch = min(self._batch * 2, BATCH)
            elif took > _SLOW_S:
                self._batch = max(self._batch // 2, 1)

    async def _embed(self, batch: Sequence[Pending]) -> None:
        """Embed and store a batch.

        A rejected text must not block the others: after a rejected batch each text is sent alone,
        and a text that is rejected alone is not sent again.
        """
        texts = [self._table.document_prefix + each.text for each in batch]
        try:
            vectors = self._checked(await self._embedder.embed(texts))
        except ModelError as error:
            if error.kind not in _OF_A_TEXT:
                raise
        else:
            return await self._keep(batch, vectors)
        refused: list[Pending] = []
        for pending, text in zip(batch, texts, strict=True):
            try:
                vectors = self._checked(await self._embedder.embed([text], retries=0))
            except ModelError as error:
                if error.kind not in _OF_A_TEXT:
                    raise
                refused.append(pending)
            else:
                await self._keep([pending], vectors)
        if refused:  # the server works, because it still accepts the query
            await self._embedder.embed([self._query], retries=0)
            await self._keep(refused, [None] * len(refused))
        return None

    async def _keep(
        self, batch: Sequence[Pending], vectors: Sequence[Sequence[float] | None]
    ) -> None:
        await asyncio.to_thread(self._store, list(zip(batch, vectors, strict=True)))
        self._embedded += len(batch)
        self._tell()

    def _checked(self, vectors: Sequence[Sequence[float]]) -> Sequence[Sequence[float]]:
        if any(len(each) != self._dimensions for each in vectors):
            raise ModelError(
                ModelErrorKind.MALFORMED,
                "The server's vectors and the query's vector differ in length.",
            )
        return vectors

    def _tell(self) -> None:
        done, wanted = self._embedded, self._wanted
        self._context.progress(f"{done:,} of {wanted:,} new passages embedded", done / wanted)

    def _too_slow(self) -> str:
        return f"{self._embedder.host} did not answer within {self._table.refresh_s:g} seconds."
