"""Which processes live: each holds an advisory lock on its direct connections, and says so often.

    lock held, heard of lately  ---> lives
    lock held, silent for long  ---> stopped: counts as gone; sooner if a witness was not silent
    no lock                     ---> gone, unless the database has just come back
    marked as dead              ---> gone, whatever it does; it is told so (`beat`)

A witness is another process that was heard of all the while: then the database did answer, and the
silent process is stopped or cut off. Without a witness the database itself may have stood still.

A restart, a crash or a failover of the database leaves no lock. Each begins a new *boot*, which has
an id: no clock is compared with that of a server before it. An owner that was last heard of in
another boot has a while to come back, counted from when anyone is first heard of in this one.
"""

from __future__ import annotations

from collections.abc import Iterable

from callgate.storage.postgres.connections import Connection

_BOOT = """
concat_ws(
    ' ',
    extract(epoch from pg_postmaster_start_time()),
    extract(epoch from pg_stat_get_bgwriter_stat_reset_time()),
    case when not pg_is_in_recovery()
    then substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8) end
)
"""
"""Differs after a restart, after a crash of one backend (which resets statistics, and takes all
locks with it), and after a failover (a new timeline)."""
_NOTE_BOOT = f"with boot as (insert into cg.boots (id) select {_BOOT} on conflict do nothing)"
_STEADY = """
steady_since = case when clock_timestamp() - o.beat_at < make_interval(secs => %s)
then o.steady_since else clock_timestamp() end
"""
_DECLARE = f"""
{_NOTE_BOOT}
insert into cg.owners as o (id, key, locks, format, boot) values (%s, %s, %s, %s, {_BOOT})
on conflict (id) do update
set beat_at = clock_timestamp(), locks = excluded.locks, boot = excluded.boot, {_STEADY}
returning dead
"""  # noqa: S608
_BEAT = f"""
{_NOTE_BOOT}
update cg.owners o set beat_at = clock_timestamp(), boot = {_BOOT}, {_STEADY}
where id = %s returning dead
"""  # noqa: S608
_ALIVE = f"""
with now as (select {_BOOT} as boot),
recovery as (
    select now.boot, coalesce(
        clock_timestamp() - boots.since < make_interval(secs => %(grace)s), true
    ) as lasts
    from now left join cg.boots on boots.id = now.boot
)
select o.id from cg.owners o, recovery where o.id = any(%(owners)s) and not o.dead and (
    clock_timestamp() - o.beat_at < make_interval(secs => %(silent)s)
    and not (
        clock_timestamp() - o.beat_at > make_interval(secs => %(stopped)s)
        and exists (
            select 1 from cg.owners w where w.id <> o.id and not w.dead
            and clock_timestamp() - w.beat_at < make_interval(secs => %(gap)s)
            and clock_timestamp() - w.steady_since > make_interval(secs => %(stopped)s)
        )
    )
    and (not o.locks or exists (
        select 1 from pg_locks l where l.locktype = 'advisory' and l.granted and l.objsubid = 1
        and l.database = (select oid from pg_database where datname = current_database())
        and l.classid = ((o.key >> 32) & 4294967295)::oid and l.objid = (o.key & 4294967295)::oid
    ))
    or o.boot <> recovery.boot and recovery.lasts
)
"""  # noqa: S608


def declare(db: Connection, owner: str, known_format: int) -> bool:
    """From now on this connection says that its process lives; False if others took it for dead."""
    key = db.owner_key(owner)
    if db.is_direct:
        db.run("select pg_advisory_lock_shared(%s)", key)
    locks = db.location.direct_url is not None
    [(dead,)] = db.fetch(_DECLARE, owner, key, locks, known_format, _gap(db))
    return not dead


def beat(db: Connection, owner: str) -> bool:
    """Say that the process lives; False if others took it for dead."""
    found = db.fetch(_BEAT, _gap(db), owner)
    return bool(found) and not found[0][0]


def withdraw(db: Connection, owner: str) -> None:
    """This process, as an owner, is gone."""
    db.run("delete from cg.owners where id = %s", owner)


def living(db: Connection, owners: Iterable[str]) -> set[str]:
    """Those of some owners that live."""
    wanted = list(owners)
    if not wanted:
        return set()
    limits = {
        "silent": db.location.silent_s,
        "stopped": db.location.stopped_s,
        "gap": _gap(db),
        "grace": db.location.grace_s,
    }
    return {id for (id,) in db.execute(_ALIVE, {"owners": wanted, **limits}).fetchall()}


def _gap(db: Connection) -> float:
    """Return how far apart two beats of a steady process may be."""
    return max(2.5 * db.location.beat_s, db.location.stopped_s / 2)
