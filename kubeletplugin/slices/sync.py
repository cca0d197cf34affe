"""From what exists and what is wanted to the writes that lead there, and their execution.

The rules are those of the controller that all other drivers use, because schedulers and people rely on them:

- An existing slice stands for the wanted one of its name's index. Another name, another width of the index, a second
  slice of one index and a lower generation are obsolete.
- One changed slice is replaced in place at the same generation, since one write is atomic. Everything else raises the
  generation of all slices, so that a reader sees either all old or all new ones, never a mixture: a pool counts only
  when all slices of its highest generation are there.
- Obsolete slices go first (devices that are gone must not be handed out, even when the new ones can't be written),
  then updates, then new ones. Deletes carry UID and resourceVersion: what somebody else changed meanwhile is looked
  at again first.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from kubeapi.client import RESOURCE_SLICES, Json, KubeApi
from kubeapi.errors import ApiError, Invalid, NotFound
from kubeletplugin import crashpoints
from kubeletplugin.slices.compare import DroppedField, dropped_fields, keep_time_added, same_content
from kubeletplugin.slices.pool import Pool, Publisher, SliceContent, index_of, new_slice, slice_object, slice_spec

WriteVerb = Literal["create", "update", "delete"]


class SliceRefused(Exception):
    """The server refuses the slice ``index`` (of the pool as cut); ``cause`` says why."""

    def __init__(self, index: int, cause: Invalid) -> None:
        super().__init__(f"write slice {index}: {cause}")
        self.index = index
        self.cause = cause


class SliceGone(Exception):
    """A slice to update was deleted meanwhile."""


class SliceView(Protocol):
    """The server's slices as far as known, own writes included; see store.SliceStore."""

    def in_pool(self, pool: str) -> Sequence[Json]: ...

    def wrote(self, stored: Json) -> None: ...

    def removed(self, existing: Json) -> None:
        """Counts as gone from now on; called before the delete, whose echo may come before its answer."""

    def not_removed(self, existing: Json) -> None:
        """The delete failed."""


@dataclass(frozen=True, slots=True)
class Write:
    """A create or update of the pool's slice ``index``."""

    index: int
    body: Json


@dataclass(frozen=True, slots=True)
class Plan:
    """``deletes`` are existing objects. Done in the order of the fields."""

    deletes: tuple[Json, ...] = ()
    updates: tuple[Write, ...] = ()
    creates: tuple[Write, ...] = ()

    @property
    def is_empty(self) -> bool:
        return not (self.deletes or self.updates or self.creates)


IsSame = Callable[[int, Json], bool]
"""Whether the stored spec of the slice of this index needs no write for its content."""


def plan_pool(publisher: Publisher, pool: Pool, existing: Iterable[Json], is_same: IsSame | None = None) -> Plan:
    """``existing`` are all slices of the pool that the publisher owns."""
    same = is_same or (lambda index, spec: same_content(spec, pool.slices[index]))
    slices = sorted(existing, key=lambda item: str(item["metadata"]["name"]))
    highest = max((item["spec"]["pool"]["generation"] for item in slices), default=0)
    current: dict[int, Json] = {}
    obsolete: list[Json] = []
    for item in slices:
        index = index_of(item["metadata"]["name"], len(pool.slices))
        usable = item["spec"]["pool"]["generation"] == highest and index is not None and index < len(pool.slices)
        if usable and index is not None and index not in current:
            current[index] = item
        else:
            obsolete.append(item)
    changed = {
        index
        for index, item in current.items()
        if item["spec"]["pool"]["resourceSliceCount"] != len(pool.slices) or not same(index, item["spec"])
    }
    missing = [index for index in range(len(pool.slices)) if index not in current]
    generation = _generation(pool, highest, atomic=not missing and len(changed) <= 1)
    rewrite = sorted(current) if generation != highest else sorted(changed)
    return Plan(
        deletes=tuple(obsolete),
        updates=tuple(Write(index, _updated(publisher, pool, index, generation, current[index])) for index in rewrite),
        creates=tuple(Write(index, new_slice(publisher, pool, index, generation)) for index in missing),
    )


