"""Over a hundred ways out of a jail, tried by root and by nobody against every backend.

Each must fail, and in the way that shows which wall it met. The same attempts without a jail
succeed, which shows that they are attempts.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import shutil

import pytest

from callgate.sandbox import machines, profiles
from callgate.sandbox.plans import Backend, choose
from callgate.sandbox.processes.broker_client import BrokerProcess
from tests.kernel.sandbox.worlds import NOBODY, PYTHON, World, as_user, hostile, listening, run
from tests.needs import needs

pytestmark = needs("linux", PYTHON)

JAILS = {
    "landlock, read": ("read", {"landlock", "seccomp"}),
    "namespaces, read": ("read", {"namespaces", "seccomp"}),
    "namespaces, workspace": ("workspace", {"namespaces", "seccomp"}),
    "bubblewrap, workspace": ("workspace", {"bubblewrap", "seccomp"}),
    "supervisor, workspace": ("workspace", {"landlock", "seccomp", "supervisor"}),
}

# How an attempt fails in each of these jails. Two names: it depends on the user, the order of
# the kernel's checks, or whether the thing exists on this machine.
WALLS = {
    ("EACCES", "EROFS", "EROFS", "EROFS"): """
        create_outside overwrite_outside append_outside truncate_outside truncate_by_opening
        delete_outside delete_directory_outside make_directory_outside make_fifo_outside
        make_link_outside rename_outside hard_link_out_of_the_workspace
        write_through_a_file_link write_through_a_directory_link write_through_the_root_of_proc
        write_through_a_grandchild write_through_a_mapping read_the_keepers_environment
        write_a_protected_file append_to_a_protected_file_through_proc
        write_in_a_protected_directory move_the_workspace_itself""",
    ("EACCES", "EROFS", "EXDEV", "EXDEV"): """
        rename_into_the_workspace rename_out_of_the_workspace hard_link_into_the_workspace
        move_a_protected_directory_away link_a_protected_file
        exchange_a_protected_directory""",
    ("EACCES", "EXDEV", "EXDEV", "EXDEV"): "move_a_secret_into_sight",
    ("EACCES", "EACCES", "EACCES", "EROFS"): "write_through_process_one",
    ("EPERM", "EROFS", "EROFS", "EROFS"): """
        change_mode change_mode_of_an_open_file change_mode_by_a_new_call change_owner
        change_times change_times_of_an_open_file set_an_attribute remove_an_attribute
        set_file_flags change_mode_of_a_protected_file""",
    ("EACCES", "EACCES", "EACCES", "ENOENT"): "read_a_key_through_process_one",
    ("EACCES", "ENOENT", "ENOENT", "ENOENT"): """
        read_a_key list_a_hidden_directory read_the_token read_a_key_through_a_link
        read_a_key_through_proc read_a_hidden_file link_a_secret_into_sight
        read_its_command_line read_its_state
        read_the_disk read_its_environment read_its_memory_file list_its_descriptors
        enter_its_directory""",
    ("EACCES", "EPERM", "EPERM", "EPERM"): "open_by_handle",
    ("EPERM", "EPERM", "EPERM", "EPERM"): """
        connect_tcp connect_tcp6 listen_tcp send_udp connect_to_a_path
        connect_to_an_abstract_name send_from_one_end_of_a_pair ask_netlink send_raw_packets
        reach_the_hypervisor use_kernel_cryptography use_a_high_half_to_hide_the_family
        limit_another_process trace_another_process read_its_memory
        mount remount_the_root_writable unmount mount_by_the_new_calls clone_a_mount
        change_mount_attributes change_the_root pivot_the_root make_a_user_namespace
        clone_into_a_user_namespace enter_a_namespace load_a_program_into_the_kernel
        watch_the_processor handle_page_faults read_keys load_a_module read_the_kernel_log
        set_the_host_name keep_a_capability
        set_uid_when_created set_uid_by_a_node set_uid_of_a_file_without_a_name
        freeze_a_file copy_a_subvolume""",
    ("EISCONN", "EISCONN", "EISCONN", "EISCONN"): "reconnect_one_end_of_a_pair",
    ("EPERM", "ESRCH", "ESRCH", "ESRCH"): """
        make_another_process_nicer bind_another_process_to_a_processor
        schedule_another_process take_disk_time_from_another_process
        end_another_process suspend_another_process signal_through_a_descriptor
        take_its_descriptor""",
    ("EAGAIN", "ESRCH", "ESRCH", "ESRCH"): """
        signal_by_the_owner_of_a_descriptor signal_by_the_owner_of_a_socket
        signal_by_the_group_of_a_socket""",
    ("EPERM", "EINVAL", "EINVAL", "EINVAL"): "share_memory",
    ("EPERM EINVAL", "EINVAL", "EINVAL", "EINVAL"): "become_another_user",
    ("EPERM", "ENOENT", "ENOENT", "ENOENT"): "open_a_queue",
    ("ENOSYS", "ENOSYS", "ENOSYS", "ENOSYS"): """
        clone_by_the_new_call use_io_uring set_uid_by_a_structure""",
    ("EACCES", "EACCES EROFS", "EACCES EROFS", "EACCES EROFS"): "change_a_kernel_setting",
    ("EACCES ENOENT", "EACCES EROFS ENOENT", "EACCES EROFS ENOENT", "EACCES EROFS ENOENT"): """
        press_the_magic_key write_to_sysfs open_the_memory""",
    ("EACCES", "EROFS", "EPERM", "EPERM"): """
        make_a_device set_uid_by_mode set_uid_of_an_open_file set_uid_below_a_directory
        set_uid_by_a_new_call""",
    ("refused", "EPERM", "EPERM", "EPERM"): "type_into_a_terminal type_with_a_high_half",
    ("signal 31", "signal 31", "signal 31", "signal 31"): "speak_x32 speak_i386",
    ("EACCES", "EROFS", "EBUSY", "EBUSY"): """
        replace_a_protected_file delete_a_protected_file move_what_a_protected_place_is_in
        replace_a_missing_protected_file""",
    ("EACCES", "EROFS", "EACCES", "EACCES"): "create_a_missing_protected_file",
    ("EACCES", "EROFS", "EACCES EROFS", "EACCES EROFS"): "create_below_a_missing_protected_directory",
}
ESCAPED = "ESCAPED"
EXPECTED = {name: walls for walls, names in WALLS.items() for name in names.split()}
SUPERVISED = {
    "exchange_a_protected_directory": "EBUSY",
    "move_a_protected_directory_away": "EBUSY",
    "move_the_workspace_itself": "EBUSY",
    "link_a_protected_file": "EPERM",
    "link_a_secret_into_sight": "EXDEV",
}
"""Where the supervisor's answer is that of no other jail."""

