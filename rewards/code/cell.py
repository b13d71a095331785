"""Supervisor of one sandboxed program: sets up the isolation, starts the program, enforces the time limit, ends everything.

`rewards/code/sandbox.py` starts it as a script. It imports only the standard library. Its standard input is a line of JSON (`Spec` there),
and then stays open: if it is closed, because the service ended, the program is killed. Standard output and descriptor `results` are passed
on to the program. It writes one line of JSON about the end of the program to standard error.

With namespaces, the program sees no network interface, no other process, and only a file system of its own: system libraries and Python,
read-only, and an empty folder. It has no privileges. It can start no process and no thread. Everything in its process namespace dies with
its first process.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import json
import os
import platform
import resource
import select
import signal
import sys
from typing import Any, NoReturn

_NEW_MOUNTS, _NEW_UTS, _NEW_IPC, _NEW_USER, _NEW_PIDS, _NEW_NET = 0x20000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000
_READ_ONLY, _NO_SUID, _NO_DEVICES, _REMOUNT, _BIND, _RECURSIVE, _PRIVATE = 1, 2, 4, 32, 4096, 16384, 1 << 18
_DETACH = 2
_NO_NEW_PRIVILEGES, _PARENT_DEATH, _DUMPABLE = 38, 1, 4
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_NOBODY = 65534
_FIRST_UID = 1_800_000_000
"""User ids from here on belong to nobody. Each program of a root service gets another one, because the limit of processes is per user."""
_LIBRARIES = ("/usr/lib", "/usr/lib32", "/usr/lib64", "/lib", "/lib64")

_START = "import os; os.write(3, b'ready\\n'); exec(compile(os.fdopen(4).read(), 'program', 'exec'))"
"""Says that Python has started, and runs the script from descriptor 4. An argument of the command line would limit its length."""

_libc = ctypes.CDLL(None, use_errno=True)


class Refused(Exception):
    """The kernel refuses a part of the isolation. The message names it."""


def _call(what: str, result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise Refused(f"{what}: {os.strerror(number)}" + (" (not permitted here)" if number == errno.EPERM else ""))


def _mount(source: str, target: str, kind: str | None, flags: int, data: str = "") -> None:
    texts = (source.encode(), target.encode(), kind.encode() if kind else None)
    _call(f"mount {target}", _libc.mount(*texts, ctypes.c_ulong(flags), data.encode()))


def _enter_namespaces() -> int:
    """Leave the service's namespaces. Return the user id for the program; 0: the present one.

    A root process with all privileges needs no user namespace, and the program gets an id of nobody. Any other process gets the privileges
    for the set-up inside a user namespace of its own.
    """
    apart = _NEW_MOUNTS | _NEW_UTS | _NEW_IPC | _NEW_PIDS | _NEW_NET
    root = os.geteuid() == 0
    if root and _libc.unshare(apart) == 0:
        return _FIRST_UID + os.getpid()
    if root:
        _become(_NOBODY)
    user, group = os.getuid(), os.getgid()
    _call("namespaces", _libc.unshare(apart | _NEW_USER))
    _map_user(os.open("/proc", os.O_RDONLY | os.O_DIRECTORY), user, group)
    return 0


def _map_user(proc: int, user: int, group: int) -> None:
    """Keep the ids in the new user namespace, and allow no user namespace inside it. `proc` is a descriptor of /proc."""
    texts = {"self/setgroups": "deny", "self/uid_map": f"{user} {user} 1", "self/gid_map": f"{group} {group} 1"}
    for name, text in (texts | {"sys/user/max_user_namespaces": "0"}).items():
        descriptor = os.open(name, os.O_WRONLY, dir_fd=proc)
        os.write(descriptor, text.encode())
        os.close(descriptor)


def _become(user: int) -> None:
    """Give up root, and stay visible below /proc for oneself."""
    try:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    except OSError:  # a container that maps few user ids
        if user == _NOBODY:
            raise
        return _become(_NOBODY)
    _call("prctl", _libc.prctl(_DUMPABLE, 1, 0, 0, 0))
    return None


def _enter_own_root(root: str, prefix: str, size: int) -> None:
    """Replace the file system by `root`, an empty folder: libraries and Python read-only, and a folder /tmp of `size` bytes."""
    _mount("none", "/", None, _RECURSIVE | _PRIVATE)
    _mount("tmpfs", root, "tmpfs", _NO_SUID | _NO_DEVICES, f"size={size},nr_inodes=4096,mode=755")
    for path in dict.fromkeys((*_LIBRARIES, prefix)):
        if os.path.islink(path):  # noqa: PTH114
            os.symlink(os.readlink(path), root + path)  # noqa: PTH115, PTH211
        elif os.path.isdir(path) and not os.path.isdir(root + path + "/bin"):  # noqa: PTH112 -- not inside a folder that is mounted already
            os.makedirs(root + path, exist_ok=True)  # noqa: PTH103
            _mount(path, root + path, None, _BIND)
            _mount("none", root + path, None, _BIND | _REMOUNT | _READ_ONLY | _NO_SUID | _NO_DEVICES)
    os.mkdir(root + "/tmp", 0o777)  # noqa: PTH102, S108
    os.chmod(root + "/tmp", 0o777)  # noqa: PTH101, S103, S108
    os.mkdir(root + "/old")  # noqa: PTH102
    number = _PIVOT_ROOT.get(platform.machine())
    if number is None:
        raise Refused(f"no isolation on machines of type {platform.machine()}")
    _call("pivot_root", _libc.syscall(number, root.encode(), f"{root}/old".encode()))
    os.chdir("/")
    _call("umount", _libc.umount2(b"/old", _DETACH))
    os.rmdir("/old")  # noqa: PTH106


def _limit(spec: dict[str, Any]) -> None:
    seconds = int(spec["seconds"]) + 1
    for name, value in (
        (resource.RLIMIT_AS, spec["memory"]),
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_FSIZE, spec["files"]),
        (resource.RLIMIT_NOFILE, 64),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NPROC, 1),  # the program itself: it can start no process and no thread
        (resource.RLIMIT_MEMLOCK, 0),
        (resource.RLIMIT_MSGQUEUE, 0),
    ):
        resource.setrlimit(name, (value, value))


def _text_file(text: str) -> int:
    """Return a descriptor of a file in memory with this content."""
    file = os.memfd_create("text")
    with os.fdopen(os.dup(file), "wb") as writer:
        writer.write(text.encode("utf-8", "replace"))
    os.lseek(file, 0, os.SEEK_SET)
    return file


def _program(spec: dict[str, Any], user: int, results: int) -> NoReturn:
    """Become the program."""
    nothing, proc = os.open("/dev/null", os.O_WRONLY), os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)
    if spec["namespaces"]:
        _enter_own_root(spec["folder"], spec["prefix"], spec["files"] * 4)
    home = "/tmp" if spec["namespaces"] else spec["folder"]  # noqa: S108
    os.chdir(home)
    given, script = _text_file(spec["stdin"]), _text_file(spec["script"])
    if os.geteuid() == 0:
        _become(user or _FIRST_UID + os.getpid())
        user, group = os.getuid(), os.getgid()
        if spec["namespaces"] and _libc.unshare(_NEW_USER) == 0:  # so that the program cannot open one and get privileges in it
            _map_user(proc, user, group)
    # The number of `results` is that in the service, so all four first get numbers that none of them can have.
    high = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, 5) for descriptor in (given, nothing, results, script)]
    for descriptor, wanted in zip(high, (0, 2, 3, 4), strict=True):
        os.dup2(descriptor, wanted, inheritable=True)
    os.closerange(5, 1 << 16)
    _limit(spec)
    _call("prctl", _libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0))
    _call("prctl", _libc.prctl(_PARENT_DEATH, signal.SIGKILL, 0, 0, 0))
    os.umask(0o077)
    command = [spec["python"], "-I", "-S", "-B", "-X", "utf8", "-c", _START]
    os.execve(spec["python"], command, {"HOME": home, "TMPDIR": home, "LANG": "C.UTF-8"})  # noqa: S606


def _refuse(results: int, why: str) -> None:
    """Write why the program did not start to the descriptor of the results, which has moved to 3 if the last steps have failed."""
    for descriptor in (results, 3):
        with contextlib.suppress(OSError):
            os.write(descriptor, b"refused " + why.encode() + b"\n")
            return


def _wait(program: int, seconds: float) -> bool:
    """Wait for the program. Return whether it was killed because of the time or because standard input was closed."""
    ended = os.pidfd_open(program)
    poll = select.poll()
    poll.register(ended, select.POLLIN)
    poll.register(0, select.POLLIN | select.POLLHUP)
    if any(descriptor == ended for descriptor, _ in poll.poll(seconds * 1000)):
        return False
    os.kill(program, signal.SIGKILL)
    return True


def main() -> None:
    """Run one program."""
    os.umask(0o022)  # the service's may be stricter, and the program, another user, must reach Python through the folders made here
    spec = json.loads(_line())
    results = int(sys.argv[1])
    try:
        user = _enter_namespaces() if spec["namespaces"] else 0
    except (Refused, OSError) as error:
        _end(refused=str(error))
    program = os.fork()
    if program == 0:
        try:
            _program(spec, user, results)
        except BaseException as error:  # this process must never return into the supervisor's code
            _refuse(results, str(error))
            os._exit(1)
    os.close(1)
    os.close(results)
    killed = _wait(program, spec["wall"])
    _, status, usage = os.wait4(program, 0)
    _end(killed=killed, status=os.waitstatus_to_exitcode(status), cpu=usage.ru_utime + usage.ru_stime)


def _line() -> bytes:
    """Read one line from standard input, without reading beyond it."""
    line = b""
    while not line.endswith(b"\n"):
        chunk = os.read(0, 1 << 16)
        if not chunk:
            os._exit(1)
        line += chunk
    return line


def _end(**words: Any) -> NoReturn:
    os.write(2, json.dumps(words).encode() + b"\n")
    os._exit(0)


if __name__ == "__main__":
    main()