def _generation(pool: Pool, highest: int, *, atomic: bool) -> int:
    if pool.generation > highest:
        return pool.generation
    return highest if atomic else highest + 1


def _updated(publisher: Publisher, pool: Pool, index: int, generation: int, existing: Json) -> Json:
    """The spec is new; of the metadata everything is kept, others may have put something there."""
    spec = slice_spec(publisher, pool, index, generation)
    if "devices" in spec:
        spec["devices"] = keep_time_added(spec["devices"], existing["spec"].get("devices", ()))
    metadata = {key: value for key, value in existing["metadata"].items() if key != "managedFields"}
    return slice_object(metadata, spec)


class PoolSync:
    """Brings the server's slices to what is wanted, one call per attempt; keeps what the server made of a slice.

    The server may store something else than was sent (fields dropped, or defaulted by a newer version). What it
    stored for a content is then as good as that content, or every look would find a difference and write again.
    """

    def __init__(self, api: KubeApi, view: SliceView, on_write: Callable[[WriteVerb], None]) -> None:
        self._api = api
        self._view = view
        self._on_write = on_write
        self._stored_as: dict[tuple[str, int], tuple[SliceContent, SliceContent]] = {}

    def plan(self, publisher: Publisher, pool: Pool) -> Plan:
        return plan_pool(publisher, pool, self._view.in_pool(pool.name), self._is_same(pool))

    async def write(self, publisher: Publisher, pool: Pool, plan: Plan, dropped: list[DroppedField]) -> None:
        """Carries out ``plan`` up to the first error: SliceRefused for a 422, SliceGone for a slice that somebody
        deleted meanwhile (plan anew), else the ApiError.

        Fields that the server dropped are added to ``dropped``, so that they are known after an error, too.
        """
        crashpoints.reached("slices.planned")
        await self.delete(plan.deletes)
        for update in plan.updates:
            try:
                stored = await self._api.replace(RESOURCE_SLICES, update.body["metadata"]["name"], update.body)
            except Invalid as error:
                raise SliceRefused(update.index, error) from error
            except NotFound as error:
                self._view.removed(update.body)
                raise SliceGone(update.body["metadata"]["name"]) from error
            self._on_write("update")
            dropped += self._took(pool, update, stored)
        for create in plan.creates:
            try:
                stored = await self._api.create(RESOURCE_SLICES, create.body)
            except Invalid as error:
                raise SliceRefused(create.index, error) from error
            self._on_write("create")
            dropped += self._took(pool, create, stored)

    async def delete(self, slices: Iterable[Json]) -> None:
        for existing in slices:
            metadata = existing["metadata"]
            self._view.removed(existing)
            try:
                await self._api.delete(
                    RESOURCE_SLICES,
                    metadata["name"],
                    uid=metadata["uid"],
                    resource_version=metadata["resourceVersion"],
                )
            except NotFound:
                continue
            except ApiError:
                self._view.not_removed(existing)
                raise
            self._on_write("delete")
            crashpoints.reached("slices.deleted")

    def _took(self, pool: Pool, write: Write, stored: Json) -> tuple[DroppedField, ...]:
        crashpoints.reached("slices.written")
        self._view.wrote(stored)
        wanted = pool.slices[write.index]
        if same_content(stored["spec"], wanted):
            self._stored_as.pop((pool.name, write.index), None)
        else:
            self._stored_as[pool.name, write.index] = (wanted, _content(stored["spec"]))
        return dropped_fields(write.body["spec"], stored["spec"])

    def _is_same(self, pool: Pool) -> IsSame:
        def is_same(index: int, spec: Json) -> bool:
            wanted = pool.slices[index]
            if same_content(spec, wanted):
                return True
            sent, kept = self._stored_as.get((pool.name, index), (None, None))
            return sent == wanted and kept == _content(spec)

        return is_same


def _content(spec: Json) -> SliceContent:
    return SliceContent(tuple(spec.get("devices", ())), tuple(spec.get("sharedCounters", ())))
