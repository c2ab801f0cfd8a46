import os
import threading

import numpy as np
import pytest

from fedsim.data.store import cache_folder, cached, digests, mirror_folder, placed, reachable
from fedsim.errors import DataError

needs_permissions = pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write everywhere"
)


def test_arrays_are_built_once(own_cache):
    built = []

    def build():
        built.append(1)
        return {"a": np.arange(3), "names": np.array(["x", "yy"])}

    first, second = cached("key", build), cached("key", build)
    assert built == [1]
    assert second["a"].tolist() == first["a"].tolist() == [0, 1, 2]
    assert second["names"].tolist() == ["x", "yy"]


def test_a_failed_build_leaves_nothing(own_cache):
    def build():
        raise RuntimeError("half-way")

    with pytest.raises(RuntimeError):
        cached("key", build)
    assert not list((own_cache / "arrays").glob("*")) if (own_cache / "arrays").exists() else True
    with pytest.raises(RuntimeError), placed(own_cache / "folder"):
        raise RuntimeError("half-way")
    assert list(own_cache.iterdir()) == []


def test_two_writers_agree(own_cache):
    barrier = threading.Barrier(2)

    def write():
        with placed(own_cache / "folder") as temporary:
            (temporary / "file").write_text("same")
            barrier.wait(timeout=10)

    threads = [threading.Thread(target=write) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [path.name for path in own_cache.iterdir()] == ["folder"]
    assert (own_cache / "folder" / "file").read_text() == "same"


def test_damaged_arrays_name_their_folder(own_cache):
    cached("key", lambda: {"a": np.arange(3)})
    (own_cache / "arrays" / "key" / "a.npy").write_bytes(b"damage")
    with pytest.raises(DataError, match=r"arrays.key cannot be read .* remove that folder"):
        cached("key", dict)


def test_a_file_in_place_of_the_cache_is_named(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FEDSIM_CACHE", str(tmp_path / "file"))
    with pytest.raises(DataError, match=r"cannot be written .* FEDSIM_CACHE"):
        cached("key", dict)


@needs_permissions
def test_a_read_only_cache_is_named(tmp_path, monkeypatch):
    (tmp_path / "closed").mkdir(mode=0o500)
    monkeypatch.setenv("FEDSIM_CACHE", str(tmp_path / "closed"))
    with pytest.raises(DataError, match=r"cannot be written .* FEDSIM_CACHE"):
        cached("key", dict)


def test_the_default_cache_is_the_users(monkeypatch, tmp_path):
    monkeypatch.delenv("FEDSIM_CACHE")
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "fedsim"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "fedsim"


def test_the_declared_mirror_comes_before_the_environment(tmp_path, monkeypatch):
    assert mirror_folder(None) is None
    (tmp_path / "a").mkdir()
    monkeypatch.setenv("FEDSIM_DATA_MIRROR", str(tmp_path))
    assert mirror_folder(None) == tmp_path
    assert mirror_folder(str(tmp_path / "a")) == tmp_path / "a"
    with pytest.raises(DataError, match=r"b named by data\.mirror is not a folder"):
        mirror_folder(str(tmp_path / "b"))
    monkeypatch.setenv("FEDSIM_DATA_MIRROR", str(tmp_path / "b"))
    with pytest.raises(DataError, match="environment variable FEDSIM_DATA_MIRROR is not a folder"):
        mirror_folder(None)


def test_digests_are_sha256(tmp_path):
    (tmp_path / "empty").write_bytes(b"")
    assert digests(tmp_path, [tmp_path / "empty"]) == {
        "empty": "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    }


def test_an_unreachable_host_is_known_at_once(monkeypatch):
    def refuse(address, timeout):
        raise OSError("no network")

    monkeypatch.setattr("urllib.request.getproxies", dict)
    monkeypatch.setattr("socket.create_connection", refuse)
    assert not reachable("hub.example")
    ended = threading.Event()

    def never_answer(address, timeout):
        ended.wait(30)
        raise OSError("no name server")

    monkeypatch.setattr("socket.create_connection", never_answer)
    assert not reachable("hub.example", seconds=0.05)
    ended.set()
    monkeypatch.setattr("urllib.request.getproxies", lambda: {"https": "proxy"})
    assert reachable("hub.example")
