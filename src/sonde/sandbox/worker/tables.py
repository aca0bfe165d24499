"""System call numbers and the verdicts on them, as data, for the two architectures Sonde knows.

Both are proved by the escape suite, aarch64 in emulated machines (`make test-arm64`); its numbers are those of asm-generic/unistd.h.
A name that an architecture lacks (aarch64 has no `open`) is left out of its filter.
"""

from __future__ import annotations

import errno

AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

CLONE_PARENT = 0x8000
SIGCHLD = 17
SIGKILL = 9
FORK_FLAGS = CLONE_PARENT | SIGCHLD
"""The one clone the gate passes on to the supervisor: a plain fork whose child belongs to the zygote."""

FAMILIES_OF_COMMANDS = (2, 10, 16)  # IPv4, IPv6, netlink; not AF_UNIX and not the host of a virtual machine
AF_UNIX = 1
PAIRS_OF_COMMANDS = tuple(kind | flags for kind in (1, 5) for flags in (0, 0o4000, 0o2000000, 0o2004000))
"""SOCK_STREAM and SOCK_SEQPACKET, with NONBLOCK and CLOEXEC: an end of these stays with the other end. One of datagrams (also
SOCK_RAW, which the kernel takes for one) could be connected to the socket of any program."""
X32_BIT = 0x40000000
PR_SET_PDEATHSIG = 1
PR_CAPBSET_DROP = 24
PR_SET_DUMPABLE = 4
PR_SET_NO_NEW_PRIVS = 38
PR_SET_THP_DISABLE = 41
PR_SET_VMA = 0x53564D41

ALLOWED = (
    *("read", "readv", "pread64", "write", "writev", "close", "fstat", "lseek", "dup"),
    *("munmap", "brk", "mremap", "membarrier", "rseq", "sched_yield", "getcpu"),
    *("rt_sigaction", "rt_sigprocmask", "rt_sigreturn", "sigaltstack", "restart_syscall"),
    *("getpid", "gettid", "getppid", "getuid", "geteuid", "getgid", "getegid", "getpgrp", "getrusage", "times"),
    *("gettimeofday", "time", "nanosleep"),
    *("poll", "ppoll", "select", "pselect6", "getrandom", "exit", "exit_group"),
)

ALLOWED_WITHOUT_GATE = ("recvmsg", "getsockname", "getsockopt", "dup2", "dup3")
"""What a state needs to be forked without the gate: only in an unsafe sandbox."""

ALLOWED_TO_PARSERS = ("recvmsg",)
"""How a process that reads documents gets them: each is a descriptor that the supervisor sends."""

REFUSED_TO_COMMANDS = ("io_uring_setup", "add_key", "request_key", "keyctl")
"""Ways around the confinement of an allowed command: a ring opens sockets unseen, and the keyrings hold the user's secrets."""

OF_ITSELF_TO_COMMANDS: dict[str, tuple[tuple[int, ...], int]] = {
    **dict.fromkeys(
        ("prlimit64", "sched_setaffinity", "sched_setattr", "sched_setparam", "sched_setscheduler"), ((), 0)
    ),
    "setpriority": ((0, 1), 1),
    "ioprio_set": ((1, 2), 1),
}
"""Calls that change any process of the user, so that a limit of one second of CPU time kills it: (what argument 0 may be, where
the process stands). Only 0 may stand there, the caller; argument 0 may name a process or a group, not all processes of the user. The
kernel does not ask landlock about these. It does about ptrace, process_vm_*, pidfd_getfd, kcmp, move_pages and signals."""

SOFT = {
    # CPython opens and stats files by itself (imports, tracebacks, codecs): a refusal, not a death.
    **dict.fromkeys(("open", "openat", "openat2", "creat", "stat", "lstat", "newfstatat", "statx"), errno.EACCES),
    **dict.fromkeys(("access", "faccessat", "faccessat2", "readlink", "readlinkat", "getcwd", "chdir"), errno.EACCES),
    **dict.fromkeys(("getdents64", "statfs", "fstatfs", "unlink", "unlinkat", "mkdir", "mkdirat"), errno.EACCES),
    **dict.fromkeys(("rename", "renameat", "renameat2", "rmdir", "utimensat"), errno.EACCES),
    **dict.fromkeys(("prlimit64", "getrlimit", "sysinfo", "uname", "sched_getaffinity"), errno.EPERM),
    "ioctl": errno.ENOTTY,
    "set_robust_list": errno.ENOSYS,
}

CLOCKS = ("clock_gettime", "clock_getres", "clock_nanosleep")
DYNAMIC_CLOCK = 1 << 31
"""Negative numbers are clocks of processes and devices: by them anyone may ask for the CPU time of any process of the machine."""

FCNTL = (0, 1, 2, 3, 1030)
"""DUPFD, GETFD, SETFD, GETFL, DUPFD_CLOEXEC. Not SETFL: its flags belong to all states that share the descriptor, so they would survive
a rollback. Never SETOWN and SETSIG: they aim a signal at any process of the user."""

FUTEX = tuple(operation | flag for operation in (0, 1, 3, 4, 5, 9, 10) for flag in (128, 384))
"""Waiting and waking within the process, on either clock. Without the private flag, a word in a page of libc is one that every
process of the machine may wait on: two sessions could talk. Not the priority-inheriting ones, the door of many kernel exploits."""

MADVICE = (4, 8, 15)
"""DONTNEED, FREE, NOHUGEPAGE: what malloc asks for. Others change what a fork inherits, or how memory is counted."""

