import pyarrow as arrow
import pyarrow.parquet as parquet
import pytest
import torch

from fedsim.data.federate import federate
from fedsim.data.hub import Hub
from fedsim.data.partition import Iid, Natural
from fedsim.errors import DataError


def write(path, columns):
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(arrow.table(columns), path)


def load(tmp_path, **fields):
    return Hub(name="owner/set", mirror=str(tmp_path / "mirror"), **fields).load()[0]


@pytest.fixture
def place(tmp_path):
    return tmp_path / "mirror" / "hub" / "owner" / "set"


TABLE = {
    "age": [10.0, 20.0, 30.0, 40.0],
    "job": ["b", "a", "c", "b"],
    "married": [True, False, True, True],
    "code": [7, 9, 7, 7],
    "user": ["u2", "u1", "u2", "u1"],
    "income": [">50K", "<=50K", "<=50K", ">50K"],
}


def test_tables_become_numbers(tmp_path, place):
    write(place / "train.parquet", TABLE)
    pool = load(tmp_path, label="income", categorical=("code",), id_column="user")
    assert pool.facts["inputs"] == ["age", "job=a", "job=b", "job=c", "married", "code=7", "code=9"]
    assert pool.rows.x[0].tolist() == [10, 0, 1, 0, 1, 1, 0]
    assert pool.standardise.tolist() == [True] + [False] * 6
    assert pool.facts["classes"] == ["<=50K", ">50K"]
    assert pool.rows.y.tolist() == [1, 0, 0, 1]
    assert pool.ids.tolist() == [1, 0, 1, 0]
    some = load(tmp_path, label="income", features=("code", "age"))
    assert some.facts["inputs"] == ["code", "age"]
    left = load(tmp_path, label="income", drop=("job", "user"))
    assert left.facts["inputs"] == ["age", "married", "code"]


def test_categories_of_both_splits_have_a_column(tmp_path, place):
    write(place / "train.parquet", {"job": ["a", "b"], "label": [3, 8]})
    write(place / "test.parquet", {"job": ["z"], "label": [8]})
    pool = load(tmp_path)
    assert pool.test.x.tolist() == [[0, 0, 1]]
    assert pool.rows.y.tolist() == [0, 1]
    assert pool.test.y.tolist() == [1]


def test_users_become_clients(tmp_path, place):
    users = [f"user{number % 5}" for number in range(100)]
    write(place / "train.parquet", {"a": list(range(100)), "label": [0, 1] * 50, "user": users})
    data = federate(
        Hub(name="owner/set", mirror=str(tmp_path / "mirror"), id_column="user"), Natural(), 5, None, 0
    )
    for number, client in enumerate(data.clients):
        assert set((client.train.x[:, 0] % 5).tolist()) == {number}


def test_missing_values_are_refused_or_dropped(tmp_path, place):
    write(
        place / "train.parquet",
        {"a": [1.0, None, float("nan"), 4.0], "b": ["x", "y", "z", None], "label": [0, 1, 0, 1]},
    )
    with pytest.raises(DataError, match=r"missing in a, b \(3 rows\): set data\.missing"):
        load(tmp_path)
    pool = load(tmp_path, missing="drop", drop=("b",))
    assert pool.rows.x[:, 0].tolist() == [1, 4]
    assert pool.facts["dropped_rows"] == 2


def test_the_statistics_of_a_table_are_those_of_training_rows(tmp_path, place):
    write(
        place / "train.parquet",
        {"a": [float(n) for n in range(50)], "b": ["x", "y"] * 25, "label": [0, 1] * 25},
    )
    data = federate(Hub(name="owner/set", mirror=str(tmp_path / "mirror")), Iid(), 2, None, 0)
    train = torch.cat([client.train.batch().x for client in data.clients])
    assert train[:, 0].mean().item() == pytest.approx(0.0, abs=1e-6)
    assert train[:, 0].std(correction=0).item() == pytest.approx(1.0, abs=1e-6)
    assert set(train[:, 1:].flatten().tolist()) == {0.0, 1.0}
