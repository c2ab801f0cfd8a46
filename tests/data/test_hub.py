import io
import json

import numpy as np
import pyarrow as arrow
import pyarrow.parquet as parquet
import pytest
import torch
from PIL import Image

from fedsim.data.federate import federate
from fedsim.data.hub import Hub
from fedsim.data.partition import Iid
from fedsim.errors import ConfigError, DataError

LABEL = {"_type": "ClassLabel", "names": ["cat", "dog", "owl"]}


def picture(number, mode="RGB", size=(5, 4), form="PNG"):
    shape = (size[1], size[0], 3) if mode == "RGB" else (size[1], size[0])
    pixels = np.random.default_rng(number).integers(256, size=shape, dtype=np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, form, **({"lossless": True} if form == "WEBP" else {}))
    return pixels, {"bytes": stream.getvalue(), "path": None}


def write(path, columns, features=None):
    table = arrow.table(columns)
    if features:
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(table, path)


def write_images(folder, count=12, start=0, split="train", **kind):
    made = [picture(number, **kind) for number in range(start, start + count)]
    labels = [number % 3 for number in range(count)]
    features = {"img": {"_type": "Image"}, "label": LABEL}
    write(
        folder / f"{split}-00000-of-00001.parquet",
        {"img": [item for _, item in made], "label": labels},
        features,
    )
    return np.stack([pixels for pixels, _ in made])


def load(tmp_path, **fields):
    return Hub(name="owner/set", mirror=str(tmp_path / "mirror"), **fields).load()[0]


@pytest.fixture
def place(tmp_path):
    return tmp_path / "mirror" / "hub" / "owner" / "set"


@pytest.mark.parametrize("form", ["PNG", "WEBP"])
@pytest.mark.parametrize("below", ["hub/owner/set/plain", "hub/owner/set", "owner/set", "owner/set/data"])
def test_images_come_back_exactly_and_twice(tmp_path, below, form):
    folder = tmp_path / "mirror" / below
    train, test = write_images(folder, form=form), write_images(folder, 3, 50, "test", form=form)
    for _ in range(2):
        pool = load(tmp_path)
        assert np.array_equal(pool.rows.x.numpy(), train.transpose(0, 3, 1, 2))
        assert np.array_equal(pool.test.x.numpy(), test.transpose(0, 3, 1, 2))
        assert pool.rows.y.tolist() == [0, 1, 2] * 4
        assert pool.classes == 3
        assert pool.facts["classes"] == ["cat", "dog", "owl"]
        assert pool.facts["source"] == "mirror"
        assert sorted(pool.facts["sha256"]) == ["test-00000-of-00001.parquet", "train-00000-of-00001.parquet"]


def test_grey_images_keep_one_channel(tmp_path, place):
    pixels = write_images(place, mode="L")
    assert np.array_equal(load(tmp_path).rows.x.numpy(), pixels[:, None])


def test_mixed_images_become_coloured(tmp_path, place):
    items = [picture(0, "L")[1], picture(1)[1]]
    write(place / "train-0.parquet", {"image": items, "label": [0, 1]})
    assert load(tmp_path).rows.x.shape == (2, 3, 4, 5)


def test_sizes_must_agree_or_be_declared(tmp_path, place):
    items = [picture(0)[1], picture(1, size=(9, 9))[1]]
    write(place / "train-0.parquet", {"image": items, "label": [0, 1]})
    with pytest.raises(
        DataError, match=r"Image 1 of column 'image' has 9 x 9 pixels, the first 5 x 4.*data\.size"
    ):
        load(tmp_path)
    assert load(tmp_path, size=6).rows.x.shape == (2, 3, 6, 6)


def test_pooled_images_are_means_of_blocks(tmp_path, place):
    pixels = write_images(place, size=(6, 4))
    found = load(tmp_path, pool=2).rows.x
    assert found.dtype == torch.uint8
    for n, row, column, c in np.ndindex(12, 2, 3, 3):
        block = pixels[n, 2 * row : 2 * row + 2, 2 * column : 2 * column + 2, c]
        mean = sum(int(value) for value in block.flat) / 4
        assert abs(int(found[n, c, row, column]) - mean) <= 0.5
    assert torch.equal(load(tmp_path, pool=1).rows.x, load(tmp_path).rows.x)
    with pytest.raises(ConfigError, match=r"data.pool = 4 must divide the images' height 4 and width 6"):
        load(tmp_path, pool=4)


