"""Numbers of system calls by name, for code that attacks by number: 57 is fork on x86_64 and close on aarch64.

In payloads and attacks `@SYS_openat@` stands for the number of openat on this machine.
"""

from __future__ import annotations

import platform
import re

MACHINE = platform.machine()

_NUMBERS: dict[str, tuple[int, int]] = {
    "add_key": (248, 217),
    "bpf": (321, 280),
    "clock_getres": (229, 114),
    "clock_gettime": (228, 113),
    "clock_nanosleep": (230, 115),
    "clone": (56, 220),
    "clone3": (435, 435),
    "close": (3, 57),
    "connect": (42, 203),
    "execve": (59, 221),
    "execveat": (322, 281),
    "exit": (60, 93),
    "fcntl": (72, 25),
    "fsopen": (430, 430),
    "futex": (202, 98),
    "get_robust_list": (274, 100),
    "io_setup": (206, 0),
    "io_uring_setup": (425, 425),
    "ioctl": (16, 29),
    "ioprio_get": (252, 31),
    "ioprio_set": (251, 30),
    "kcmp": (312, 272),
    "keyctl": (250, 219),
    "kill": (62, 129),
    "landlock_create_ruleset": (444, 444),
    "madvise": (28, 233),
    "memfd_create": (319, 279),
    "migrate_pages": (256, 238),
    "mkdirat": (258, 34),
    "mknodat": (259, 33),
    "mmap": (9, 222),
    "mount": (165, 40),
    "move_pages": (279, 239),
    "mprotect": (10, 226),
    "mq_open": (240, 180),
    "mq_unlink": (241, 181),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "openat": (257, 56),
    "openat2": (437, 437),
    "perf_event_open": (298, 241),
    "pidfd_getfd": (438, 438),
    "pidfd_open": (434, 434),
    "pidfd_send_signal": (424, 424),
    "pkey_mprotect": (329, 288),
    "prctl": (157, 167),
    "prlimit64": (302, 261),
    "process_vm_readv": (310, 270),
    "ptrace": (101, 117),
    "read": (0, 63),
    "recvmsg": (47, 212),
    "renameat2": (316, 276),
    "rt_sigprocmask": (14, 135),
    "rt_sigqueueinfo": (129, 138),
    "sched_setaffinity": (203, 122),
    "sched_setattr": (314, 274),
    "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
    "seccomp": (317, 277),
    "sendmsg": (46, 211),
    "sendto": (44, 206),
    "setitimer": (38, 103),
    "setpgid": (109, 154),
    "setpriority": (141, 140),
    "setrlimit": (160, 164),
    "setsid": (112, 157),
    "setuid": (105, 146),
    "socket": (41, 198),
    "statx": (332, 291),
    "tgkill": (234, 131),
    "timer_create": (222, 107),
    "unshare": (272, 97),
    "userfaultfd": (323, 282),
}
"""(x86_64, aarch64)"""
_ONLY_X86 = {"open": 2, "alarm": 37, "fork": 57, "vfork": 58, "creat": 85, "modify_ldt": 154}
SYS = {
    **{name: numbers[MACHINE == "aarch64"] for name, numbers in _NUMBERS.items()},
    **(_ONLY_X86 if MACHINE == "x86_64" else {}),
}


def translated(code: str) -> str:
    """The code with the numbers of this machine; a call that it does not have becomes -1."""
    return re.sub(r"@SYS_(\w+)@", lambda found: str(SYS.get(found[1], -1)), code)
