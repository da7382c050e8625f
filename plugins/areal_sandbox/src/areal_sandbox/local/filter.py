"""System calls that no sandbox needs and that widen the kernel's surface: a seccomp filter that refuses them.

Knows: the numbers of those calls, and how a filter is laid out.
Does not know: namespaces, which are what confines a sandbox; this is a second wall.
"""

from __future__ import annotations

import errno
import platform
import struct

_ARCHITECTURES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
"""Machine -> its name in a filter, and its column below."""
_X32 = 0x40000000
"""Numbers from here on are those of a second table of x86_64."""
_REFUSED = {
    "memfd_create": (319, 279),  # memory that counts as nobody's
    "memfd_secret": (447, 447),
    "shmget": (29, 194),
    "msgget": (68, 186),
    "semget": (64, 190),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "open_by_handle_at": (304, 265),
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsmount": (432, 432),
    "mount_setattr": (442, 442),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "reboot": (169, 142),
    "quotactl": (179, 60),
}
"""Name -> its number on x86_64 and on aarch64."""
_CLONE, _CLONE3, _NEW_USER = (56, 220), 435, 0x10000000
"""A user namespace is refused; what takes its flags by a pointer is not there, and every library goes on without it."""

_LOAD, _EQUAL, _AT_LEAST, _ANY, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _FLAGS = 0, 4, 16
_ALLOW, _ERROR = 0x7FFF0000, 0x00050000


def seccomp_filter(machine: str = platform.machine()) -> bytes:
    """Return the filter as bubblewrap reads it: `struct sock_filter` after one another; empty for other machines."""
    if machine not in _ARCHITECTURES:
        return b""
    architecture, column = _ARCHITECTURES[machine]
    numbers = [_CLONE3, *(call[column] for call in _REFUSED.values())]
    refuse = len(numbers) + 4  # instructions between the check of x32 and the last one
    program = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 0, refuse + 2, architecture),
        (_LOAD, 0, 0, _NUMBER),
        (_AT_LEAST, refuse, 0, _X32),
        *((_EQUAL, refuse - 1 - place, 0, number) for place, number in enumerate(numbers)),
        (_EQUAL, 0, 2, _CLONE[column]),
        (_LOAD, 0, 0, _FLAGS),
        (_ANY, 1, 0, _NEW_USER),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _ERROR | errno.ENOSYS),
    ]
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in program)