def test_a_part_of_the_test_split_can_be_kept(tmp_path, place):
    write_images(place)
    write_images(place, 20, 50, "test")
    whole, part = load(tmp_path).test, load(tmp_path, test_limit=7).test
    places = [next(n for n in range(20) if torch.equal(whole.x[n], one)) for one in part.x]
    assert len(part) == 7
    assert places == sorted(set(places)) != list(range(7))
    assert torch.equal(part.y, whole.y[places])
    assert torch.equal(load(tmp_path, test_limit=99).test.x, whole.x)


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ({"bytes": b"no image", "path": None}, "Image 1 of column 'image' cannot be decoded"),
        ({"bytes": picture(3)[1]["bytes"][:60], "path": None}, "Image 1 of column 'image' cannot be decoded"),
        ({"bytes": None, "path": "nowhere.png"}, "Image 1 of column 'image' holds no bytes"),
    ],
)
def test_damaged_images_are_named(tmp_path, place, item, message):
    write(place / "train-0.parquet", {"image": [picture(0)[1], item], "label": [0, 1]})
    with pytest.raises(DataError, match=message):
        load(tmp_path)


def test_images_are_standardised_or_scaled(tmp_path, place):
    write_images(place, 40)
    write_images(place, 8, 90, "test")
    data = federate(Hub(name="owner/set", mirror=str(tmp_path / "mirror")), Iid(), 4, None, 0)
    train = torch.cat([client.train.batch().x for client in data.clients]).transpose(0, 1).flatten(1)
    torch.testing.assert_close(train.mean(1), torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(train.std(1, correction=0), torch.ones(3), atol=1e-5, rtol=0)
    unit = federate(
        Hub(name="owner/set", mirror=str(tmp_path / "mirror"), normalize="unit"), Iid(), 4, None, 0
    )
    assert torch.equal(unit.test.batch().x, unit.test.x / 255.0)


def test_a_changed_file_is_read_anew(tmp_path, place):
    first = write_images(place)
    assert np.array_equal(load(tmp_path).rows.x.numpy(), first.transpose(0, 3, 1, 2))
    second = write_images(place, start=7)
    assert np.array_equal(load(tmp_path).rows.x.numpy(), second.transpose(0, 3, 1, 2))


def test_shards_are_joined_in_order(tmp_path, place):
    for number in range(3):
        write(place / f"train-0000{number}-of-00003.parquet", {"a": [float(number)] * 2, "label": [0, 1]})
    assert load(tmp_path).rows.x[:, 0].tolist() == [0, 0, 1, 1, 2, 2]


def test_the_mirror_is_read_only(tmp_path, place):
    write_images(place)
    for path in sorted((tmp_path / "mirror").rglob("*"), reverse=True):
        path.chmod(0o444 if path.is_file() else 0o555)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "mirror").rglob("*")}
    load(tmp_path)
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "mirror").rglob("*")}
    for path in (tmp_path / "mirror").rglob("*"):
        path.chmod(0o755)


@pytest.mark.parametrize(
    ("columns", "fields", "message"),
    [
        ({"a": [1], "b": [2]}, {}, r"label column is not clear; set data\.label to one of a, b"),
        ({"a": [1], "label": [2]}, {"label": "lable"}, "no column 'lable'; there are a, label"),
        ({"a": [1], "label": [0.5]}, {}, "'label' holds fractions"),
        ({"label": [1]}, {}, "No feature columns are left beside the label 'label'"),
        ({"a": [[1, 2]], "label": [1]}, {}, "type list.* is neither number, truth value nor text"),
        ({"a": [str(n) for n in range(1001)], "label": [0] * 1001}, {}, "'a' has 1001 different values"),
        ({"a": [1], "label": [1]}, {"train_split": "learn"}, "not in .*hub/owner/set"),
        ({"a": [1], "label": [1]}, {"test_split": "valid"}, r"has no files valid-\*\.parquet"),
        ({"a": [1], "label": [1]}, {"subset": "other"}, "not in .*owner/set/other"),
        ({"a": [picture(0)[1]], "b": [picture(1)[1]], "label": [1]}, {}, r"several image columns \(a, b\)"),
    ],
)
def test_unusable_tables_say_why(tmp_path, place, columns, fields, message):
    write(place / "train-0.parquet", columns)
    with pytest.raises(DataError, match=message):
        load(tmp_path, **fields)


