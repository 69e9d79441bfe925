"""Which processes live: each holds an advisory lock on every direct connection, and says so often.

    lock held, heard of lately  ---> lives
    lock held, silent for long  ---> stopped: counts as gone
    no lock                     ---> gone, unless the database has just come back
    marked as dead              ---> gone, whatever it does; it is told so (`beat`)

After a restart or a failover no lock is left. An owner that was last heard of before that has a
while to come back.
"""

from __future__ import annotations

from collections.abc import Iterable

from callgate.storage.postgres.connections import Connection

_DECLARE = """
insert into cg.owners (id, key, locks) values (%s, %s, %s)
on conflict (id) do update set beat_at = clock_timestamp(), locks = excluded.locks
returning dead
"""
_BOOT = """
greatest(
    pg_postmaster_start_time(),
    (select max(since) from cg.timelines having count(*) > 1)
)
"""
"""When locks were last lost all at once."""
_ALIVE = f"""
select o.id from cg.owners o where o.id = any(%s) and not o.dead and (
    clock_timestamp() - o.beat_at < make_interval(secs => %s) and (not o.locks or exists (
        select 1 from pg_locks l where l.locktype = 'advisory' and l.granted and l.objsubid = 1
        and l.database = (select oid from pg_database where datname = current_database())
        and l.classid = ((o.key >> 32) & 4294967295)::oid and l.objid = (o.key & 4294967295)::oid
    ))
    or o.beat_at < {_BOOT} and clock_timestamp() - {_BOOT} < make_interval(secs => %s)
)
"""  # noqa: S608
_TIMELINE = """
insert into cg.timelines (timeline)
select ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::bigint
on conflict do nothing
"""


def declare(db: Connection, owner: str) -> bool:
    """From now on this connection says that its process lives; False if others took it for dead."""
    key = db.owner_key(owner)
    if db.is_direct:
        db.run("select pg_advisory_lock_shared(%s)", key)
    db.run(_TIMELINE)
    [(dead,)] = db.fetch(_DECLARE, owner, key, db.location.direct_url is not None)
    return not dead


def beat(db: Connection, owner: str) -> bool:
    """Say that the process lives; False if others took it for dead."""
    found = db.fetch(
        "update cg.owners set beat_at = clock_timestamp() where id = %s returning dead", owner
    )
    return bool(found) and not found[0][0]


def withdraw(db: Connection, owner: str) -> None:
    """This process, as an owner, is gone."""
    db.run("delete from cg.owners where id = %s", owner)


def living(db: Connection, owners: Iterable[str]) -> set[str]:
    """Those of some owners that live."""
    wanted = list(owners)
    if not wanted:
        return set()
    limits = (db.location.silent_s, db.location.grace_s)
    return {id for (id,) in db.fetch(_ALIVE, wanted, *limits)}