NUMBERS: dict[str, dict[str, int]] = {
    "x86_64": {
        "read": 0,
        "write": 1,
        "open": 2,
        "close": 3,
        "stat": 4,
        "fstat": 5,
        "lstat": 6,
        "poll": 7,
        "lseek": 8,
        "mmap": 9,
        "mprotect": 10,
        "munmap": 11,
        "brk": 12,
        "rt_sigaction": 13,
        "rt_sigprocmask": 14,
        "rt_sigreturn": 15,
        "ioctl": 16,
        "pread64": 17,
        "readv": 19,
        "writev": 20,
        "access": 21,
        "select": 23,
        "sched_yield": 24,
        "mremap": 25,
        "madvise": 28,
        "dup": 32,
        "nanosleep": 35,
        "getpid": 39,
        "recvmsg": 47,
        "getsockname": 51,
        "getsockopt": 55,
        "dup2": 33,
        "clone": 56,
        "fork": 57,
        "vfork": 58,
        "exit": 60,
        "uname": 63,
        "fcntl": 72,
        "getcwd": 79,
        "chdir": 80,
        "rename": 82,
        "mkdir": 83,
        "rmdir": 84,
        "creat": 85,
        "unlink": 87,
        "readlink": 89,
        "gettimeofday": 96,
        "getrlimit": 97,
        "getrusage": 98,
        "sysinfo": 99,
        "times": 100,
        "getuid": 102,
        "getgid": 104,
        "geteuid": 107,
        "getegid": 108,
        "getppid": 110,
        "getpgrp": 111,
        "sigaltstack": 131,
        "personality": 135,
        "statfs": 137,
        "fstatfs": 138,
        "prctl": 157,
        "gettid": 186,
        "time": 201,
        "futex": 202,
        "sched_getaffinity": 204,
        "getdents64": 217,
        "restart_syscall": 219,
        "clock_gettime": 228,
        "clock_getres": 229,
        "clock_nanosleep": 230,
        "exit_group": 231,
        "openat": 257,
        "mkdirat": 258,
        "newfstatat": 262,
        "unlinkat": 263,
        "renameat": 264,
        "readlinkat": 267,
        "faccessat": 269,
        "pselect6": 270,
        "ppoll": 271,
        "dup3": 292,
        "set_robust_list": 273,
        "utimensat": 280,
        "prlimit64": 302,
        "getcpu": 309,
        "renameat2": 316,
        "seccomp": 317,
        "getrandom": 318,
        "membarrier": 324,
        "statx": 332,
        "rseq": 334,
        "clone3": 435,
        "openat2": 437,
        "faccessat2": 439,
        "landlock_create_ruleset": 444,
        "landlock_add_rule": 445,
        "landlock_restrict_self": 446,
        "socket": 41,
        "socketpair": 53,
        "add_key": 248,
        "request_key": 249,
        "keyctl": 250,
        "io_uring_setup": 425,
        "setpriority": 141,
        "sched_setparam": 142,
        "sched_setscheduler": 144,
        "sched_setaffinity": 203,
        "ioprio_set": 251,
        "sched_setattr": 314,
    },
    "aarch64": {
        "getcwd": 17,
        "dup": 23,
        "dup3": 24,
        "fcntl": 25,
        "ioctl": 29,
        "mkdirat": 34,
        "unlinkat": 35,
        "renameat": 38,
        "statfs": 43,
        "fstatfs": 44,
        "faccessat": 48,
        "chdir": 49,
        "openat": 56,
        "close": 57,
        "getdents64": 61,
        "lseek": 62,
        "read": 63,
        "write": 64,
        "readv": 65,
        "writev": 66,
        "pread64": 67,
        "pselect6": 72,
        "ppoll": 73,
        "readlinkat": 78,
        "newfstatat": 79,
        "fstat": 80,
        "utimensat": 88,
        "exit": 93,
        "personality": 92,
        "exit_group": 94,
        "futex": 98,
        "set_robust_list": 99,
        "nanosleep": 101,
        "clock_gettime": 113,
        "clock_getres": 114,
        "clock_nanosleep": 115,
        "sched_getaffinity": 123,
        "sched_yield": 124,
        "restart_syscall": 128,
        "sigaltstack": 132,
        "rt_sigaction": 134,
        "rt_sigprocmask": 135,
        "rt_sigreturn": 139,
        "times": 153,
        "getpgid": 155,
        "uname": 160,
        "getrlimit": 163,
        "getrusage": 165,
        "prctl": 167,
        "getcpu": 168,
        "gettimeofday": 169,
        "getpid": 172,
        "getppid": 173,
        "getuid": 174,
        "geteuid": 175,
        "getgid": 176,
        "getegid": 177,
        "gettid": 178,
        "sysinfo": 179,
        "recvmsg": 212,
        "getsockname": 204,
        "getsockopt": 209,
        "brk": 214,
        "munmap": 215,
        "mremap": 216,
        "clone": 220,
        "mmap": 222,
        "mprotect": 226,
        "madvise": 233,
        "prlimit64": 261,
        "renameat2": 276,
        "seccomp": 277,
        "getrandom": 278,
        "membarrier": 283,
        "statx": 291,
        "rseq": 293,
        "clone3": 435,
        "openat2": 437,
        "faccessat2": 439,
        "landlock_create_ruleset": 444,
        "landlock_add_rule": 445,
        "landlock_restrict_self": 446,
        "socket": 198,
        "socketpair": 199,
        "add_key": 217,
        "request_key": 218,
        "keyctl": 219,
        "io_uring_setup": 425,
        "ioprio_set": 30,
        "sched_setparam": 118,
        "sched_setscheduler": 119,
        "sched_setaffinity": 122,
        "setpriority": 140,
        "sched_setattr": 274,
    },
}
