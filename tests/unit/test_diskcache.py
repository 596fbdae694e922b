"""The disk cache: what is put comes back, in other processes too, and damage is never returned."""

import os
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

from ferrule.base import diskcache
from ferrule.base.config import Context
from ferrule.base.diskcache import CacheWarning, DiskCache, digest

needs_users = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="no file owners here")
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
# Python 3.12 and later warn about any fork of a process with threads.
may_fork = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")


def database_of(folder: Path) -> Path:
    (found,) = folder.glob("*.sqlite3")
    return found


def run_python(code: str, folder: Path) -> subprocess.Popen[str]:
    environment = {"FERRULE_CACHE_DIR": str(folder), "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-W", "error", "-c", code]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def test_values_come_back_by_table_and_key(tmp_path: Path) -> None:
    cache = DiskCache(str(tmp_path))
    cache.put("a", "key", b"one")
    cache.put("b", "key", b"two")
    assert cache.get("a", "key") == b"one"
    assert cache.get("b", "key") == b"two"
    assert cache.get("a", "other") is None
    cache.put("a", "key", b"")
    assert cache.get("a", "key") == b""


def test_get_many_gives_what_is_there(tmp_path: Path) -> None:
    cache = DiskCache(str(tmp_path))
    values = {f"k{number}": bytes([number % 256]) * number for number in range(1200)}
    for key, value in values.items():
        cache.put("t", key, value)
    assert cache.get_many("t", [*values, "missing"]) == values
    assert cache.get_many("t", []) == {}


def test_digest_separates_its_parts() -> None:
    texts = [("ab", "c"), ("a", "bc"), ("abc",), ("", "abc"), (b"ab", "d")]
    assert len({digest(*parts) for parts in texts}) == len(texts)
    assert digest("a", b"b") == digest("a", "b")
    assert len(digest()) == 64


def test_the_settings_choose_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    with Context(FERRULE_CACHE_DIR=str(folder)):
        diskcache.put("t", "k", b"here")
        assert diskcache.get("t", "k") == b"here"
        assert diskcache.get_many("t", ["k", "l"]) == {"k": b"here"}
    with Context(FERRULE_CACHE_DIR=str(tmp_path / "other")):
        assert diskcache.get("t", "k") is None
    assert folder.stat().st_mode & 0o777 == 0o700
    assert database_of(folder).stat().st_mode & 0o777 == 0o600


def test_another_process_reads_it(tmp_path: Path) -> None:
    DiskCache(str(tmp_path)).put("t", "k", b"\x00\xff text")
    code = "from ferrule.base import diskcache; print(diskcache.get('t', 'k'))"
    output, _ = run_python(code, tmp_path).communicate()
    assert output.strip() == repr(b"\x00\xff text")


def test_processes_and_threads_fill_one_cache_at_once(tmp_path: Path) -> None:
    code = """
from threading import Thread
from ferrule.base import diskcache
def fill(part):
    for number in range(40):
        diskcache.put("t", f"{part}-{number}", f"value {part} {number}".encode() * 50)
        diskcache.put("t", f"shared-{number}", b"the same" * 50)
        assert diskcache.get("t", f"shared-{number}") == b"the same" * 50
threads = [Thread(target=fill, args=(f"PART{name}",)) for name in range(2)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print("done")
"""
    workers = [run_python(code.replace("PART", str(part)), tmp_path) for part in range(3)]
    assert [worker.communicate()[0].strip() for worker in workers] == ["done"] * 3
    cache = DiskCache(str(tmp_path))
    for part in ("00", "01", "10", "11", "20", "21"):
        for number in range(40):
            assert cache.get("t", f"{part}-{number}") == f"value {part} {number}".encode() * 50


@needs_fork
@may_fork
def test_a_forked_child_uses_the_cache(tmp_path: Path) -> None:
    cache = DiskCache(str(tmp_path))
    cache.put("t", "before", b"1")
    child = os.fork()
    if child == 0:
        good = cache.get("t", "before") == b"1"
        cache.put("t", "child", b"2")
        os._exit(0 if good else 1)
    cache.put("t", "parent", b"3")
    assert os.waitpid(child, 0)[1] == 0
    assert cache.get_many("t", ["before", "child", "parent"]) == {
        "before": b"1",
        "child": b"2",
        "parent": b"3",
    }