def test_declared_classes_are_kept_and_checked(tmp_path, place):
    features = {"fine": LABEL, "coarse": LABEL}
    write(place / "train-0.parquet", {"a": [1, 2], "fine": [2, 2], "coarse": [0, 1]}, features)
    with pytest.raises(DataError, match="one of fine, coarse"):
        load(tmp_path)
    pool = load(tmp_path, label="fine", drop=("coarse",))
    assert pool.classes == 3
    assert pool.rows.y.tolist() == [2, 2]
    write(place / "train-0.parquet", {"a": [1, 2], "label": [0, -1]}, {"label": LABEL})
    with pytest.raises(DataError, match="outside its 3 declared classes"):
        load(tmp_path)


def test_several_subsets_must_be_chosen_from(tmp_path, place):
    for subset in ("big", "small"):
        write(place / subset / "train-0.parquet", {"a": [1.0, 2.0], "label": [0, 1]})
    with pytest.raises(DataError, match=r"several subsets \(big, small\): choose one with data\.subset"):
        load(tmp_path)
    assert len(load(tmp_path, subset="small").rows) == 2


def test_a_damaged_file_is_named(tmp_path, place):
    place.mkdir(parents=True)
    (place / "train-0.parquet").write_bytes(b"nothing")
    with pytest.raises(DataError, match=r"parquet files in .* cannot be read"):
        load(tmp_path)


def test_no_network_is_one_clear_line(tmp_path, place, monkeypatch):
    (tmp_path / "mirror").mkdir()
    with pytest.raises(
        DataError, match=r"owner/set is not in .*mirror.*cache.*huggingface\.co cannot be reached"
    ) as info:
        load(tmp_path)
    assert "\n" not in str(info.value)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(DataError, match="HF_HUB_OFFLINE forbids a download"):
        load(tmp_path)


def test_a_download_is_kept(tmp_path, monkeypatch):
    import datasets

    asked = []

    def fetched(name, subset):
        asked.append((name, subset))
        labels = datasets.ClassLabel(names=["no", "yes"])
        features = datasets.Features({"img": datasets.Image(), "answer": labels})
        images = [Image.fromarray(picture(number)[0]) for number in range(4)]
        split = datasets.Dataset.from_dict({"img": images, "answer": [0, 1, 1, 0]}, features=features)
        return datasets.DatasetDict({"train": split, "test": split})

    monkeypatch.setattr("fedsim.data.hub_files.reachable", lambda host: True)
    monkeypatch.setattr("datasets.load_dataset", fetched)
    datasets.disable_progress_bars()
    first, second = (Hub(name="owner/set").load()[0] for _ in range(2))
    assert asked == [("owner/set", None)]
    assert (first.facts["source"], second.facts["source"]) == ("download", "cache")
    assert second.facts["classes"] == ["no", "yes"]
    assert torch.equal(first.rows.x, second.rows.x)
    assert np.array_equal(first.rows.x[3].numpy(), picture(3)[0].transpose(2, 0, 1))


def test_a_failed_download_gives_its_reason(monkeypatch):
    def fails(name, subset):
        raise ValueError("Config name is missing.\nPlease pick one")

    monkeypatch.setattr("fedsim.data.hub_files.reachable", lambda host: True)
    monkeypatch.setattr("datasets.load_dataset", fails)
    with pytest.raises(DataError, match=r"failed: ValueError: Config name is missing\.$"):
        Hub(name="owner/set").load()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": "../secret"}, "name must look like owner/name"),
        ({"name": "a/b/c"}, "name must look like owner/name"),
        ({"name": "a/b", "subset": "../c"}, "subset must look like"),
        ({"name": "a/b", "test_fraction": 0.0}, "test_fraction must lie between 0 and 1, found 0"),
        ({"name": "a/b", "limit": 0}, "limit must be at least 1, found 0"),
        ({"name": "a/b", "size": -2}, "size must be at least 1, found -2"),
        ({"name": "a/b", "pool": 0}, "pool must be at least 1, found 0"),
        ({"name": "a/b", "test_limit": 0}, "test_limit must be at least 1, found 0"),
    ],
)
def test_illegal_fields_are_named(fields, message):
    with pytest.raises(ConfigError, match=message):
        Hub(**fields)
