import json
import subprocess
import sys

import numpy as np
import pytest

from fedsim.data.digits import Digits
from fedsim.data.federate import federate
from fedsim.data.partition import Dirichlet, Iid
from fedsim.errors import ConfigError

SPLITS = ("train", "val", "test")


def fingerprint(data):
    splits = [getattr(client, split) for client in data.clients for split in SPLITS]
    return [split.batch().y.tolist() for split in [*splits, data.test]], json.dumps(data.facts)


def test_digits():
    data = federate(Digits(), Dirichlet(alpha=0.3), 20, None, 0)
    batch = data.clients[0].train.batch()
    assert data.spec.shape == batch.x.shape[1:] == (1, 8, 8)
    assert len(data.test) + sum(sum(sizes) for sizes in data.facts["sizes"]) == 1797
    assert batch.x.min() == 0.0
    assert data.test.batch().x.max() == 1.0
    assert np.array(data.facts["labels"]).sum() == 1797 - len(data.test)
    with pytest.raises(ConfigError, match="test_fraction must lie between 0 and 1, found 1"):
        Digits(test_fraction=1.0)


def test_seeds_differ():
    assert fingerprint(federate(Digits(), Iid(), 3, None, 0)) != fingerprint(
        federate(Digits(), Iid(), 3, None, 1)
    )


def test_another_process_makes_the_same_federation():
    code = (
        "import sys, hashlib; sys.path[:0] = sys.argv[1:]\n"
        "from fedsim.data.federate import federate\n"
        "from fedsim.data.digits import Digits\n"
        "from fedsim.data.partition import Dirichlet\n"
        "data = federate(Digits(), Dirichlet(alpha=0.3), 7, None, 5)\n"
        "state = hashlib.sha256(repr(dict(data.facts)).encode())\n"
        "for client in data.clients:\n"
        "    for part in (client.train, client.val, client.test):\n"
        "        state.update(part.batch().x.numpy().tobytes() + part.y.numpy().tobytes())\n"
        "print(state.hexdigest())"
    )
    runs = [
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    ]
    assert runs[0] == runs[1]
    assert len(runs[0].strip()) == 64