@needs_fork
@may_fork
def test_a_fork_while_another_thread_writes(tmp_path: Path) -> None:
    cache = DiskCache(str(tmp_path))
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            cache.put("t", "k", b"value")

    thread = threading.Thread(target=write)
    thread.start()
    for _ in range(10):
        child = os.fork()
        if child == 0:
            cache.put("t", "child", b"2")
            os._exit(0 if cache.get("t", "child") == b"2" else 1)
        assert os.waitpid(child, 0)[1] == 0
    stop.set()
    thread.join()


@pytest.mark.parametrize("column", ["value", "checksum"])
def test_a_broken_entry_is_dropped(tmp_path: Path, column: str) -> None:
    cache = DiskCache(str(tmp_path))
    cache.put("t", "k", b"good" * 100)
    cache.put("t", "other", b"kept")
    with sqlite3.connect(database_of(tmp_path)) as database:
        rows = database.execute("SELECT key FROM entries WHERE value = ?", (b"good" * 100,))
        key = rows.fetchone()[0]
        database.execute(f"UPDATE entries SET {column} = ? WHERE key = ?", (b"bad" * 100, key))
    database.close()
    assert cache.get("t", "k") is None
    assert cache.get("t", "other") == b"kept"
    with sqlite3.connect(database_of(tmp_path)) as database:
        assert database.execute("SELECT count(*) FROM entries").fetchone() == (1,)
    database.close()
    cache.put("t", "k", b"again")
    assert cache.get("t", "k") == b"again"


def test_an_entry_under_another_key_is_not_believed(tmp_path: Path) -> None:
    cache = DiskCache(str(tmp_path))
    cache.put("t", "k", b"of k")
    wrong = bytes.fromhex(digest("t", "l"))
    with sqlite3.connect(database_of(tmp_path)) as database:
        database.execute("UPDATE entries SET key = ?", (wrong,))
    database.close()
    assert cache.get("t", "l") is None


