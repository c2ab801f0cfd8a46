import subprocess

from fedsim.run.provenance import commit


def git(folder, *words):
    identity = ("-c", "user.name=x", "-c", "user.email=x@example.org")
    subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True)


def test_the_commit_is_that_of_the_source_and_not_of_a_repository_around_it(tmp_path):
    source, installed = tmp_path / "source", tmp_path / "venv"
    for folder in (source, installed):
        folder.mkdir()
        (folder / "code.py").write_text("1\n")
    git(tmp_path, "init")
    git(tmp_path, "add", "source")
    git(tmp_path, "commit", "-m", "x")
    found = commit(source)
    assert found is not None
    assert (len(found["sha"]), found["changed"]) == (40, False)
    assert commit(installed) is None
    (source / "code.py").write_text("2\n")
    assert commit(source)["changed"]


def test_outside_git_there_is_no_commit(tmp_path):
    assert commit(tmp_path) is None
