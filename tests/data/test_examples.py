import pickle
import warnings

import pytest
import torch

from fedsim.contracts import Batch
from fedsim.data.examples import Graphs, Nodes, Rows

CPU = torch.device("cpu")


def rows():
    x = torch.randint(0, 256, (9, 3, 4, 4), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    mean, std = torch.tensor([10.0, 20.0, 30.0]), torch.tensor([1.0, 2.0, 4.0])
    return Rows(x, torch.arange(9) % 3, mean[:, None, None], std[:, None, None])


def nodes():
    edges = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]])
    return Nodes(torch.arange(8.0).view(4, 2), edges, torch.tensor([0, 1, 0, 1]), torch.tensor([3, 1]))


def parts(count=6, seed=0):
    """(x, edge_index, y) of each graph, some without edges."""
    rng = torch.Generator().manual_seed(seed)
    made = []
    for number in range(count):
        size = int(torch.randint(1, 6, (1,), generator=rng))
        edges = torch.randint(0, size, (2, number % 4 * 2), generator=rng)
        made.append((torch.randn(size, 3, generator=rng), edges, number % 2))
    return made


def packed(made):
    ends = lambda sizes: torch.tensor([0, *sizes]).cumsum(0)  # noqa: E731
    return Graphs(
        torch.cat([x for x, _, _ in made]),
        torch.cat([edges for _, edges, _ in made], dim=1),
        torch.tensor([y for _, _, y in made]),
        ends([len(x) for x, _, _ in made]),
        ends([edges.shape[1] for _, edges, _ in made]),
    )


def pyg_batch(made):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyG's own import warns of torch.jit
        from torch_geometric.data import Batch as PygBatch
        from torch_geometric.data import Data
    graphs = [Data(x=x, edge_index=edges, y=torch.tensor([y])) for x, edges, y in made]
    return PygBatch.from_data_list(graphs)


def test_rows_are_normalised_per_channel():
    example = rows()
    index = torch.tensor([4, 0, 4])
    batch = example.batch(index)
    expected = torch.stack([example.x[i].float() for i in index])
    for channel, (mean, std) in enumerate([(10.0, 1.0), (20.0, 2.0), (30.0, 4.0)]):
        torch.testing.assert_close(batch.x[:, channel], (expected[:, channel] - mean) / std, rtol=0, atol=0)
    assert torch.equal(batch.y, example.y[index])
    assert batch.x.dtype == torch.float32
    assert batch.mask is batch.edge_index is batch.graph is None


def test_all_rows_equal_the_rows_by_index():
    example = rows()
    torch.testing.assert_close(example.batch().x, example.batch(torch.arange(9)).x, rtol=0, atol=0)


def test_moved_rows_keep_their_bytes_and_change_the_batch():
    moved = rows().to(CPU, torch.float64)
    assert moved.x.dtype == torch.uint8
    assert moved.batch().x.dtype == torch.float64
    assert rows().to(CPU, torch.float32).x.dtype == torch.uint8


@pytest.mark.parametrize("index", [None, torch.tensor([1, 0])])
@pytest.mark.parametrize("make", [rows, nodes, lambda: packed(parts())])
def test_a_client_may_change_its_batch(make, index):
    example = make()
    before = example.batch(index)
    spoiled = example.batch(index)
    for tensor in spoiled:
        if tensor is not None:
            tensor.zero_()
    example.labels().zero_()
    for old, new in zip(before, example.batch(index), strict=True):
        assert (old is None and new is None) or torch.equal(old, new)


def test_float_rows_without_statistics_are_copied():
    stored = torch.ones(3, 2)
    Rows(stored, torch.zeros(3, dtype=torch.int64)).batch().x.zero_()
    assert stored.sum() == 6


def test_parts_of_rows_are_views():
    example = rows()
    part = example.part(2, 5)
    assert part.x.untyped_storage().data_ptr() == example.x.untyped_storage().data_ptr()
    assert torch.equal(part.batch().x, example.batch(torch.tensor([2, 3, 4])).x)


def test_nodes_show_the_whole_graph_and_mask_the_counted():
    example = nodes()
    assert example.batch().mask.tolist() == [False, True, False, True]
    assert example.batch(torch.tensor([0])).mask.tolist() == [False, False, False, True]
    assert torch.equal(example.batch().edge_index, example.edge_index)
    assert example.labels().tolist() == [1, 1]
    assert len(example) == 2
    assert example.to(CPU, torch.float64).batch().x.dtype == torch.float64


@pytest.mark.parametrize("index", [[0, 1, 2, 3, 4, 5], [5, 2, 2, 0], [3], []])
def test_graphs_collate_as_pyg_does(index):
    made = parts()
    batch = packed(made).batch(torch.tensor(index, dtype=torch.int64))
    if not index:
        assert batch.x.shape == (0, 3)
        assert batch.edge_index.shape == (2, 0)
        assert len(batch.y) == len(batch.graph) == 0
        return
    expected = pyg_batch([made[number] for number in index])
    assert torch.equal(batch.x, expected.x)
    assert torch.equal(batch.edge_index, expected.edge_index)
    assert torch.equal(batch.graph, expected.batch)
    assert torch.equal(batch.y, expected.y)


def test_parts_and_reorderings_of_graphs_collate_alike():
    made = parts(8, seed=3)
    order = torch.tensor([7, 1, 4, 0])
    reordered = packed(made).reordered(order)
    part = reordered.part(1, 4)
    assert part.x.untyped_storage().data_ptr() == reordered.x.untyped_storage().data_ptr()
    for example, numbers in ((reordered, [7, 1, 4, 0]), (part, [1, 4, 0]), (part.part(1, 2), [4])):
        expected = pyg_batch([made[number] for number in numbers])
        assert torch.equal(example.batch().x, expected.x)
        assert torch.equal(example.batch().edge_index, expected.edge_index)
        assert torch.equal(example.batch().graph, expected.batch)
    assert len(part.part(1, 1)) == 0
    assert part.part(1, 1).batch().x.shape == (0, 3)


@pytest.mark.parametrize("make", [rows, nodes, lambda: packed(parts())])
def test_examples_can_be_pickled(make):
    example = make()
    again = pickle.loads(pickle.dumps(example))
    assert isinstance(example.batch(), Batch)
    for old, new in zip(example.batch(), again.batch(), strict=True):
        assert (old is None and new is None) or torch.equal(old, new)