@pytest.mark.parametrize("opened_before", [False, True])
def test_a_database_that_is_none_is_moved_aside(
    tmp_path: Path, opened_before: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    cache = DiskCache(str(tmp_path))
    cache.put("t", "k", b"lost")
    assert cache._connection is not None
    cache._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    cache._connection.execute("PRAGMA shrink_memory")
    if not opened_before:
        cache.close()
        cache = DiskCache(str(tmp_path))
    database = database_of(tmp_path)
    with database.open("r+b") as file:
        file.write(b"not a database " * 1000)
    with Context(DEBUG=1):
        assert cache.get("t", "k") is None
    cache.put("t", "k", b"new")
    assert cache.get("t", "k") == b"new"
    assert DiskCache(str(tmp_path)).get("t", "k") == b"new"
    assert "moved aside" in capsys.readouterr().out
    assert database.with_suffix(".corrupt").exists()


def test_a_cut_database_is_no_error(tmp_path: Path) -> None:
    cache = DiskCache(str(tmp_path))
    for number in range(200):
        cache.put("t", str(number), os.urandom(2000))
    cache.close()
    database = database_of(tmp_path)
    database.write_bytes(database.read_bytes()[: database.stat().st_size // 3])
    again = DiskCache(str(tmp_path))
    for number in range(200):
        again.get("t", str(number))
        again.put("t", str(number), b"fresh")
    assert again.get("t", "7") == b"fresh"


def test_the_oldest_entries_go_when_it_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = DiskCache(str(tmp_path), largest_bytes=1_000_000)
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now - 10 * 86400)
    for number in range(60):
        cache.put("t", f"old{number}", os.urandom(10_000))
    monkeypatch.setattr(time, "time", lambda: now)
    assert cache.get("t", "old3") is not None  # used again, so no longer old
    for number in range(200):
        cache.put("t", f"new{number}", os.urandom(10_000))
    old = cache.get_many("t", [f"old{number}" for number in range(60)])
    new = cache.get_many("t", [f"new{number}" for number in range(200)])
    assert "new199" in new
    assert "old0" not in old
    assert "old3" in old or len(new) < 200
    # The size is looked at every 64 writes.
    assert sum(map(len, [*old.values(), *new.values()])) <= 1_000_000 + 64 * 10_000


def test_a_full_disk_and_a_foreign_lock_are_no_error(tmp_path: Path) -> None:
    cache = DiskCache(str(tmp_path))
    cache.put("t", "k", b"before")
    connection = cache._connection
    assert connection is not None
    pages = connection.execute("PRAGMA page_count").fetchone()[0]
    connection.execute(f"PRAGMA max_page_count = {pages}")  # SQLite's own "disk full"
    cache.put("t", "big", os.urandom(1_000_000))
    assert cache.get("t", "big") is None
    assert cache.get("t", "k") == b"before"
    connection.execute("PRAGMA busy_timeout = 10")
    other = sqlite3.connect(database_of(tmp_path), isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    cache.put("t", "k", b"not written")
    assert cache.get("t", "k") == b"before"
    other.execute("ROLLBACK")
    other.close()


def as_nobody(code: str, folder: Path) -> str:
    """Runs code as an ordinary user, since root may write anywhere."""
    # First what Python imports when it is needed: its files may be out of that user's reach.
    drop = "import os, pathlib\npathlib.Path('/').as_uri()\n"
    drop += "if os.geteuid() == 0: os.setgid(65534); os.setuid(65534)\n"
    output, _ = run_python("import ferrule.base.diskcache\n" + drop + code, folder).communicate()
    return output.strip()


@needs_users
def test_a_read_only_folder_is_read() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        cache = DiskCache(name)
        cache.put("t", "k", b"value")
        cache.close()
        database_of(folder).chmod(0o444)
        folder.chmod(0o555)
        check_that_it_is_read(folder)
        folder.chmod(0o755)


def check_that_it_is_read(folder: Path) -> None:
    code = """
from ferrule.base import diskcache
diskcache.put("t", "l", b"dropped")
print(diskcache.get("t", "k"), diskcache.get("t", "l"))
"""
    assert as_nobody(code, folder) == "b'value' None"


def test_a_folder_that_cannot_be_made_is_no_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    cache = DiskCache(str(tmp_path / "file" / "cache"))
    with Context(DEBUG=1):
        cache.put("t", "k", b"value")
        assert cache.get("t", "k") is None
    assert capsys.readouterr().out.count("not used") == 1


@needs_users
@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777])
def test_a_folder_that_others_can_write_to_is_refused(tmp_path: Path, mode: int) -> None:
    DiskCache(str(tmp_path)).put("t", "k", b"planted")
    tmp_path.chmod(mode)
    cache = DiskCache(str(tmp_path))
    message = (
        r"ferrule's disk cache holds native code, and is not used: other users can write to .*"
        rf"\(mode {mode:04o}\); run: chmod go-w '.*', or set FERRULE_CACHE_DIR"
    )
    with pytest.warns(CacheWarning, match=message):
        assert cache.get("t", "k") is None
    assert cache.get("t", "k") is None  # and warned once
    tmp_path.chmod(0o700)


@needs_users
def test_a_file_that_others_can_write_to_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    DiskCache(str(tmp_path)).put("t", "k", b"planted")
    database_of(tmp_path).chmod(0o666)
    with pytest.warns(CacheWarning, match=r"can write to .*\.sqlite3 \(mode 0666\)"):
        assert DiskCache(str(tmp_path)).get("t", "k") is None


@needs_users
def test_a_folder_of_another_user_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    DiskCache(str(tmp_path)).put("t", "k", b"planted")
    os.chown(tmp_path, 1234, -1) if os.geteuid() == 0 else monkeypatch.setattr(
        os, "geteuid", lambda: 1
    )
    with pytest.warns(CacheWarning, match=r"belongs to another user \(uid \d+\)"):
        assert DiskCache(str(tmp_path)).get("t", "k") is None


def test_threads_share_one_cache(tmp_path: Path) -> None:
    cache = DiskCache(str(tmp_path))
    failures: list[str] = []

    def work(name: str) -> None:
        for number in range(30):
            cache.put("t", f"{name}{number}", name.encode() * number)
            if cache.get("t", f"{name}{number}") != name.encode() * number:
                failures.append(f"{name}{number}")

    threads = [threading.Thread(target=work, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_clear_removes_all_entries(tmp_path: Path) -> None:
    cache = DiskCache(str(tmp_path))
    cache.put("a", "key", b"x" * 100_000)
    cache.put("b", "key", b"y")
    entries, size = cache.usage()
    assert entries == 2
    assert size > 100_000
    assert cache.clear() == 2
    assert cache.get("a", "key") is None
    entries, smaller = cache.usage()
    assert entries == 0
    assert smaller < size