WITHOUT_A_JAIL = """
    make_another_process_nicer bind_another_process_to_a_processor schedule_another_process
    take_disk_time_from_another_process
    append_outside truncate_outside make_directory_outside write_through_a_file_link
    write_through_a_grandchild change_mode change_times set_an_attribute
    read_a_key list_a_hidden_directory read_the_token read_a_key_through_a_link
    connect_tcp listen_tcp send_udp connect_to_a_path connect_to_an_abstract_name
    send_from_one_end_of_a_pair ask_netlink use_a_high_half_to_hide_the_family
    read_its_environment read_its_command_line list_its_descriptors enter_its_directory share_memory open_a_queue
    make_a_user_namespace clone_into_a_user_namespace suspend_another_process
    write_a_protected_file write_in_a_protected_directory link_a_protected_file
    create_a_missing_protected_file create_below_a_missing_protected_directory
    move_what_a_protected_place_is_in
    set_uid_by_mode set_uid_of_an_open_file set_uid_below_a_directory set_uid_when_created
    set_uid_by_a_node set_uid_by_a_structure
""".split()


async def _look() -> tuple[Backend, ...]:
    process = BrokerProcess()
    try:
        return await machines.look(process, bwrap=shutil.which("bwrap"))
    finally:
        process.close()


@functools.lru_cache
def backends() -> tuple[Backend, ...]:
    return asyncio.run(_look())


def needed(names: set[str]) -> list[Backend]:
    chosen = [backend for backend in backends() if backend.name in names]
    for backend in chosen:
        if backend.problem is not None:
            pytest.skip(f"needs {backend.name}: {backend.problem}")
    return chosen


def together(backend: str) -> set[str]:
    """A backend with those that it needs beside it."""
    return {"seccomp", backend, *(("landlock",) if backend == "supervisor" else ())}


@functools.lru_cache
def tried(jail: str, user: int) -> dict[str, str]:
    """Every attempt in one jail, by one user."""
    profile, names = JAILS[jail]
    chosen = needed(names)
    world = World(user)
    plan = choose(getattr(profiles, profile)(world.places), chosen)
    before = world.outside_state()
    try:
        with listening(world) as where:
            argv = hostile(where)

            def work() -> tuple[int | None, str, str]:
                bwrap = shutil.which("bwrap")
                ended, out, err = asyncio.run(run(plan, argv, where["workspace"], bwrap=bwrap))
                return ended.code, out, err

            code, out, err = as_user(user, work)
        assert (code, err) == (0, "")
        assert world.outside_state() == before
    finally:
        world.remove()
    outcomes: dict[str, str] = json.loads(out)
    return outcomes


USERS = [
    pytest.param(0, marks=needs("root"), id="root"),
    pytest.param(NOBODY if os.getuid() == 0 else os.getuid(), id="user"),
]


@pytest.mark.spec("T07")
@pytest.mark.parametrize("user", USERS)
@pytest.mark.parametrize("jail", JAILS)
@pytest.mark.parametrize("name", EXPECTED)
def test_an_attempt_to_get_out_meets_its_wall(name: str, jail: str, user: int) -> None:
    if jail.startswith("supervisor"):
        walls = (SUPERVISED[name],) if name in SUPERVISED else EXPECTED[name]
    else:
        walls = (EXPECTED[name][list(JAILS).index(jail)],)
    assert tried(jail, user)[name] in {*walls, *" ".join(walls).split(" ")}


@pytest.mark.parametrize("user", USERS)
@pytest.mark.parametrize("jail", JAILS)
def test_every_attempt_has_a_row_in_the_table(jail: str, user: int) -> None:
    assert set(tried(jail, user)) == set(EXPECTED)


@needs("root")
def test_without_a_jail_the_same_attempts_succeed() -> None:
    """As nobody, because root without a jail would really mount."""
    world = World(NOBODY)
    try:
        with listening(world) as where:
            argv = hostile({**where, "only": WITHOUT_A_JAIL})

            def work() -> str:
                return asyncio.run(run(None, argv, where["workspace"]))[1]

            outcomes = json.loads(as_user(NOBODY, work))
    finally:
        world.remove()
    assert outcomes == dict.fromkeys(WITHOUT_A_JAIL, "ESCAPED")
